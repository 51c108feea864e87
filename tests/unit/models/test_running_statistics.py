"""Models whose training measures running statistics: what is measured, what becomes of it, and who refuses it.

Oracle: a network with batch normalisation in NumPy, in double precision, with its gradient worked out by hand, on
batches whose rows the schedule itself names, so that the rows that pad a batch are not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import evenhand as eh
from evenhand import models
from evenhand.errors import EvenhandError
from evenhand.types import Algorithm, ClientData, Model

KEY = jax.random.key(5)
RNG = np.random.default_rng(3)
SIZES = (9, 5, 14)
X = (RNG.normal(size=(sum(SIZES), 4)) * [1.0, 3.0, 0.5, 2.0] + [0.0, 2.0, -1.0, 0.5]).astype(np.float32)
Y = RNG.normal(size=sum(SIZES)).astype(np.float32)
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])
LR, MOMENTUM, EPSILON = 0.05, 0.8, 1e-3
# As in a simulation: optax mixes types.
pytestmark = [
    pytest.mark.usefixtures("mixed_types"),
    # Two rounds teach nothing here; they are compared with NumPy.
    pytest.mark.filterwarnings("ignore:The model is no better than a guess"),
]

SCHEDULE: dict[str, Any] = {"epochs": 2, "batch_size": 4}

Named = dict[str, np.ndarray]


def squares(outputs: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.square(outputs[:, 0] - y)


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        z = nn.Dense(3, use_bias=False, name="first")(x)
        z = nn.BatchNorm(not train, momentum=MOMENTUM, epsilon=EPSILON, use_fast_variance=False, name="norm")(
            z
        )
        return nn.Dense(1, use_bias=False, name="last")(z)


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(4, 3, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(3, momentum=MOMENTUM, epsilon=EPSILON, use_fast_variance=False, rngs=rngs)
        self.last = nnx.Linear(3, 1, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(self.norm(self.first(x)))


KINDS: dict[str, Any] = {
    "linen": Linen(),
    "nnx": Nnx(nnx.Rngs(2)),
    "nnx, drawn": lambda rngs: Nnx(rngs),
}


def model_of(kind: str = "linen", state: Any = "average") -> Model:
    return models.from_flax(KINDS[kind], loss=squares, sample=X[:1], state=state)


AVERAGE, LOCAL = model_of(), model_of(state="local")
WORK, KEPT = (eh.local.sgd(model, LR, **SCHEDULE) for model in (AVERAGE, LOCAL))
START = AVERAGE.init(jax.random.key(1))


def data() -> eh.data.FederatedDataset:
    split = eh.data.Split(X, Y, OFFSETS)
    none = eh.data.Split(X[:0], Y[:0], np.zeros(4, np.int64))
    return eh.data.FederatedDataset(split, none, split, ("a", "b", "c"))


@pytest.fixture
def mixed_types() -> Iterator[None]:
    with jax.numpy_dtype_promotion("standard"):
        yield


# --- the oracle -------------------------------------------------------------------------------------------------------


def named(params: Any) -> Named:
    """Parameters in double precision, by path."""
    pairs = jax.tree.leaves_with_path(params)
    return {
        "/".join(jax.tree_util.keystr((key,), simple=True) for key in path): np.asarray(leaf, np.float64)
        for path, leaf in pairs
    }


def nested(flat: Mapping[str, np.ndarray]) -> Any:
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        layer, leaf_name = path.split("/")
        tree.setdefault(layer, {})[leaf_name] = jnp.asarray(leaf, jnp.float32)
    return tree


def step(w: Named, rows: np.ndarray, lr: float = LR, counted: np.ndarray | None = None) -> Named:
    """One step of descent on these rows; the statistics are those of the rows that are ``counted``."""
    x, y, n = X[rows].astype(np.float64), Y[rows].astype(np.float64), len(rows)
    z = x @ w["first/kernel"]
    of = z if counted is None else X[counted].astype(np.float64) @ w["first/kernel"]
    mean, var = of.mean(0), of.var(0)
    root = np.sqrt(var + EPSILON)
    unit = (z - mean) / root
    normed = unit * w["norm/scale"] + w["norm/bias"]
    slope = 2.0 * ((normed @ w["last/kernel"])[:, 0] - y)[:, None] / n
    into = slope @ w["last/kernel"].T
    along = into * w["norm/scale"]
    # What a row does through the mean and the variance that it is in comes off.
    back = (along - along.mean(0) - unit * (along * unit).mean(0)) / root
    gradient = {
        "first/kernel": x.T @ back,
        "norm/scale": (into * unit).sum(0),
        "norm/bias": into.sum(0),
        "last/kernel": normed.T @ slope,
    }
    after = {name: w[name] - lr * leaf for name, leaf in gradient.items()}
    for name, value in (("norm/mean", mean), ("norm/var", var)):
        after[name] = MOMENTUM * w[name] + (1 - MOMENTUM) * value
    return after


def client(k: int) -> ClientData:
    whole = jnp.asarray(X), jnp.asarray(Y)
    return ClientData(*whole, jnp.int32(OFFSETS[k]), jnp.int32(SIZES[k]), jnp.float32(1.0), max(SIZES))


def batches(k: int, key: jax.Array = KEY) -> list[np.ndarray]:
    """The rows of each batch, those that pad it left out."""
    schedule = eh.local.batches(**SCHEDULE)
    draw, count = schedule.draw(client(k), key), int(schedule.effort(client(k)).steps)
    drawn = [draw(jnp.int32(i)) for i in range(count)]
    return [OFFSETS[k] + np.asarray(one.positions)[np.asarray(one.inside)] for one in drawn]


def trained(w: Named, k: int, lr: float = LR) -> Named:
    for rows in batches(k):
        w = step(w, rows, lr)
    return w


def full(w: Named, k: int) -> Named:
    """A round of three steps on all examples of a client."""
    for _ in range(3):
        w = step(w, np.arange(OFFSETS[k], OFFSETS[k + 1]))
    return w


def averaged(parts: list[Named]) -> Named:
    return {
        name: np.average([part[name] for part in parts], axis=0, weights=SIZES[: len(parts)])
        for name in parts[0]
    }


def gap(found: Any, expected: Named, *names: str) -> float:
    flat = named(found)
    assert flat.keys() == expected.keys()
    return max(float(np.abs(flat[name] - expected[name]).max()) for name in (names or flat))


STATISTICS = ("norm/mean", "norm/var")
LEARNED = ("first/kernel", "norm/scale", "norm/bias", "last/kernel")


# --- what a client measures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_trains_as_in_numpy_on_batches_without_their_padding(kind: str) -> None:
    """Client 1 has five examples: batches of four and of one, in windows of fourteen."""
    work = eh.local.sgd(model_of(kind), LR, **SCHEDULE)
    begin = named(START)
    for k in (0, 1):
        end, _ = work.solve(START, client(k), KEY, optax.identity())
        assert gap(end, trained(begin, k)) < 1e-5
    assert {len(rows) for rows in batches(0)} == {4, 1}
    # A batch of one padded to four with the client's first row would have another mean.
    lone = next(rows for rows in batches(0) if len(rows) == 1)
    padded = np.concatenate([lone, np.repeat(OFFSETS[0], 3)])
    assert (
        np.abs(step(begin, lone, counted=padded)["norm/mean"] - step(begin, lone)["norm/mean"]).max() > 0.01
    )


def test_full_batches_leave_out_the_rows_of_other_clients() -> None:
    """The window of a client without batches is as long as that of the largest one."""
    work = eh.local.sgd(AVERAGE, LR, epochs=3)
    end, _ = work.solve(START, client(1), KEY, optax.identity())
    assert gap(end, full(named(START), 1)) < 1e-5


@pytest.mark.parametrize(
    "rule",
    [
        optax.sgd(LR, momentum=0.9, nesterov=True),
        optax.adamw(0.1, weight_decay=0.5),
        optax.chain(optax.clip_by_global_norm(1e-3), optax.sgd(1.0)),
    ],
    ids=["momentum", "weight decay", "clip"],
)
def test_optimisers_and_corrections_do_not_touch_what_is_measured(rule: optax.GradientTransformation) -> None:
    """One step from one point measures the same, whatever the optimiser and the correction make of the gradient."""
    far = jax.tree.map(lambda leaf: leaf + 10.0, START)
    expected = step(named(START), np.arange(OFFSETS[2], OFFSETS[3]))
    for client_opt, correction in (
        (rule, optax.identity()),
        (LR, eh.local.proximal(5.0, far)),
        (LR, eh.local.shift(far)),
    ):
        work = eh.local.sgd(AVERAGE, client_opt, epochs=1)
        end, _ = work.solve(START, client(2), KEY, correction)
        assert gap(end, expected, *STATISTICS) < 1e-5
        assert gap(end, expected, *LEARNED) > 1e-4  # what is learned differs


def test_an_optimiser_sees_the_gradients_of_what_is_learned_only() -> None:
    """A clip of the norm cuts to its length in all that is learned, whatever the statistics move by."""
    length = 1e-2
    clip = optax.chain(optax.clip_by_global_norm(length), optax.sgd(1.0))
    end, _ = eh.local.sgd(AVERAGE, clip, epochs=1).solve(START, client(2), KEY, optax.identity())
    before, after = named(START), named(end)
    moved = {name: np.sum(np.square(after[name] - before[name])) for name in before}
    assert abs(np.sqrt(sum(moved[name] for name in LEARNED)) / length - 1) < 1e-3
    assert np.sqrt(sum(moved[name] for name in STATISTICS)) > length


def test_kept_optimisers_and_schedules_do_not_touch_what_is_measured() -> None:
    work = eh.local.sgd(AVERAGE, optax.adam(0.1), epochs=1, schedule=lambda t: 0.5, keep_optimiser=True)
    assert work.kept is not None
    in_round = client(2)._replace(round=jnp.int32(0))
    far = jax.tree.map(lambda leaf: leaf + 10.0, START)
    for correction in (optax.identity(), eh.local.proximal(5.0, far)):
        end, _, _ = work.kept.solve(START, work.kept.init(START), in_round, KEY, correction)
        assert gap(end, step(named(START), np.arange(OFFSETS[2], OFFSETS[3])), *STATISTICS) < 1e-5


def test_a_risk_of_the_batch_weighs_losses_and_not_what_is_measured() -> None:
    tilted = eh.local.sgd(AVERAGE, LR, epochs=1, risk=eh.risks.tilted(3.0))
    end, _ = tilted.solve(START, client(2), KEY, optax.identity())
    expected = step(named(START), np.arange(OFFSETS[2], OFFSETS[3]))
    assert gap(end, expected, *STATISTICS) < 1e-5 and gap(end, expected, *LEARNED) > 1e-4


# --- what becomes of it -----------------------------------------------------------------------------------------------


def run_of(method: Algorithm, **settings: Any) -> Any:
    return eh.simulate(method, data(), start=START, **{"rounds": 2, "seed": 0, **settings})


def whole(model: Model) -> eh.local.Work:
    """Three steps on all examples, whose order then does not matter."""
    return eh.local.sgd(model, LR, epochs=3)


def test_averaged_statistics_are_averaged_like_parameters() -> None:
    w = named(START)
    for _ in range(2):
        w = averaged([full(w, k) for k in range(3)])
    run = run_of(eh.algorithms.fedavg(whole(AVERAGE)))
    assert gap(run.params, w) < 1e-5
    assert run.info["floats"] == {"up": 4 * 3 + 4 * 3 + 3 + 1, "down": 4 * 3 + 4 * 3 + 3}


def test_local_statistics_stay_and_go_on_from_round_to_round() -> None:
    """SiloBN: scales and shifts are shared."""
    shared, own = named(START), [named(START) for _ in range(3)]
    for _ in range(2):
        parts = [full(shared | {name: own[k][name] for name in STATISTICS}, k) for k in range(3)]
        shared = averaged(parts)
        own = parts
    run = run_of(eh.algorithms.fedavg(whole(LOCAL)))
    for k in range(3):
        expected = shared | {name: own[k][name] for name in STATISTICS}
        assert gap(run.personal_params(k), expected) < 1e-5
    assert gap(run.params, shared | {name: named(START)[name] for name in STATISTICS}) < 1e-5
    assert gap(run.personal_params(0), expected, *STATISTICS) > 0.01  # clients differ
    assert run.info["floats"] == {"up": 4 * 3 + 2 * 3 + 3 + 1, "down": 4 * 3 + 2 * 3 + 3}


@pytest.mark.parametrize("state", ["average", "local"])
def test_fedbn_keeps_the_layers_and_shares_the_others(state: Any) -> None:
    layers = (*STATISTICS, "norm/scale", "norm/bias")
    shared, own = named(START), [named(START) for _ in range(3)]
    for _ in range(2):
        parts = [full(shared | {name: own[k][name] for name in layers}, k) for k in range(3)]
        shared, own = averaged(parts), parts
    run = run_of(eh.personalization.fedbn(whole(model_of(state=state))))
    for k in range(3):
        assert gap(run.personal_params(k), shared | {name: own[k][name] for name in layers}) < 1e-5
    assert run.info["floats"] == {"up": 4 * 3 + 3 + 1, "down": 4 * 3 + 3}


def test_statistics_that_stay_are_personal_whatever_else_is() -> None:
    run = run_of(eh.personalization.fedsim(whole(LOCAL), personal="last"), rounds=1)
    assert run.info["floats"] == {"up": 4 * 3 + 2 * 3 + 1, "down": 4 * 3 + 2 * 3}
    for k in range(3):
        expected = averaged([full(named(START), j) for j in range(3)])
        expected |= {name: full(named(START), k)[name] for name in (*STATISTICS, "last/kernel")}
        assert gap(run.personal_params(k), expected) < 1e-5


def test_the_optimiser_of_the_server_does_not_touch_statistics() -> None:
    """Half a step, or Adam, for what is learned; the average itself for what is measured."""
    mean = averaged([full(named(START), k) for k in range(3)])
    for server_opt in (optax.sgd(0.5), optax.adam(0.1)):
        for factory in (eh.algorithms.fedavg, eh.algorithms.scaffold):
            run = run_of(factory(whole(AVERAGE), server_opt=server_opt), rounds=1)
            weights = SIZES if factory is eh.algorithms.fedavg else (1, 1, 1)
            expected = {
                name: np.average([full(named(START), k)[name] for k in range(3)], axis=0, weights=weights)
                for name in STATISTICS
            }
            assert max(np.abs(named(run.params)[name] - expected[name]).max() for name in STATISTICS) < 1e-5
            assert gap(run.params, mean, *LEARNED) > 1e-3


def test_ditto_measures_for_each_client_beside_the_average() -> None:
    work = whole(AVERAGE)
    run = run_of(eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=0.0), rounds=1)
    for k in range(3):
        assert gap(run.personal_params(k), full(named(START), k)) < 1e-5
    pulled = run_of(eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=2.0), rounds=2)
    free = run_of(eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=0.0), rounds=2)
    assert gap(pulled.personal_params(0), named(free.personal_params(0)), *LEARNED) > 1e-3


def evaluated(w: Named, rows: np.ndarray) -> float:
    """The mean loss on these rows, with the statistics that the model has."""
    unit = (X[rows] @ w["first/kernel"] - w["norm/mean"]) / np.sqrt(w["norm/var"] + EPSILON)
    normed = unit * w["norm/scale"] + w["norm/bias"]
    return float(np.mean(np.square((normed @ w["last/kernel"])[:, 0] - Y[rows])))


def test_dynamic_penalties_are_chosen_by_what_they_pull() -> None:
    """The candidates of a step differ in what is learned, and keep the statistics that the client has measured."""
    lams, held, shared = (0.1, 8.0), 0.4, named(START)
    own, chosen = [named(START) for _ in SIZES], set[float]()
    for _ in range(2):
        for k in range(3):
            cut = OFFSETS[k + 1] - int(np.ceil(held * SIZES[k] - 1e-4))
            rest, valid = np.arange(OFFSETS[k], cut), np.arange(cut, OFFSETS[k + 1])
            for _ in range(3):
                plain, before = step(own[k], rest), own[k]

                def pulled(lam: float, end: Named = plain, v: Named = before, w: Named = shared) -> Named:
                    return {name: end[name] - LR * lam * (v[name] - w[name]) for name in LEARNED}

                tried = {lam: evaluated(before | pulled(lam), valid) for lam in lams}
                lam = min(lams, key=tried.__getitem__)
                own[k] = plain | pulled(lam)
                chosen.add(lam)
        shared = averaged([full(shared, k) for k in range(3)])
    assert chosen == set(lams)
    work = whole(AVERAGE)
    method = eh.personalization.dynamic_ditto(
        eh.algorithms.fedavg(work), work, lams=lams, few=0, held_out=held
    )
    run = run_of(method)
    assert max(gap(run.personal_params(k), own[k]) for k in range(3)) < 1e-5


def test_finetuning_with_steps_of_size_zero_measures_alone() -> None:
    """A client that never trained gets statistics of its own that way (AdaBN)."""
    measure = eh.local.sgd(LOCAL, 0.0, epochs=1)
    method = eh.personalization.finetune(eh.algorithms.fedavg(whole(LOCAL)), measure)
    assert method.adapt is not None
    served = method.adapt(START, client(1), KEY)
    rows = np.arange(OFFSETS[1], OFFSETS[2])
    expected = step(named(START), rows, lr=0.0)
    assert gap(served, expected) < 1e-5
    # Fifty batches are all of the way, at a momentum of 0.8.
    many = eh.personalization.finetune(eh.algorithms.fedavg(whole(LOCAL)), eh.local.sgd(LOCAL, 0.0, steps=50))
    assert many.adapt is not None
    own = X[rows].astype(np.float64) @ named(START)["first/kernel"]
    assert np.abs(named(many.adapt(START, client(1), KEY))["norm/mean"] - own.mean(0)).max() < 1e-4


# --- models around them -----------------------------------------------------------------------------------------------


def test_frozen_layers_still_measure() -> None:
    frozen = models.freeze(AVERAGE, START, ("first", "norm"))
    assert frozen.statistics is not None and frozen.statistics.paths == STATISTICS
    begin = frozen.init(KEY)
    assert named(begin).keys() == {"last/kernel", *STATISTICS}
    rows = np.arange(OFFSETS[2], OFFSETS[3])
    end, _ = eh.local.sgd(frozen, LR, epochs=1).solve(
        jax.tree.map(
            jnp.asarray,
            {"norm": {"mean": START["norm"]["mean"], "var": START["norm"]["var"]}, "last": START["last"]},
        ),
        client(2),
        KEY,
        optax.identity(),
    )
    expected = step(named(START), rows)
    assert (
        max(np.abs(named(end)[name] - expected[name]).max() for name in ("last/kernel", *STATISTICS)) < 1e-5
    )
    with pytest.raises(EvenhandError, match="all parameters"):
        models.freeze(AVERAGE, START, LEARNED)


def test_factors_measure_what_the_weights_do() -> None:
    """The first step of LoRA, whose product is 0 then."""
    adapted = models.lora(AVERAGE, START, rank=1, on="first", also="last")
    assert adapted.statistics is not None and set(adapted.statistics.paths) == set(STATISTICS)
    begin = adapted.init(KEY)
    end, _ = eh.local.sgd(adapted, LR, epochs=1).solve(begin, client(2), KEY, optax.identity())
    expected, flat = step(named(START), np.arange(OFFSETS[2], OFFSETS[3])), named(end)
    assert max(np.abs(flat[name] - expected[name]).max() for name in ("last/kernel", *STATISTICS)) < 1e-5
    assert set(flat) == {"first/kernel/a", "first/kernel/b", "last/kernel", *STATISTICS}
    whole = named(models.thaw(adapted, end))
    assert np.abs(whole["norm/mean"] - expected["norm/mean"]).max() < 1e-5


def test_other_units_and_losses_measure_the_same() -> None:
    expected = step(named(START), np.arange(OFFSETS[2], OFFSETS[3]))
    for other in (
        models.standardized(AVERAGE, mean=2.0, deviation=3.0),
        models.with_loss(AVERAGE, lambda outputs, y: jnp.abs(outputs[:, 0] - y)),
    ):
        end, _ = eh.local.sgd(other, LR, epochs=1).solve(START, client(2), KEY, optax.identity())
        assert gap(end, expected, *STATISTICS) < 1e-5 and gap(end, expected, *LEARNED) > 1e-4
    # In standard units it is the targets that are scaled, exactly.
    scaled, plain = (
        eh.local.sgd(one, LR, epochs=1).solve(START, data_of, KEY, optax.identity())[0]
        for one, data_of in (
            (
                models.standardized(AVERAGE, mean=2.0, deviation=3.0),
                client(2)._replace(y=3.0 * jnp.asarray(Y) + 2.0),
            ),
            (AVERAGE, client(2)),
        )
    )
    assert gap(scaled, named(plain)) < 1e-5


def test_evaluation_takes_the_statistics_and_rows_are_apart() -> None:
    together = AVERAGE.apply(START, jnp.asarray(X))
    alone = jnp.concatenate([AVERAGE.apply(START, jnp.asarray(X[i : i + 1])) for i in range(len(X))])
    assert np.allclose(together, alone, atol=1e-6)
    moved = {**START, "norm": {**START["norm"], "mean": START["norm"]["mean"] + 1.0}}
    assert np.abs(AVERAGE.apply(moved, jnp.asarray(X)) - together).max() > 0.1


def test_a_negative_variance_is_none() -> None:
    """As a malicious client may send it, or a rule that overshoots may make it."""
    for kind in KINDS:
        model = model_of(kind)
        below = {**START, "norm": {**START["norm"], "var": -jnp.ones(3)}}
        nothing = {**START, "norm": {**START["norm"], "var": jnp.zeros(3)}}
        outputs = model.apply(below, jnp.asarray(X))
        assert np.isfinite(outputs).all() and (outputs == model.apply(nothing, jnp.asarray(X))).all()


def test_an_axis_in_the_rows_counts_with_its_row() -> None:
    """Time folded into the rows: the mask of a row is that of all its times."""

    class Folded(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, train: bool) -> jax.Array:
            steps = nn.BatchNorm(not train, momentum=0.0, name="norm")(x.reshape(-1, 2))
            return nn.Dense(1)(steps.reshape(x.shape))

    model = models.from_flax(Folded(), loss=squares, sample=X[:1], state="average")
    assert model.statistics is not None
    inside = jnp.arange(6) < 4
    _, after = model.statistics.forward(model.init(KEY), jnp.asarray(X[:6]), inside, KEY)
    assert np.allclose(after["norm"]["mean"], X[:4].reshape(-1, 2).mean(0), atol=1e-5)


# --- who refuses ------------------------------------------------------------------------------------------------------


class Counter(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        seen = self.variable("batch_stats", "seen", lambda: jnp.zeros(()))
        seen.value = seen.value + 1.0
        return nn.Dense(1)(x)


class Cache(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        self.variable("cache", "last", lambda: jnp.zeros(4))
        return nn.Dense(1)(x)


class TimeFirst(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        nn.BatchNorm(not train, name="norm")(x.T[..., None])
        return nn.Dense(1)(x)


class TwoViews(nn.Module):
    """Both halves of what is normalised belong to all rows."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        both = nn.BatchNorm(not train, name="norm")(nn.Dense(3)(jnp.concatenate([x, x + 5.0])))
        return nn.Dense(1)(both[: len(x)] * both[len(x) :])


