"""LeNet and the residual networks: sizes by hand, initial values, layers against NumPy, shortcuts, single examples."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evenhand import models
from evenhand.errors import EvenhandError
from evenhand.lowering import lowered
from evenhand.models._images import Block, _pooled  # pyright: ignore[reportPrivateUsage]
from evenhand.types import Model

KEY = jax.random.key(0)
RNG = np.random.default_rng(11)

RESNET = models.resnet20(3)
LOGITS = jax.jit(lowered(RESNET.apply))  # of two rows of 3072 numbers: compiled once


def abstract(model: Model) -> Any:
    return jax.eval_shape(model.init, KEY)


def filled(shapes: Any, scale: float = 0.1) -> Any:
    """Parameters drawn by NumPy: quicker than compiling the initialiser."""
    return jax.tree.map(lambda leaf: (scale * RNG.normal(size=leaf.shape)).astype(np.float32), shapes)


# --- sizes --------------------------------------------------------------------------------------------------


def lenet_size(classes: int) -> int:
    convolutions = (25 * 1 * 16 + 16) + (25 * 16 * 32 + 32) + (25 * 32 * 64 + 64)
    return convolutions + (4 * 4 * 64 * 100 + 100) + (100 * classes + classes)


def resnet_size(blocks: int, classes: int) -> int:
    convolutions = 9 * 3 * 16 + 2 * blocks * 9 * 16**2  # the first one, and those of the first stage
    for channels in (32, 64):  # the first of a stage doubles the channels
        convolutions += 9 * channels // 2 * channels + (2 * blocks - 1) * 9 * channels**2
    scales_and_offsets = 2 * (16 + 2 * blocks * (16 + 32 + 64))
    return convolutions + scales_and_offsets + 64 * classes + classes


def batch_norm_size(width: int, classes: int) -> int:
    """Table 6 of FedBN has 6272 -> 2048 -> 512 for a width of 64; four numbers for each normalised channel."""
    convolutions = (25 * 1 * width + width) + (25 * width**2 + width) + (25 * 2 * width**2 + 2 * width)
    sizes = (7 * 7 * 2 * width, 32 * width, 8 * width, classes)
    dense = sum(a * b + b for a, b in pairwise(sizes))
    return convolutions + dense + 4 * (width + width + 2 * width + 32 * width + 8 * width)


@pytest.mark.parametrize(
    ("model", "parameters", "published"),
    [
        (models.lenet(), lenet_size(10), 168_022),
        (models.lenet(2), lenet_size(2), 167_214),
        (models.resnet20(), resnet_size(3, 10), 269_722),
        (models.resnet32(), resnet_size(5, 10), 464_154),
        (models.resnet20(3, groups=8), resnet_size(3, 3), 269_267),
        (models.cnn_batch_norm(), batch_norm_size(16, 10), 892_762),
        (models.cnn_batch_norm(width=64, state="local"), batch_norm_size(64, 10), 14_221_642),
    ],
)
def test_image_networks_have_the_numbers_of_parameters_of_their_layers(
    model: Model, parameters: int, published: int
) -> None:
    leaves = jax.tree.leaves(abstract(model))
    assert sum(leaf.size for leaf in leaves) == parameters == published
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (models.lenet(), (28, 28, 1)),
        (models.cnn_batch_norm(width=2), (28, 28, 1)),
        (models.resnet20(), (32, 32, 3)),
        (models.resnet32(), (32, 32, 3)),
    ],
)
def test_images_may_be_flat(model: Model, shape: tuple[int, ...]) -> None:
    params = abstract(model)
    forms = [shape, (math.prod(shape),)] + [shape[:2]] * (shape[2] == 1)
    for form in forms:
        outputs = jax.eval_shape(model.apply, params, jnp.zeros((3, *form)))
        assert outputs.shape == (3, 10) and outputs.dtype == jnp.float32
    assert jax.eval_shape(model.apply, params, jnp.zeros((0, *shape))).shape == (0, 10)
    with pytest.raises(EvenhandError, match="made for images"):
        jax.eval_shape(model.apply, params, jnp.zeros((3, *shape[::-1])))
    assert set(model.metrics) == {"accuracy"}
    assert (model.apply_train is None) == (model.statistics is None)


@pytest.mark.parametrize("groups", [3, 32])
def test_groups_must_divide_the_narrowest_stage(groups: int) -> None:
    with pytest.raises(EvenhandError, match=f"groups={groups} does not divide 16"):
        models.resnet20(groups=groups)


# --- initial values -----------------------------------------------------------------------------------------


def test_lenet_begins_truncated_at_two_tenths() -> None:
    params = jax.jit(models.lenet().init)(KEY)
    for layer in params.values():
        kernel = np.asarray(layer["kernel"])
        assert not layer["bias"].any() and 0.15 < abs(kernel).max() <= 0.2
    deviation = np.asarray(params["dense"]["kernel"]).std()
    np.testing.assert_allclose(deviation, 0.0880, atol=3e-4)  # of a normal number truncated at 2, times 0.1


def test_residual_networks_begin_with_kaimings_variance() -> None:
    names = ("conv", "stage_2_block_1", "output")
    params = jax.jit(lambda key: {name: models.resnet20().init(key)[name] for name in names})(KEY)
    block, output = params["stage_2_block_1"], params["output"]
    kernels = [
        (params["conv"], 9 * 3, 0.15),
        (block["conv_0"], 9 * 64, 0.03),
        (block["conv_1"], 9 * 64, 0.03),
    ]
    for layer, fan_in, tolerance in [*kernels, (output, 64, 0.2)]:
        np.testing.assert_allclose(np.asarray(layer["kernel"]).var(), 2 / fan_in, rtol=tolerance)
    assert abs(block["conv_1"]["kernel"]).max() > 3 * (2 / (9 * 64)) ** 0.5  # not truncated
    assert (block["norm_1"]["scale"] == 1).all() and not block["norm_1"]["bias"].any()
    assert set(block["conv_0"]) == {"kernel"} and not output["bias"].any()


# --- layers, against NumPy ----------------------------------------------------------------------------------


def convolved(x: np.ndarray, kernel: np.ndarray, stride: int = 1) -> np.ndarray:
    edge = kernel.shape[0] // 2
    x = np.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], axis=(1, 2))
    return np.einsum("nhwcij,ijco->nhwo", windows[:, ::stride, ::stride], kernel, optimize=True)


def pooled(x: np.ndarray) -> np.ndarray:
    """As TensorFlow places windows: of the padding that is needed, the smaller half comes first."""
    outputs = [-(-length // 2) for length in x.shape[1:3]]
    rows = []
    for i in range(outputs[0]):
        row = []
        for j in range(outputs[1]):
            (top, left) = (
                2 * k - max(2 * out + 1 - length, 0) // 2
                for k, out, length in zip((i, j), outputs, x.shape[1:3], strict=True)
            )
            row.append(x[:, max(top, 0) : top + 3, max(left, 0) : left + 3].max(axis=(1, 2)))
        rows.append(np.stack(row, axis=1))
    return np.stack(rows, axis=1)


def test_lenet_is_the_layers_that_it_names() -> None:
    model = models.lenet(3)
    params, x = filled(abstract(model)), RNG.random((2, 28, 28, 1)).astype(np.float32)
    z = x
    for name in ("conv_0", "conv_1", "conv_2"):
        z = np.maximum(pooled(convolved(z, params[name]["kernel"]) + params[name]["bias"]), 0)
    assert z.shape == (2, 4, 4, 64)
    z = np.maximum(z.reshape(2, -1) @ params["dense"]["kernel"] + params["dense"]["bias"], 0)
    expected = z @ params["output"]["kernel"] + params["output"]["bias"]
    outputs = np.asarray(jax.jit(model.apply)(params, x.reshape(2, -1)))
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 7, 8, 3), (1, 14, 5, 2), (1, 1, 2, 1)])
def test_pooling_and_its_derivative_are_those_of_xla(shape: tuple[int, ...]) -> None:
    x = RNG.normal(size=shape).astype(np.float32)
    np.testing.assert_array_equal(_pooled(jnp.asarray(x)), pooled(x))

    def derivative(pool: Any) -> Any:
        weights = jnp.asarray(np.arange(pooled(x).size).reshape(pooled(x).shape), jnp.float32)
        return jax.grad(lambda x: jnp.sum(weights * pool(x)))(x)

    native = derivative(lambda x: nn.max_pool(x, (3, 3), (2, 2), "SAME"))
    np.testing.assert_array_equal(derivative(_pooled), native)


def normalised(z: np.ndarray, of: Any, groups: int) -> np.ndarray:
    grouped = z.reshape(len(z), -1, groups, z.shape[-1] // groups)
    centred = grouped - grouped.mean(axis=(1, 3), keepdims=True)
    scaled = centred / np.sqrt(np.square(centred).mean(axis=(1, 3), keepdims=True) + 1e-5)
    return scaled.reshape(z.shape) * of["scale"] + of["bias"]


@pytest.mark.parametrize(("channels", "stride"), [(4, 1), (8, 2)])
def test_a_block_is_its_equation(channels: int, stride: int) -> None:
    module, x = Block(channels, stride, groups=2), RNG.normal(size=(2, 6, 6, 4)).astype(np.float32)
    params = filled(jax.eval_shape(module.init, KEY, x), scale=0.5)["params"]
    z = convolved(x, params["conv_0"]["kernel"], stride)
    z = np.maximum(normalised(z, params["norm_0"], 2), 0)
    z = normalised(convolved(z, params["conv_1"]["kernel"]), params["norm_1"], 2)
    z[..., :4] += x[:, ::stride, ::stride]
    found = np.asarray(module.apply({"params": params}, x))
    np.testing.assert_allclose(found, np.maximum(z, 0), rtol=1e-4, atol=1e-4)


def test_a_residual_branch_of_zeros_leaves_the_shortcut() -> None:
    module, x = Block(8, 2, groups=4), RNG.random((2, 6, 6, 4)).astype(np.float32)
    params = filled(jax.eval_shape(module.init, KEY, x))
    params["params"]["norm_1"] = jax.tree.map(np.zeros_like, params["params"]["norm_1"])
    found = np.asarray(module.apply(params, x))
    np.testing.assert_array_equal(found[..., :4], x[:, ::2, ::2])
    assert found.shape == (2, 3, 3, 8) and not found[..., 4:].any()


def test_a_network_whose_branches_are_zero_is_a_mean_of_pixels() -> None:
    params, x = filled(abstract(RESNET)), RNG.random((2, 32, 32, 3)).astype(np.float32)
    for name, layer in params.items():
        if name.startswith("stage"):
            layer["norm_1"] = jax.tree.map(np.zeros_like, layer["norm_1"])
    z = np.maximum(normalised(convolved(x, params["conv"]["kernel"]), params["norm"], 2), 0)
    means = np.zeros((2, 64), np.float32)
    means[:, :16] = z[:, ::4, ::4].mean(axis=(1, 2))
    expected = means @ params["output"]["kernel"] + params["output"]["bias"]
    np.testing.assert_allclose(LOGITS(params, x.reshape(2, -1)), expected, rtol=1e-3, atol=1e-5)


def test_an_example_is_not_changed_by_its_batch() -> None:
    params, x = filled(abstract(RESNET)), RNG.random((2, 3072)).astype(np.float32)
    both, other = LOGITS(params, x), LOGITS(params, np.stack([x[0], x[1, ::-1]]))
    np.testing.assert_array_equal(both[0], other[0])
    assert abs(np.asarray(both[1] - other[1])).max() > 1e-4
    losses = RESNET.losses(both, jnp.array([0, 2]))
    logits = np.asarray(both, np.float64)
    expected = np.log(np.exp(logits).sum(axis=1)) - logits[[0, 1], [0, 2]]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_batch_normalisation_is_the_layers_that_it_names() -> None:
    """Against NumPy's products of patches, in evaluation, at a width of 2."""
    model = models.cnn_batch_norm(3, width=2)
    params = filled(abstract(model))
    for layer in range(5):
        params[f"norm_{layer}"]["var"] = np.abs(params[f"norm_{layer}"]["var"]) + 0.5
    x = RNG.normal(size=(2, 28, 28)).astype(np.float32)

    def normed(z: np.ndarray, layer: int) -> np.ndarray:
        own = params[f"norm_{layer}"]
        unit = (z - own["mean"]) / np.sqrt(own["var"] + 1e-5)
        return np.maximum(unit * own["scale"] + own["bias"], 0.0)

    z = x[..., None].astype(np.float64)
    for layer in range(3):
        padded = np.pad(z, ((0, 0), (2, 2), (2, 2), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), axis=(1, 2))
        own = params[f"conv_{layer}"]
        z = normed(np.einsum("nhwcij,ijco->nhwo", windows, own["kernel"]) + own["bias"], layer)
        if layer < 2:
            z = z.reshape(2, z.shape[1] // 2, 2, z.shape[2] // 2, 2, -1).max((2, 4))
    z = z.reshape(2, -1)
    for layer in range(2):
        own = params[f"dense_{layer}"]
        z = normed(z @ own["kernel"] + own["bias"], 3 + layer)
    expected = z @ params["output"]["kernel"] + params["output"]["bias"]
    assert np.abs(np.asarray(model.apply(params, jnp.asarray(x))) - expected).max() < 1e-5
    assert model.statistics is not None and len(model.statistics.paths) == 10
