"""Models from PyTorch modules: the numbers of autograd, weights in and out, training by every kind of method.

Oracles: PyTorch's own forward pass and autograd on the same weights; for training, the same network written in JAX.
"""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

import evenhand as eh
from evenhand.errors import EvenhandError

KEY = jax.random.key(0)
# PyTorch says that projections are slow on this machine.
pytestmark = [
    pytest.mark.filterwarnings("ignore:LSTM with projections"),
    pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated"),
]


# --- modules ---------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(2, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(2, outputs)
        self.skip = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.skip(x))


class ResNet8(nn.Module):
    """Three blocks, as in He et al. 2016 with n = 1, and group normalisation."""

    def __init__(self, width: int = 4, classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(
            Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2)
        )
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


class Reader(nn.Module):
    """A recurrent layer whose last step is classified."""

    def __init__(self, kind: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        options = {"batch_first": True, **options}
        self.rnn = kind(5, 6, 2, **options)
        width = (options.get("proj_size") or 6) * (2 if options.get("bidirectional") else 1)
        self.time_first, self.head = not options["batch_first"], nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.rnn(x.transpose(0, 1) if self.time_first else x)
        return self.head(outputs[-1] if self.time_first else outputs[:, -1])


class Ends(nn.Module):
    """Reads the last states, and begins from a state that is learnt."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.rnn, self.head = kind(5, 6, batch_first=True), nn.Linear(6, 3)
        self.start = nn.Parameter(torch.full((1, 1, 6), 0.3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start = self.start.expand(1, len(x), 6).contiguous()
        _, end = self.rnn(x, (start, 2 * start) if isinstance(self.rnn, nn.LSTM) else start)
        return self.head(end[1][0] if isinstance(end, tuple) else end[0])


class Encoder(nn.Module):
    """A transformer with a causal mask that PyTorch computes, and positions in a buffer."""

    positions: torch.Tensor

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.register_buffer("positions", torch.linspace(-1, 1, 6 * 8).reshape(6, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        return self.head(self.encoder(self.embedding(x) + self.positions[: x.size(1)], mask=mask).mean(1))


class Tied(nn.Module):
    """One matrix for inputs and outputs, einsum, and constants made in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(3, 8), nn.Linear(8, 3, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        summed = self.embedding(x).sum(1) * torch.tensor(0.5)
        return torch.einsum("bd,cd->bc", summed, self.output.weight) + torch.arange(3)


def mlp(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def tokens(most: int) -> torch.Tensor:
    return torch.randint(0, most, (4, 6), generator=torch.Generator().manual_seed(1))


Y = torch.tensor([0, 2, 1, 2])
MODULES: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "mlp": (mlp, normal(4, 4)),
    "resnet8": (ResNet8, normal(4, 3, 8, 8)),
    "lstm": (lambda: Reader(nn.LSTM), normal(4, 7, 5)),
    "lstm both ways": (lambda: Reader(nn.LSTM, bidirectional=True), normal(4, 7, 5)),
    "lstm without biases": (lambda: Reader(nn.LSTM, bias=False, batch_first=False), normal(4, 7, 5)),
    # Outputs are projected, which is another loop.
    "lstm with projections": (lambda: Reader(nn.LSTM, proj_size=3), normal(4, 7, 5)),
    "lstm from a state": (lambda: Ends(nn.LSTM), normal(4, 7, 5)),
    "gru": (lambda: Reader(nn.GRU), normal(4, 7, 5)),
    "gru both ways": (lambda: Reader(nn.GRU, bidirectional=True, batch_first=False), normal(4, 7, 5)),
    "gru from a state": (lambda: Ends(nn.GRU), normal(4, 7, 5)),
    "encoder": (Encoder, tokens(11)),
    "tied": (Tied, tokens(3)),
}


def made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return make()


def array(tensor: torch.Tensor) -> jax.Array:
    values = tensor.detach().numpy()
    return jnp.asarray(values.astype(np.int32) if values.dtype == np.int64 else values)


def flat(params: Any) -> dict[str, np.ndarray]:
    paths = jax.tree_util.tree_flatten_with_path(params)[0]
    return {".".join(part.key for part in path): np.asarray(value) for path, value in paths}


# --- the numbers of PyTorch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_outputs_and_gradients_are_those_of_autograd(name: str) -> None:
    make, x = MODULES[name]
    module = made(make)
    model = eh.models.from_torch(module, loss="cross_entropy", sample=x)
    params = model.init(KEY)
    outputs = module.eval()(x)
    nn.functional.cross_entropy(outputs, Y).backward()
    gradients = {
        path: value.grad.numpy() for path, value in module.named_parameters() if value.grad is not None
    }
    largest = max(np.abs(value).max() for value in gradients.values())

    def loss(params: Any) -> jax.Array:
        return jnp.mean(model.losses(model.apply(params, array(x)), array(Y)))

    ours = flat(jax.jit(jax.grad(loss))(params))
    assert np.allclose(jax.jit(model.apply)(params, array(x)), outputs.detach().numpy(), atol=1e-5)
    assert ours.keys() == gradients.keys() and largest > 1e-3
    for path, value in gradients.items():
        assert np.abs(ours[path] - value).max() < 1e-5 * largest, path


@pytest.mark.parametrize("name", ["mlp", "resnet8", "lstm", "encoder"])
def test_gradients_of_single_examples_are_those_of_autograd(name: str) -> None:
    make, x = MODULES[name]
    module = made(make).eval()
    model = eh.models.from_torch(module, loss="cross_entropy", sample=x)

    def loss(params: Any, row: jax.Array, label: jax.Array) -> jax.Array:
        return model.losses(model.apply(params, row[None]), label[None])[0]

    by_example = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)))(model.init(KEY), array(x), array(Y))
    for i in (0, 3):
        module.zero_grad()
        nn.functional.cross_entropy(module(x[i : i + 1]), Y[i : i + 1]).backward()
        for path, value in module.named_parameters():
            assert value.grad is not None
            assert np.allclose(flat(by_example)[path][i], value.grad.numpy(), atol=1e-5), path


