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
from evenhand.errors import EvenhandError
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


# --- views -------------------------------------------------------------------------------------------------------

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda x: x.view(-1, 3),
    "view of a transposed": lambda x: x.transpose(0, 1).view(4, -1, 2, 3),
    "reshape that splits": lambda x: x.permute(2, 0, 1).reshape(3, 2, -1, 1, 4),
    "reshape to the same": lambda x: x.reshape(x.shape),
    "flatten of an axis": lambda x: x.flatten(1, 1),
    "unflatten": lambda x: x.unflatten(2, (2, 3)),
    "transpose": lambda x: x.transpose(0, 2),
    "mT": lambda x: x.mT,
    "t": lambda x: x.select(1, 2).t(),
    "T": lambda x: x[:, 1].T,
    "permute": lambda x: x.permute(1, 2, 0),
    "movedim": lambda x: x.movedim(0, 2),
    "select": lambda x: x.select(2, 3),
    "integers": lambda x: x[1, -1],
    "a tensor that counts": lambda x: x[torch.tensor(1)],
    "steps": lambda x: x[1::2, None, ..., 1:4],
    "narrow": lambda x: x.narrow(2, 1, 3),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "squeeze of nothing": lambda x: x.squeeze(),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "diagonal": lambda x: x.diagonal(1, 1, 2),
    "expand of nothing": lambda x: x.expand(-1, -1, 6),
    "view as": lambda x: x[:2].view_as(x.new_zeros(8, 6)),
    "detach": lambda x: x.detach(),
    "detached part": lambda x: x.transpose(0, 1).detach()[1],
    "a part of a part": lambda x: x.view(-1, 24).t()[3:9].unsqueeze(0).transpose(0, 2)[1:],
    "to the same": lambda x: x[:2].to(torch.float32),
    "float": lambda x: x[1].float(),
    "atleast": lambda x: torch.atleast_2d(x[1]),
}

SEVERAL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "chunk": lambda x: x.chunk(2, 1)[1],
    "split": lambda x: x.split(2, 2)[1],
    "split of sizes": lambda x: x.split([1, 5], 2)[1],
    "tensor split": lambda x: torch.tensor_split(x, 3, 2)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "iteration": lambda x: next(iter(x)),
    "unbind of a part": lambda x: x.view(-1, 2, 12).unbind(1)[1].t(),
}


def assigned(x: torch.Tensor) -> None:
    x[...] = 0.3


def masked(x: torch.Tensor) -> None:
    x[x > 0.1] = 0.7


def grown(x: torch.Tensor) -> None:
    x += x.clone().sin()
    x[..., 0] -= 2.0


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "add": lambda x: x.add_(1.0),
    "multiply": lambda x: x.mul_(x.clone().cos()),
    "copy": lambda x: x.copy_(x.clone().exp()[..., :1]),
    "zero": lambda x: x.zero_(),
    "fill": lambda x: x[..., 0].fill_(0.4),
    "clamp": lambda x: x.clamp_(-0.2, 0.4),
    "relu": lambda x: nn.functional.relu(x, inplace=True),
    "elu": lambda x: nn.functional.elu(x, inplace=True),
    "sine": lambda x: x.sin_(),
    "masked fill": lambda x: x.masked_fill_(x < 0, 0.2),
    "scaled": lambda x: x.addcmul_(x.clone().cos(), x.clone(), value=0.5),
    "lerp": lambda x: x.lerp_(x.clone().sin(), 0.3),
    "out": lambda x: torch.mul(x.cos(), 2.0, out=x),
    "assigned": assigned,
    "masked": masked,
    "grown": grown,
}