class FoldedTimeFirst(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        steps = nn.BatchNorm(not train, name="norm")(x.reshape(-1, 2, 2).swapaxes(0, 1).reshape(-1, 2))
        return nn.Dense(1)(steps.reshape(2, -1, 2).swapaxes(0, 1).reshape(len(x), 4))


class AlwaysMeasures(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.BatchNorm(use_running_average=False)(nn.Dense(1)(x))


class OverDevices(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return nn.BatchNorm(not train, axis_name="batch")(nn.Dense(1)(x))


class Derived(nnx.BatchNorm):
    pass


class NnxCounter(nnx.Module):
    def __init__(self) -> None:
        self.seen = nnx.BatchStat(jnp.zeros(()))
        self.layer = nnx.Linear(4, 1, rngs=nnx.Rngs(0))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layer(x)


@pytest.mark.parametrize(
    ("module", "state", "words"),
    [
        (Linen(), "refuse", 'state="local" keeps them .* state="average" averages'),
        (Nnx(nnx.Rngs(0)), "refuse", 'state="local" keeps them .* state="average" averages'),
        (
            Linen(),
            "locale",
            r"state='locale'\): give one of 'refuse', 'average', 'local' .perhaps you meant local",
        ),
        (Counter(), "average", "seen, which is no statistic of a flax.linen.BatchNorm"),
        (Cache(), "local", 'collection "cache"'),
        (TimeFirst(), "average", "for a batch of 10007 rows: keep the rows first"),
        (NnxCounter(), "average", "BatchStat in seen"),
        (TwoViews(), "average", "rows in another order than that of the batch, such as those of two views"),
        (FoldedTimeFirst(), "local", "rows in another order"),
        (
            AlwaysMeasures(),
            "local",
            "measures running statistics in evaluation, too; give its __call__ a boolean",
        ),
        (OverDevices(), "local", "axis_name='batch'. averages over devices"),
        (Derived(4, rngs=nnx.Rngs(0)), "local", "not those of a class derived from it"),
    ],
    ids=[
        "linen",
        "nnx",
        "word",
        "other statistics",
        "other state",
        "rows last",
        "other statistics, nnx",
        "two views",
        "time first",
        "always",
        "devices",
        "derived",
    ],
)
def test_modules_are_refused_with_the_choice(module: Any, state: Any, words: str) -> None:
    with pytest.raises(EvenhandError, match=words):
        models.from_flax(module, loss=squares, sample=X[:1], state=state)


@pytest.mark.parametrize("flag", ["train", "training", "is_training", "use_running_average"])
def test_the_flag_of_a_module_has_one_of_the_usual_names(flag: str) -> None:
    negated = "" if flag == "use_running_average" else "not "
    lines = [
        "class Flagged(nn.Module):",
        "    @nn.compact",
        f"    def __call__(self, x, {flag}):",
        f"        return nn.Dense(1)(nn.BatchNorm({negated}{flag}, momentum=0.5, name='norm')(x))",
    ]
    scope: dict[str, Any] = {"nn": nn}
    exec("\n".join(lines), scope)
    model = models.from_flax(scope["Flagged"](), loss=squares, sample=X[:1], state="average")
    assert model.statistics is not None
    begin = model.init(KEY)
    _, after = model.statistics.forward(begin, jnp.asarray(X[:4]), jnp.ones(4, bool), KEY)
    assert np.allclose(after["norm"]["mean"], 0.5 * X[:4].mean(0), atol=1e-5)


def _dp_sgd() -> Any:
    return eh.privacy.dp_sgd(AVERAGE, 0.1, clip=1.0, noise_multiplier=1.0, rate=0.5, steps=2)


REFUSALS: dict[str, tuple[Callable[[], Any], str]] = {
    "dp_sgd": (
        _dp_sgd,
        "dp_sgd does not take a model with running statistics .norm/mean.: the gradient of each",
    ),
    "clipped_sum": (
        lambda: eh.privacy.clipped_sum(
            AVERAGE, START, jnp.asarray(X), jnp.asarray(Y), jnp.ones(len(X), bool), KEY, clip=1.0
        ),
        "clipped_sum does not take",
    ),
    "dp_fedavg": (
        lambda: eh.privacy.dp_fedavg(WORK, clip=1.0, noise_multiplier=1.0, rate=0.5),
        "noise would make variances negative. Use GroupNorm",
    ),
    "dp_fedavg, local": (
        lambda: eh.privacy.dp_fedavg(KEPT, clip=1.0, noise_multiplier=1.0, rate=0.5),
        "noise would make variances negative. Use GroupNorm",
    ),
    "dp_ftrl": (
        lambda: eh.privacy.dp_ftrl(WORK, clip=1.0, noise_multiplier=1.0, cohort=1, clients=3),
        "noise would make variances negative",
    ),
    "centralized": (
        lambda: eh.centralized.batch(AVERAGE, eh.risks.mean(), optimiser=optax.sgd(0.1)),
        "centralized does not take a model with running statistics",
    ),
    "fedalt": (lambda: eh.personalization.fedalt(WORK, personal="last"), r"fedalt\(\) has its own loop"),
    "pfedme": (
        lambda: eh.personalization.pfedme(WORK, lam=1.0, inner_step=0.1),
        r"pfedme\(\) has its own loop",
    ),
    "fedbabu": (lambda: eh.personalization.fedbabu(WORK, head="last"), r"fedbabu\(\) has its own loop"),
    "scaffold, local": (
        lambda: eh.algorithms.scaffold(KEPT),
        r'state="local"\), and this method sends whole models',
    ),
    "delta_fl_levels, local": (
        lambda: eh.algorithms.delta_fl_levels(KEPT),
        r'state="local"\), and this method sends whole models',
    ),
    "feddane": (
        lambda: run_of(eh.algorithms.feddane(WORK, mu=0.1)),
        "takes a gradient over all examples of a client at once",
    ),
    "ditto, local": (
        lambda: run_of(eh.personalization.ditto(eh.algorithms.fedavg(KEPT), KEPT, lam=1.0)),
        "stay with their clients, so that no method that needs the whole model",
    ),
    "ditto, local, without own models": (
        lambda: run_of(eh.personalization.ditto(eh.algorithms.fedavg(KEPT), KEPT, lam=float("inf"))),
        "stay with their clients, so that no method that needs the whole model",
    ),
    "fedsim, stateless": (
        lambda: eh.personalization.fedsim(KEPT, personal="last", stateful=False),
        "forgets the running statistics, which stay with clients here",
    ),
    "fedbn": (
        lambda: eh.personalization.fedbn(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1)),
        "this model has none: make it with",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_would_be_wrong_is_refused_with_its_reason(name: str) -> None:
    make, words = REFUSALS[name]
    with pytest.raises(EvenhandError, match=words):
        make()