def test_a_recurrent_layer_is_a_loop_whatever_the_length() -> None:
    model = eh.models.from_torch(made(lambda: Reader(nn.LSTM)), loss="cross_entropy", sample=normal(1, 7, 5))
    params = model.init(KEY)
    sizes = [
        str(jax.make_jaxpr(model.apply)(params, jnp.zeros((2, steps, 5)))).count("\n") for steps in (4, 40)
    ]
    assert sizes[0] == sizes[1]


# --- training and evaluation -------------------------------------------------------------------------------------


def test_dropout_draws_from_the_key_of_the_step_and_is_off_in_evaluation() -> None:
    module = nn.Sequential(nn.Dropout(0.25), nn.Linear(2000, 1, bias=False))
    nn.init.ones_(module[1].weight)
    model = eh.models.from_torch(module, loss="squared_error", sample=torch.zeros(1, 2000))
    params, x = model.init(KEY), jnp.ones((3, 2000))
    assert model.apply_train is not None
    assert np.allclose(model.apply(params, x), 2000)
    once, again, other = (model.apply_train(params, x, jax.random.key(seed)) for seed in (1, 1, 2))
    assert np.array_equal(once, again) and not np.array_equal(once, other)
    # A sum of 2,000 numbers that are 4/3 with probability 3/4 has a standard deviation of 26; no two rows are alike.
    assert np.all(np.abs(np.asarray(once) - 2000) < 5 * 26) and len(np.unique(once)) == 3


def test_dropout_between_recurrent_layers_is_scaled() -> None:
    """The mean over masks is near the output without dropout, which it would not be if what is kept stayed as it is."""
    module = Reader(nn.GRU, dropout=0.5)
    model = eh.models.from_torch(module, loss="cross_entropy", sample=normal(1, 7, 5))
    assert model.apply_train is not None
    params, x = model.init(KEY), array(normal(4, 7, 5))
    keys = jax.random.split(KEY, 400)
    trained = np.asarray(jax.jit(jax.vmap(model.apply_train, in_axes=(None, None, 0)))(params, x, keys))
    assert np.abs(trained[0] - trained[1]).max() > 0.01
    halved = {**params, "rnn": {**params["rnn"], "weight_ih_l1": 0.5 * params["rnn"]["weight_ih_l1"]}}
    error, otherwise = (
        np.abs(trained.mean(0) - model.apply(weights, x)).max() for weights in (params, halved)
    )
    assert error < 0.03 and error < otherwise / 3