def written(view: Callable[[torch.Tensor], torch.Tensor], *, frozen: bool) -> Callable[..., torch.Tensor]:
    """Of a tensor, a copy for each of :data:`WRITES`, whose view is changed in place; then both are read."""

    def run(x: torch.Tensor) -> torch.Tensor:
        outputs = []
        for name, write in WRITES.items():
            y = torch.cat([x, -x], 1)[:, None] * torch.linspace(-1.0, 1.0, 4)[:, None]  # (rows, 4, 6)
            before = y.view(-1, 24)
            with torch.set_grad_enabled(not frozen):
                part = view(y)
                if name != "out" or frozen:  # which PyTorch does not differentiate
                    write(part)
                mean = part.square().mean()
            outputs.append(y.view(-1, 24) + before.sin() + mean)
        return torch.cat(outputs, 1)

    return run


@pytest.mark.parametrize("name", VIEWS)
def test_what_changes_a_view_changes_its_source(name: str) -> None:
    torch.manual_seed(3)
    assert_as_autograd(Through(written(VIEWS[name], frozen=False)), normal(5, 4))


@pytest.mark.parametrize("name", [*VIEWS, *SEVERAL])
def test_what_changes_a_view_without_gradients_changes_its_source(name: str) -> None:
    torch.manual_seed(3)
    assert_as_autograd(Through(written({**VIEWS, **SEVERAL}[name], frozen=True)), normal(5, 4))


def counted(x: torch.Tensor) -> torch.Tensor:
    counts, flags = torch.zeros_like(x, dtype=torch.int32), torch.zeros_like(x, dtype=torch.bool)
    counts.t()[1:].unsqueeze(0).add_(3)
    counts.unbind(1)[0].sub_(1)
    flags.t()[1].logical_not_()
    return torch.where(flags, x, x * counts)


def merged(x: torch.Tensor) -> torch.Tensor:
    y = (x[:, None] * x[:, :, None]).flatten(1)
    return nn.functional.relu_(y) + y


