"""PyTorch modules with BatchNorm: what is measured, trained and exported.

Oracle: PyTorch's own layers and autograd in training mode, on the rows that are inside a batch.
"""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

import evenhand as eh
from evenhand.errors import EvenhandError
from evenhand.types import ClientData

KEY = jax.random.key(0)
RNG = np.random.default_rng(1)
PICTURES = RNG.normal(1.0, 2.0, size=(9, 2, 6, 6)).astype(np.float32)
LABELS = RNG.integers(0, 3, 9)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4, momentum=0.3)
        self.hidden = nn.Linear(64, 5)
        self.last_norm = nn.BatchNorm1d(5, affine=False)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        return self.head(torch.relu(self.last_norm(self.hidden(x))))


def net() -> Net:
    torch.manual_seed(3)
    made = Net()
    with torch.no_grad():  # statistics as of a module that was trained before
        made.norm.running_mean += 0.5
        made.last_norm.running_var *= 2.0
    return made


def model_of(module: Any, state: Any = "average", **options: Any) -> eh.types.Model:
    return eh.models.from_torch(module, loss="cross_entropy", sample=PICTURES[:1], state=state, **options)


MODEL = model_of(net())
STATISTICS = ("last_norm/running_mean", "last_norm/running_var", "norm/running_mean", "norm/running_var")


def state_of(module: nn.Module) -> dict[str, np.ndarray]:
    return {
        name.replace(".", "/"): value.detach().numpy().copy()
        for name, value in module.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }


def named(params: Any) -> dict[str, np.ndarray]:
    return {
        "/".join(jax.tree_util.keystr((key,), simple=True) for key in path): np.asarray(leaf)
        for path, leaf in jax.tree.leaves_with_path(params)
    }


def gap(found: Any, module: nn.Module) -> float:
    flat, own = named(found), state_of(module)
    assert flat.keys() == own.keys()
    return max(float(np.abs(flat[name] - own[name]).max()) for name in own)


def descended(module: nn.Module, rows: slice, lr: float) -> nn.Module:
    """One step of PyTorch's own descent on these rows."""
    module.train()
    loss = nn.functional.cross_entropy(module(torch.tensor(PICTURES[rows])), torch.tensor(LABELS[rows]))
    module.zero_grad()
    loss.backward()
    with torch.no_grad():
        for value in module.parameters():
            value -= lr * value.grad
    return module


def test_the_start_holds_the_statistics_of_the_module() -> None:
    assert MODEL.statistics is not None and sorted(MODEL.statistics.paths) == sorted(STATISTICS)
    assert gap(MODEL.init(KEY), net()) == 0.0


def test_a_step_is_that_of_autograd_on_the_rows_that_are_inside() -> None:
    """A client with seven of nine rows, in a window of nine: gradients and statistics."""
    work = eh.local.sgd(MODEL, 0.1, epochs=3)
    data = ClientData(
        jnp.asarray(PICTURES), jnp.asarray(LABELS), jnp.int32(0), jnp.int32(7), jnp.float32(1.0), 9
    )
    end, _ = work.solve(MODEL.init(KEY), data, KEY, optax.identity())
    module, other = net(), net()
    for _ in range(3):
        descended(module, slice(0, 7), 0.1)
        descended(other, slice(0, 9), 0.1)
    assert gap(end, module) < 1e-5
    assert gap(end, other) > 1e-2


def test_evaluation_is_that_of_the_module_and_outputs_are_exported() -> None:
    module = descended(net(), slice(0, 9), 0.1)
    params = model_of(module).init(KEY)
    with torch.no_grad():
        expected = module.eval()(torch.tensor(PICTURES)).numpy()
    assert np.abs(np.asarray(MODEL.apply(params, jnp.asarray(PICTURES))) - expected).max() < 1e-5
    exported = eh.models.to_torch(net(), params)
    assert gap(params, exported) == 0.0
    with torch.no_grad():
        assert np.abs(exported.eval()(torch.tensor(PICTURES)).numpy() - expected).max() < 1e-6


def test_a_function_draws_weights_and_begins_with_fresh_statistics() -> None:
    params = named(model_of(Net).init(jax.random.key(1)))
    assert (params["norm/running_mean"] == 0).all() and (params["norm/running_var"] == 1).all()
    assert (params["conv/weight"] != named(model_of(Net).init(jax.random.key(2)))["conv/weight"]).any()


