"""Operations of PyTorch modules that torchax lacks or computes otherwise, and modules on their way to a worker.

Oracles: PyTorch's own forward pass and autograd on the same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

import evenhand as eh
from tests.pytorch.test_torch import Through

KEY = jax.random.key(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def assert_as_autograd(module: nn.Module, x: torch.Tensor) -> None:
    """Outputs, and gradients of a sum of cubes."""
    model = eh.models.from_torch(module, loss=lambda outputs, y: jnp.sum(outputs**3, axis=1), sample=x[:1])
    outputs = module(x).flatten(1)
    (outputs**3).sum().backward()
    rows = jnp.asarray(x.numpy())

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        values = model.apply(params, rows).reshape(len(rows), -1)
        return jnp.sum(model.losses(values, rows)), values

    gradients, values = jax.jit(jax.grad(loss, has_aux=True))(model.init(KEY))
    np.testing.assert_allclose(values, outputs.detach().numpy(), rtol=1e-4, atol=1e-5)
    for path, parameter in module.named_parameters():
        gradient = gradients
        for part in path.split("."):
            gradient = gradient[part]
        assert parameter.grad is not None and parameter.grad.abs().max() > 1e-3
        np.testing.assert_allclose(gradient, parameter.grad.numpy(), rtol=1e-3, atol=1e-4)


# --- changes in place --------------------------------------------------------------------------------------------


def doubled(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    with torch.no_grad():
        y.mul_(2.0)
    return y.square()


def shifted(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    with torch.no_grad():
        y += 1.0
        y.masked_fill_(y > 0.5, float("inf"))
        y.masked_fill_(y > 5, 0.7)
    return y.square()


def column(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    part = y[:, :1]
    with torch.no_grad():
        part.clamp_min_(0.3)
        y[:, 1].mul_(3.0)
        y[:, 2] = x[:, 0]
    return y.square()


def read(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        first, copied = x[:, :1], torch.zeros_like(x)
        copied[:] = x
    return x * first + copied * x


def filled(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 0].zero_()
    nn.functional.leaky_relu_(y[:, 1])
    with torch.no_grad():
        torch.mul(y[:, 2], 2.0, out=torch.empty_like(x[:, 0]))  # which changes none of its inputs
    return y + y.square()


def data(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.data.mul_(2.0)
    y.data[:, 1].fill_(0.5)
    return y * x.data + (x.sign() - x).data


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "multiplied": doubled,
    "added and filled": shifted,
    "parts": column,
    "read": read,
    "filled": filled,
    "data": data,
    "cosine similarity": lambda x: (
        5 * nn.functional.cosine_similarity(x[:, None], x[:, :, None].cos(), dim=-1)
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_in_place_are_those_of_pytorch(name: str) -> None:
    torch.manual_seed(3)
    assert_as_autograd(Through(CHANGES[name]), normal(5, 4))


# --- layers ------------------------------------------------------------------------------------------------------

POOLS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "a square": (nn.AvgPool2d(3, 2, ceil_mode=True), (8, 8)),
    "a padded square": (nn.AvgPool2d(3, 2, padding=1, ceil_mode=True), (8, 8)),
    "line": (nn.AvgPool1d(3, 2, padding=1, ceil_mode=True), (8,)),
    "unlike axes": (nn.AvgPool2d((3, 2), (2, 3), (1, 0), ceil_mode=True), (8, 6)),
    "without padding": (nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), (8, 7)),
    "a divisor": (nn.AvgPool2d(2, ceil_mode=True, divisor_override=3), (7, 5)),
    "a window in the padding": (nn.AvgPool2d(2, 3, 1, ceil_mode=True), (5, 6)),
    "volume": (nn.AvgPool3d(2, ceil_mode=True), (3, 4, 5)),
    "powers": (nn.LPPool2d(2, 2, ceil_mode=True), (7, 5)),
    "floor": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), (8, 7)),
}


@pytest.mark.parametrize("name", POOLS)
def test_means_over_windows_are_those_of_pytorch(name: str) -> None:
    pool, sizes = POOLS[name]
    convolution: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(sizes) - 1]
    torch.manual_seed(3)
    assert_as_autograd(nn.Sequential(convolution(1, 2, 1), pool), normal(2, 1, *sizes))


@pytest.mark.parametrize("sizes", [(4, 3), (3, 3), (3, 4)])
def test_orthogonal_weights_are_those_of_pytorch(sizes: tuple[int, int]) -> None:
    torch.manual_seed(3)
    orthogonal = nn.utils.parametrizations.orthogonal
    layer = orthogonal(nn.Linear(*sizes, bias=False), orthogonal_map="householder")
    assert_as_autograd(nn.Sequential(nn.Linear(4, sizes[0]), layer), normal(5, 4))


# --- on their way to a worker ------------------------------------------------------------------------------------


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))


@pytest.mark.parametrize("make", [small, lambda: small], ids=["instance", "drawn"])
def test_a_model_that_was_sent_to_another_process_is_the_same(make: Callable[[], Any]) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    x = normal(5, 4)
    model = eh.models.from_torch(make(), loss="cross_entropy", sample=x[:1], state="average")
    sent = cloudpickle.loads(cloudpickle.dumps(model))
    params, rows = model.init(KEY), jnp.asarray(x.numpy())
    for ours, theirs in (
        (params, sent.init(KEY)),
        (model.apply(params, rows), sent.apply(params, rows)),
        (model.apply_train(params, rows, KEY), sent.apply_train(params, rows, KEY)),  # pyright: ignore[reportOptionalCall]
    ):
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