def copied(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.to(torch.float32, copy=True).zero_()
    y.to(torch.float32, False, True).zero_()
    y[:, [0, 1]].zero_()
    y.clone().t().zero_()
    return y + torch.ones_like(y, dtype=torch.int32).type_as(y) * x


def reshaped(x: torch.Tensor) -> torch.Tensor:
    y, z = x.clone(), x.clone()
    y.t_().unsqueeze_(0)
    z.detach_()
    return torch.cat([y.squeeze(0).t().reshape(x.shape), z * x], 1)


@pytest.mark.parametrize("function", [counted, merged, copied, reshaped])
def test_what_changes_in_place_is_what_pytorch_changes(function: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(3)
    assert_as_autograd(Through(function), normal(5, 4))


def unsure(x: torch.Tensor) -> torch.Tensor:
    y = x[:, None] * x[:, :, None]
    y.flatten(1).zero_()
    return y


def unsure_source(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    z = y.t().contiguous()
    y[0] = 1.0
    return z.t()


def constant(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(x.shape)
    y[:, 0] = x[:, 1]
    return y


REFUSED: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "flatten": (unsure, r"write view\(\) if they should, and clone\(\) if they should not"),
    "contiguous": (unsure_source, "reads the other afterwards"),
    "expand": (lambda x: x[:, :1].expand(-1, 3).add_(1.0), r"what expand\(\) returned"),
    "windows": (lambda x: x.unfold(1, 2, 1).add_(1.0), r"what unfold\(\) returned"),
    "real parts": (lambda x: torch.complex(x, x).real.add_(1.0), r"what view_as_real\(\) returned"),
    "a shape": (lambda x: x[:, :1].squeeze_(1), "the shape of a view"),
    "a shape with views": (lambda x: (x[:, :1], x.unsqueeze_(0))[0], "a tensor that has views"),
    "strides of a view": (lambda x: x.t().as_strided((len(x), 2), (3, 1)), r"\.contiguous\(\)\.as_strided"),
    "constant": (constant, r"make it by x.new_zeros\(...\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_changes_that_jax_cannot_follow_are_refused(name: str) -> None:
    function, words = REFUSED[name]
    with pytest.raises(EvenhandError, match=words):
        eh.models.from_torch(Through(function), loss="squared_error", sample=normal(1, 4))


class Bounded(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.weight.data.view(-1).clamp_(-0.1, 0.1)
        return super().forward(input)


def test_a_module_that_changes_its_weights_is_refused() -> None:
    with pytest.raises(EvenhandError, match=r"changes its parameter weight in forward\(\)"):
        eh.models.from_torch(Bounded(4, 3), loss="squared_error", sample=normal(1, 4))


# --- weights that are drawn ----------------------------------------------------------------------------------------

DRAWN: dict[str, Callable[[torch.Tensor], Any]] = {
    "truncated": lambda w: nn.init.trunc_normal_(w, std=0.02),
    "truncated on one side": lambda w: nn.init.trunc_normal_(w, 0.5, 2.0, 0.0, 1.0),
    "normal": lambda w: nn.init.normal_(w, 0.0, 0.02),
    "kaiming": lambda w: nn.init.kaiming_normal_(w),
    "xavier": lambda w: nn.init.xavier_normal_(w, gain=2.0),
    "orthogonal": lambda w: [nn.init.orthogonal_(part) for part in w.data.chunk(4)],
    "sparse": lambda w: nn.init.sparse_(w, 0.5),
    "a part": lambda w: nn.init.normal_(w.detach()[3], 7.0, 0.1),
    "a view": lambda w: w.data.view(-1)[::2].uniform_(2.0, 3.0),
    "integers": lambda w: w.data.random_(-2, 3),
    "exponential": lambda w: w.data.exponential_(3.0),
    "cauchy": lambda w: w.data.cauchy_(1.0, 0.2).clamp_(-1.0, 3.0),
    "log normal": lambda w: w.data.log_normal_(0.5, 0.3),
    "by hand": lambda w: w.data.uniform_(-0.9, 0.9).erfinv_().mul_(0.3),
}

FIXED: dict[str, Callable[[torch.Tensor], Any]] = {
    "eye": nn.init.eye_,
    "constant": lambda w: nn.init.constant_(w, 0.3),
    "dirac": lambda w: nn.init.dirac_(w.data.view(40, 6, 10)),
    "rows": lambda w: w.data.copy_(torch.linspace(0.0, 1.0, 60)),
}


def drawn(fill: Callable[[torch.Tensor], Any]) -> nn.Module:
    layer = nn.Linear(60, 40)
    fill(layer.weight)
    return layer


def weights(fill: Callable[[torch.Tensor], Any]) -> tuple[Any, list[Any]]:
    """Of PyTorch, and of two keys."""
    model = eh.models.from_torch(lambda: drawn(fill), loss="squared_error", sample=normal(1, 60))
    torch.manual_seed(3)
    keys = (jax.random.key(0), jax.random.key(1))
    return np.asarray(drawn(fill).weight.detach()), [np.asarray(model.init(key)["weight"]) for key in keys]


@pytest.mark.parametrize("name", DRAWN)
def test_weights_are_drawn_as_by_pytorch(name: str) -> None:
    theirs, ours = weights(DRAWN[name])
    assert not np.array_equal(ours[0], ours[1])
    levels = [0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98]
    for other in ours:  # of 2400 numbers, quantiles differ by few hundredths of the spread
        np.testing.assert_allclose(
            np.quantile(other, levels), np.quantile(theirs, levels), atol=0.3 * float(np.std(theirs))
        )


def test_layers_that_are_copied_are_drawn_once() -> None:
    layer = nn.TransformerEncoderLayer
    model = eh.models.from_torch(
        lambda: nn.TransformerEncoder(layer(4, 2, 8), 2, enable_nested_tensor=False),
        loss="squared_error",
        sample=normal(1, 4),
    )
    first, second = model.init(KEY)["layers"].values()
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.parametrize("name", FIXED)
def test_weights_that_are_set_are_those_of_pytorch(name: str) -> None:
    theirs, ours = weights(FIXED[name])
    for other in ours:
        np.testing.assert_allclose(other, theirs, rtol=1e-6)


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