def test_without_dropout_training_is_evaluation() -> None:
    assert eh.models.from_torch(mlp(0.0), loss="cross_entropy", sample=normal(1, 4)).apply_train is None
    assert eh.models.from_torch(mlp(0.1), loss="cross_entropy", sample=normal(1, 4)).apply_train is not None


# --- weights in and out ------------------------------------------------------------------------------------------


def test_an_instance_is_the_start_and_is_not_changed() -> None:
    module = made(lambda: mlp(0.1)).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model = eh.models.from_torch(module, loss="cross_entropy", sample=normal(1, 4))
    first, second = (flat(model.init(jax.random.key(seed))) for seed in (0, 1))
    assert all(np.array_equal(first[name], value.numpy()) for name, value in before.items())
    assert all(np.array_equal(first[name], second[name]) for name in first)
    train(model, eh.algorithms.fedavg)
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    with torch.no_grad():
        module[0].weight.zero_()
    assert np.array_equal(flat(model.init(KEY))["0.weight"], before["0.weight"].numpy()), "weights are copied"


def test_a_function_draws_the_weights_from_the_key() -> None:
    model = eh.models.from_torch(
        lambda: nn.Linear(400, 300), loss="cross_entropy", sample=torch.zeros(1, 400)
    )
    first, again, other = (flat(model.init(jax.random.key(seed))) for seed in (0, 0, 1))
    assert np.array_equal(first["weight"], again["weight"]) and not np.allclose(
        first["weight"], other["weight"]
    )
    # PyTorch draws both uniformly between the inverse roots of the inputs.
    bound = 1 / np.sqrt(400)
    for name in ("weight", "bias"):
        assert np.abs(first[name]).max() <= bound
    assert np.std(first["weight"]) == pytest.approx(bound / np.sqrt(3), rel=0.01)
    assert not np.allclose(first["weight"][0, :300], first["bias"])


def test_trained_weights_are_exported() -> None:
    module = made(mlp)
    model = eh.models.from_torch(module, loss="cross_entropy", sample=normal(1, 4))
    run = train(model, eh.algorithms.fedavg)
    other = eh.models.to_torch(mlp(), run.params)
    x = normal(9, 4)
    assert np.allclose(other.eval()(x).detach().numpy(), model.apply(run.params, array(x)), atol=1e-5)
    assert not np.allclose(module.eval()(x).detach().numpy(), model.apply(run.params, array(x)), atol=1e-2)
    module.load_state_dict(other.state_dict())
    assert torch.equal(module(x), other(x))


def test_parameters_without_gradients_are_constants() -> None:
    """As if the features that they make were the data: a frozen first layer below a dense one."""
    module = made(mlp)
    module[0].requires_grad_(False)
    model = eh.models.from_torch(module, loss="cross_entropy", sample=normal(1, 4))
    assert set(flat(model.init(KEY))) == {"3.weight", "3.bias"}
    run = train(model, eh.algorithms.fedavg)
    assert run.info["floats"]["up"] == 8 * 3 + 3 + 1, "and a weight"
    data = clients(normal(1, 4))
    features, below = (
        torch.relu(module[0](torch.from_numpy(np.array(x)))).detach().numpy()
        for x in (data.train.x, data.test.x)
    )
    head = eh.models.from_torch(module[3], loss="cross_entropy", sample=normal(1, 8))
    train_part, test_part = data.train._replace(x=features), data.test._replace(x=below)
    valid_part = data.valid._replace(x=np.zeros((0, 8), np.float32))
    alone = eh.data.FederatedDataset(train_part, valid_part, test_part, data.client_ids)
    work = eh.local.sgd(head, 0.1, epochs=1, batch_size=3)
    expected = eh.simulate(eh.algorithms.fedavg(work), alone, rounds=3, cohort=3)
    assert np.allclose(run.params["3"]["weight"], expected.params["weight"], atol=1e-6)
    assert not np.allclose(run.params["3"]["weight"], flat(model.init(KEY))["3.weight"], atol=1e-3)
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    exported = eh.models.to_torch(module, run.params)
    assert torch.equal(exported[0].weight, weights["0.weight"])
    assert not torch.equal(exported[3].weight, weights["3.weight"])