@pytest.mark.filterwarnings("ignore:The model is no better than a guess")
def test_statistics_are_averaged_or_stay() -> None:
    split = eh.data.Split(PICTURES, LABELS, np.array([0, 4, 9]))
    data = eh.data.FederatedDataset(
        split, eh.data.Split(PICTURES[:0], LABELS[:0], np.zeros(3, int)), split, ("a", "b")
    )
    ends = [descended(net(), slice(0, 4), 0.1), descended(net(), slice(4, 9), 0.1)]
    states = [state_of(end) for end in ends]
    mean = {name: np.average([state[name] for state in states], axis=0, weights=[4, 5]) for name in states[0]}
    runs = {
        state: eh.simulate(
            eh.algorithms.fedavg(eh.local.sgd(model_of(net(), state), 0.1, epochs=1)), data, rounds=1
        )
        for state in ("average", "local")
    }
    flat = named(runs["average"].params)
    assert max(np.abs(flat[name] - mean[name]).max() for name in mean) < 1e-5
    for k in (0, 1):
        flat = named(runs["local"].personal_params(k))
        expected = mean | {name: states[k][name] for name in STATISTICS}
        assert max(np.abs(flat[name] - expected[name]).max() for name in mean) < 1e-5
    sent = {state: run.info["floats"]["up"] for state, run in runs.items()}
    assert sent["average"] - sent["local"] == 2 * 4 + 2 * 5
    fedbn = eh.personalization.fedbn(eh.local.sgd(model_of(net(), "local"), 0.1, epochs=1))
    assert eh.simulate(fedbn, data, rounds=1).info["floats"]["up"] == sent["local"] - 2 * 4


def test_frozen_layers_measure_and_others_of_their_kind_are_as_in_pytorch() -> None:
    frozen = model_of(net(), frozen=("conv", "norm"))
    assert set(named(frozen.init(KEY))) == {
        *STATISTICS, "hidden/weight", "hidden/bias", "head/weight", "head/bias",
    }  # fmt: skip


class Kept(Net):
    """The first normalisation stays in evaluation, as of a backbone that is frozen."""

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.norm.eval()
        return self


def test_a_layer_that_stays_in_evaluation_has_constants() -> None:
    torch.manual_seed(3)
    module = Kept()
    with torch.no_grad():
        module.norm.running_mean += 0.5
    model = model_of(module)
    assert model.statistics is not None
    assert set(model.statistics.paths) == {"last_norm/running_mean", "last_norm/running_var"}
    data = ClientData(
        jnp.asarray(PICTURES), jnp.asarray(LABELS), jnp.int32(0), jnp.int32(7), jnp.float32(1.0), 9
    )
    end, _ = eh.local.sgd(model, 0.1, epochs=1).solve(model.init(KEY), data, KEY, optax.identity())
    expected, flat = state_of(descended(copy.deepcopy(module), slice(0, 7), 0.1)), named(end)
    assert set(expected) - set(flat) == {"norm/running_mean", "norm/running_var"}
    assert max(float(np.abs(flat[name] - expected[name]).max()) for name in flat) < 1e-5
    only = nn.Sequential(nn.Flatten(), Still(72), nn.Linear(72, 3))
    assert model_of(only, "refuse").statistics is None


class Still(nn.BatchNorm1d):
    def train(self, mode: bool = True) -> Any:
        return super().train(False)


def no_momentum() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 3), nn.BatchNorm1d(3, momentum=None))


def no_statistics() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 3), nn.BatchNorm1d(3, track_running_stats=False))


@pytest.mark.parametrize(
    ("make", "state", "words"),
    [
        (net, "refuse", 'statistics in norm: .*state="local" keeps them .*state="average" averages'),
        (net, "both", r"from_torch\(state='both'\): give one of"),
        (no_momentum, "average", "2 has momentum=None.*give a number"),
        (no_momentum, "refuse", "running statistics in 2: .*say what becomes of them"),
        (lambda: nn.Sequential(nn.Flatten(), nn.LazyBatchNorm1d()), "average", "has a lazy layer, whose 1.weight"),
        (no_statistics, "average", "normalises by the batch in evaluation"),
        (no_statistics, "refuse", "normalises by the batch in evaluation"),
        (lambda: nn.Sequential(nn.InstanceNorm2d(2, track_running_stats=True), nn.Flatten(), nn.Linear(72, 3)),
         "average", "running statistics in 0: "),
    ],
    ids=["choice", "word", "momentum", "momentum, refuse", "lazy", "none", "none, refuse", "instances"],
)  # fmt: skip
def test_what_cannot_be_trained_is_refused_in_a_sentence(make: Any, state: Any, words: str) -> None:
    with pytest.raises(EvenhandError, match=words):
        model_of(make(), state)


def test_the_module_itself_is_not_changed() -> None:
    module = net()
    before = copy.deepcopy(module.state_dict())
    model = model_of(module)
    eh.local.sgd(model, 0.1, epochs=1)
    assert all((value == before[name]).all() for name, value in module.state_dict().items())