def test_frozen_parameters_are_those_of_the_module() -> None:
    """As if they did not require gradients; thawed, they are exported with the others."""
    module = made(mlp)
    model = eh.models.from_torch(module, loss="cross_entropy", sample=normal(1, 4), frozen="0")
    run = train(model, eh.algorithms.fedavg)
    exported = eh.models.to_torch(mlp(), eh.models.thaw(model, run.params))
    assert torch.equal(exported[0].weight, module[0].weight)
    module[0].requires_grad_(False)
    other = train(
        eh.models.from_torch(module, loss="cross_entropy", sample=normal(1, 4)), eh.algorithms.fedavg
    )
    assert np.array_equal(run.params["3"]["weight"], other.params["3"]["weight"])
    assert not torch.equal(exported[3].weight, module[3].weight)
    with pytest.raises(
        EvenhandError, match="the parameters are drawn from a key, so there are no values to keep"
    ):
        eh.models.from_torch(mlp, loss="cross_entropy", sample=normal(1, 4), frozen="0")


def test_the_examples_of_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are skipped where PyTorch is missing, as it is where all other examples are tested."""
    monkeypatch.chdir(tmp_path)  # one of them writes a file
    for function in (eh.models.from_torch, eh.models.to_torch):
        text = (function.__doc__ or "").replace("  # doctest: +SKIP", "")
        run = train(
            eh.models.from_torch(mlp(), loss="cross_entropy", sample=normal(1, 4)), eh.algorithms.fedavg
        )
        names = {"torch": torch, "models": eh.models, "net": mlp(), "run": run}
        example = doctest.DocTestParser().get_doctest(text, names, function.__name__, None, 0)
        assert len(example.examples) >= 2
        assert doctest.DocTestRunner().run(example).failed == 0


def test_parameters_of_another_module_are_refused() -> None:
    params = eh.models.from_torch(mlp(), loss="cross_entropy", sample=normal(1, 4)).init(KEY)
    with pytest.raises(EvenhandError, match=r"only the module has 1\.bias"):
        eh.models.to_torch(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), params)
    wide = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Dropout(), nn.Linear(9, 3))
    with pytest.raises(
        EvenhandError, match=r"0\.weight has shape \(9, 4\) in Sequential and \(8, 4\) in params"
    ):
        eh.models.to_torch(wide, params)


# --- federated ---------------------------------------------------------------------------------------------------


def clients(x: torch.Tensor, count: int = 4) -> eh.data.FederatedDataset:
    """Clients with twelve examples each of the shape of ``x``, whose labels depend on the inputs."""
    rng = np.random.default_rng(0)
    shape = (12 * count, *x.shape[1:])
    if x.dtype.is_floating_point:
        rows = rng.normal(size=shape).astype(np.float32)
    else:
        rows = rng.integers(0, int(x.max()) + 1, shape).astype(np.int32)
    labels = np.digitize(
        rows.reshape(len(rows), -1).mean(1), np.quantile(rows.reshape(len(rows), -1).mean(1), [0.3, 0.7])
    )
    return eh.data.from_arrays(
        rows, labels.astype(np.int32), np.repeat(np.arange(count), 12), test_fraction=0.25
    )


def train(
    model: eh.types.Model, method: Callable[..., eh.types.Algorithm], rounds: int = 3
) -> eh.simulation.Run:
    work = eh.local.sgd(model, 0.1, epochs=1, batch_size=3)
    return eh.simulate(method(work), clients(normal(1, 4)), rounds=rounds, cohort=3)


def test_training_is_that_of_the_same_network_in_jax() -> None:
    model = eh.models.from_torch(made(mlp), loss="cross_entropy", sample=normal(1, 4))

    def apply(params: Any, x: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(x @ params["0"]["weight"].T + params["0"]["bias"][None])
        return hidden @ params["3"]["weight"].T + params["3"]["bias"][None]

    twin = eh.models.from_functions(
        model.init, apply, eh.models.cross_entropy, {"accuracy": eh.models.accuracy}
    )
    ours, theirs = (train(each, eh.algorithms.fedavg, rounds=5) for each in (model, twin))
    assert ours.summary() == theirs.summary()
    start = flat(model.init(KEY))
    for path, value in flat(ours.params).items():
        assert np.allclose(value, flat(theirs.params)[path], atol=1e-6), path
        assert not np.allclose(value, start[path], atol=1e-3), path


# The documentation's page, which is tested too, trains each network in both ways.
@pytest.mark.parametrize(("name", "kind"), [("lstm", "dp_sgd"), ("encoder", "ditto")])
@pytest.mark.filterwarnings("ignore::evenhand.errors.EvenhandWarning")
def test_networks_train_privately_and_personally(name: str, kind: str) -> None:
    make, x = MODULES[name]
    model = eh.models.from_torch(made(make), loss="cross_entropy", sample=x)
    if kind == "dp_sgd":
        work = eh.privacy.dp_sgd(model, 0.1, clip=1.0, noise_multiplier=0.5, rate=0.3, steps=2)
        method = eh.algorithms.fedavg(work)
    else:
        work = eh.local.sgd(model, 0.05, epochs=1, batch_size=3)
        method = eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=0.1)
    run = eh.simulate(method, clients(x), rounds=2)
    assert np.isfinite(run.history["train_loss"]).all()
    assert (run.privacy is not None) == (kind == "dp_sgd")
    exported = eh.models.to_torch(made(make), run.personal_params(0)).eval()
    assert np.allclose(exported(x).detach().numpy(), model.apply(run.personal_params(0), array(x)), atol=1e-5)


def test_parts_of_a_module_are_personal_by_their_names() -> None:
    model = eh.models.from_torch(made(ResNet8), loss="cross_entropy", sample=normal(1, 3, 8, 8))
    work = eh.local.sgd(model, 0.1, epochs=1, batch_size=3)
    run = eh.simulate(eh.personalization.fedalt(work, personal="head"), clients(normal(1, 3, 8, 8)), rounds=2)
    first, second = (flat(run.personal_params(k)) for k in (0, 1))
    differing = {name for name in first if not np.array_equal(first[name], second[name])}
    assert differing == {"head.weight", "head.bias"}


# --- what is refused ---------------------------------------------------------------------------------------------


class Moving(nn.Module):
    """Changes a buffer in training."""

    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.average.mul_(0.9).add_(0.1 * x.mean(0))
        return self.inner(x - self.average)


class Packed(Reader):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = torch.full((x.size(0),), x.size(1))
        _, (end, _) = self.rnn(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))
        return self.head(end[0])


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).sum(0)


class Flipped(torch.autograd.Function):
    """The identity, with the opposite gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return -grads[0]


class Through(nn.Module):
    """A linear layer, and what a function makes of its outputs."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.function = nn.Linear(4, 3), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.inner(x))


def hooked(x: torch.Tensor) -> torch.Tensor:
    x.register_hook(lambda grad: -grad)
    return x


def with_hook() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 3))
    module[0].register_full_backward_hook(lambda module, before, after: before)
    return module


def parallel() -> nn.Module:
    module = nn.DataParallel.__new__(nn.DataParallel)  # its __init__ looks for GPUs
    nn.Module.__init__(module)
    return module


def scripted() -> nn.Module:
    return torch.jit.ScriptModule()


VALUES = "asks for the values of its inputs in forward(), as .item()"
REFUSED: dict[str, tuple[Any, torch.Tensor, str]] = {
    "a gradient of its own": (
        *(lambda: Through(Flipped.apply), normal(1, 4)),
        "uses the torch.autograd.Function Flipped, whose backward() JAX would not call",
    ),
    "a hook": (lambda: Through(hooked), normal(1, 4), "registers a hook on a gradient"),
    "a backward hook": (with_hook, normal(1, 4), "whose part 0 has backward hooks"),
    "dropout in evaluation": (
        *(lambda: Through(lambda x: nn.functional.dropout(x, 0.5)), normal(1, 4)),
        "Through draws random numbers in evaluation: give training=self.training",
    ),
    "noise in evaluation": (
        *(lambda: Through(lambda x: x + torch.randn_like(x)), normal(1, 4)),
        "Through draws random numbers in evaluation",
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
        normal(1, 4),
        "running statistics in 1: ",
    ),
    "instance norm": (
        *(
            lambda: nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True, affine=True)),
            normal(1, 2, 4),
        ),
        "running statistics in 0: ",
    ),
    "a moving average": (Moving, normal(1, 4), "Moving keeps running statistics in average: "),
    "gradients by frequency": (
        *(
            lambda: nn.Sequential(nn.Embedding(9, 2, scale_grad_by_freq=True)),
            torch.zeros(1, 3, dtype=torch.long),
        ),
        "whose embedding 0 has scale_grad_by_freq=True",
    ),
    "a computed tensor": (
        *(lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3))), normal(1, 4)),
        "take torch.nn.utils.parametrizations.weight_norm",
    ),
    "orthogonal weights drawn": (
        *(lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 3)), normal(1, 4)),
        "drawn by an operation that torchax lacks",
    ),
    "no parameters": (nn.ReLU, normal(1, 4), "ReLU, which has no parameters that require gradients"),
    "no module": (
        lambda: lambda x: x,
        normal(1, 4),
        "must return a torch.nn.Module, but it returned function",
    ),
    "a class with arguments": (lambda: ResNet8, normal(1, 4), "it returned type"),
    "one output": (Sum, normal(1, 4), "must have rows first"),
    "a number": (mlp, torch.tensor(1.0), "sample must have rows first"),
    "an item": (lambda: Through(lambda x: x * x.mean().item()), normal(1, 4), f"Through {VALUES}"),
    "a branch": (lambda: Through(lambda x: x if x.mean() > 0 else 2 * x), normal(1, 4), VALUES),
    "chosen rows": (lambda: Through(lambda x: x[x[:, 0] > 0]), normal(1, 4), VALUES),
    "arrays of NumPy": (lambda: Through(lambda x: torch.from_numpy(x.numpy())), normal(1, 4), VALUES),
    "a bag": (lambda: nn.EmbeddingBag(9, 2), torch.zeros(1, 3, dtype=torch.long), VALUES),
    "another width": (
        mlp,
        normal(1, 7),
        "Sequential fails on inputs float32[2, 7], two rows like the sample (",
    ),
    "two inputs": (lambda: nn.Bilinear(4, 4, 2), normal(1, 4), "which is one array and nothing else"),
    "a text": (mlp, cast("Any", "x"), "from_torch(sample='x'): give an array of inputs"),
    "spread over devices": (parallel, normal(1, 4), "give the module inside it, model.module"),
    "compiled": (scripted, normal(1, 4), "a module of torch.jit"),
    "packed": (
        lambda: Packed(nn.LSTM),
        normal(1, 7, 5),
        "aten::_pack_padded_sequence has no lowering. Replace",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_work_is_refused_in_a_sentence(name: str) -> None:
    make, sample, words = REFUSED[name]
    with pytest.raises(EvenhandError) as caught:
        eh.models.from_torch(make, loss="cross_entropy", sample=sample)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        factor = torch.tanh(x)
        shift = torch.zeros_like(x).add_(0.5)
    return x * factor + shift


def test_what_is_computed_without_gradients_is_a_constant() -> None:
    module, x = Through(without_gradients), normal(5, 4)
    model = eh.models.from_torch(module, loss="cross_entropy", sample=x[:1])
    labels = torch.tensor([0, 1, 2, 0, 1])
    nn.functional.cross_entropy(module(x), labels).backward()
    rows, y = array(x), array(labels)

    def loss(params: Any) -> jax.Array:
        return jnp.mean(model.losses(model.apply(params, rows), y))

    found = flat(jax.grad(loss)(model.init(KEY)))
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(found[name], parameter.grad, rtol=1e-5, atol=1e-6)
    differentiated = Through(lambda x: x * torch.tanh(x) + 0.5)
    differentiated.load_state_dict(module.state_dict())
    nn.functional.cross_entropy(differentiated(x), labels).backward()
    assert not np.allclose(found["inner.weight"], differentiated.inner.weight.grad, rtol=0.1)


@pytest.mark.parametrize("sizes", [(), (5,), (3, 5), (2, 3, 2)])
@pytest.mark.parametrize("affine", [True, False])
def test_groups_of_channels_are_normalised_whatever_comes_after_them(
    sizes: tuple[int, ...], affine: bool
) -> None:
    norm = nn.GroupNorm(2, 6, eps=0.1, affine=affine)
    module, x = nn.Sequential(nn.Identity(), norm, nn.Flatten(), nn.LazyLinear(3)), normal(4, 6, *sizes)
    module(x)
    if affine:
        norm.load_state_dict({"weight": normal(6), "bias": normal(6) + 1})
    model = eh.models.from_torch(module, loss="cross_entropy", sample=x[:1])
    with torch.no_grad():
        expected = module(x)
    np.testing.assert_allclose(model.apply(model.init(KEY), array(x)), expected, rtol=1e-5, atol=1e-5)


def test_losses_of_pytorch_are_refused() -> None:
    for loss in (nn.CrossEntropyLoss(), nn.functional.cross_entropy, nn.CrossEntropyLoss):
        wrong: Any = loss
        with pytest.raises(
            EvenhandError, match=r'a loss of PyTorch .* name it, such as loss="cross_entropy"'
        ):
            eh.models.from_torch(mlp(), loss=wrong, sample=normal(1, 4))


def test_a_residual_network_is_exported() -> None:
    model = eh.models.from_torch(ResNet8, loss="cross_entropy", sample=MODULES["resnet8"][1][:1])
    params, images = model.init(KEY), MODULES["resnet8"][1]
    exported = eh.models.to_torch(ResNet8(), params).eval()
    with torch.no_grad():
        outputs = exported(images)
    np.testing.assert_allclose(model.apply(params, array(images)), outputs, rtol=1e-5, atol=1e-5)


def test_what_is_no_module_or_no_parameters_is_not_exported() -> None:
    params: Any = eh.models.from_torch(mlp(), loss="cross_entropy", sample=normal(1, 4)).init(KEY)
    wrong: Any
    for wrong, given in ((params, mlp()), (mlp, params), (mlp(), None)):
        with pytest.raises(EvenhandError, match=r"in this order, not \w+ and \w+\."):
            eh.models.to_torch(wrong, given)


def test_other_values_are_no_modules() -> None:
    wrong: Any = np.zeros(3)
    with pytest.raises(EvenhandError, match=r"takes a torch\.nn\.Module or a function that makes one"):
        eh.models.from_torch(wrong, loss="cross_entropy", sample=normal(1, 4))
    with pytest.raises(EvenhandError, match="calls the function that makes the module without arguments"):
        eh.models.from_torch(nn.Linear, loss="cross_entropy", sample=normal(1, 4))


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the versions go together")
def test_versions_that_do_not_go_together_are_named_both_times() -> None:
    program = """
import evenhand as eh, torch
for _ in range(2):
    try:
        eh.models.from_torch(torch.nn.Linear(2, 1), loss="squared_error", sample=torch.zeros(1, 2))
    except eh.errors.EvenhandError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ)
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    for line in lines:
        assert "torchax 0.0.13 does not work with PyTorch 2.13" in line and "pip install 'torch<2.13'" in line


def test_attention_of_pytorch_gets_factors_and_comes_back_as_a_module() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.head = torch.nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            return self.head(self.encoder(x).mean(dim=1))

    module, x = Net(), normal(6, 5, 8)
    model = eh.models.from_torch(module, loss="cross_entropy", sample=x[:1])
    small = eh.models.lora(model, model.init(jax.random.key(0)), rank=2, also="head")
    params = small.init(jax.random.key(0))
    attention = params["encoder"]["self_attn"]
    assert attention["in_proj_weight"]["a"].shape == (2, 8)
    assert attention["in_proj_weight"]["b"].shape == (24, 2)
    assert set(params) == {"encoder", "head"} and set(params["encoder"]) == {"self_attn"}
    params = jax.tree.map(lambda leaf: leaf + 0.1, params)
    exported = eh.models.to_torch(Net(), eh.models.thaw(small, params)).eval()
    with torch.no_grad():
        outputs = exported(x).numpy()
    np.testing.assert_allclose(outputs, small.apply(params, jnp.asarray(x.numpy())), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        before = module.eval()(x).numpy()
    assert np.abs(outputs - before).max() > 0.01
