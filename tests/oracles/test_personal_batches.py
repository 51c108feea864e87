"""Which mini-batches personal methods look at: against NumPy, on batches whose rows the schedule itself names.

The loops of :mod:`test_personal_loops` have full batches, where each batch is the others.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from personal_oracle import combine, inner, mix, only, plus, pull, scaled
from softmax_oracle import DATA, MODEL, gradient

import evenhand as eh
from evenhand.streams import Purpose, stream
from evenhand.types import ClientData

P = eh.personalization
K, LR = 3, 0.2  # a client with 17 examples
SCHEDULE: dict[str, Any] = {"epochs": 2, "batch_size": 4}
WORK = eh.local.sgd(MODEL, LR, **SCHEDULE)
METHOD = eh.algorithms.fedavg(WORK)
KEY = jax.random.key(11)
W = {name: np.asarray(leaf, np.float64) for name, leaf in MODEL.init(jax.random.key(1)).items()}
STEPS = 2 * 5
NOISY = MODEL._replace(
    apply_train=lambda params, x, key: MODEL.apply(params, x) + jax.random.normal(key, (x.shape[0], 3))
)


def client(progress: float = 1.0) -> ClientData:
    split, size = DATA.train, int(DATA.train.sizes[K])
    start = jnp.int32(split.offsets[K])
    return ClientData(
        jnp.asarray(split.x), jnp.asarray(split.y), start, jnp.int32(size), jnp.float32(progress), size
    )


def rows(i: int, key: Any) -> np.ndarray:
    """The examples of a batch, by their positions at the client."""
    batch = eh.local.batches(**SCHEDULE).draw(client(), key)(jnp.int32(i))
    return np.asarray(batch.positions)[np.asarray(batch.inside)]


def gap(found: Any, expected: dict[str, np.ndarray]) -> float:
    return max(float(np.abs(np.asarray(found[name]) - expected[name]).max()) for name in found)


def descent(slope: Any, key: Any, begin: dict[str, np.ndarray] = W) -> dict[str, np.ndarray]:
    v = begin
    for i in range(STEPS):
        v = combine(lambda p, g: p - LR * g, v, slope(v, rows(i, key)))
    return v


def test_the_batches_of_a_client_are_not_all_the_same() -> None:
    assert len({tuple(sorted(rows(i, KEY))) for i in range(STEPS)}) == STEPS
    assert [len(rows(i, KEY)) for i in range(STEPS)] == [4, 4, 4, 4, 1] * 2


def test_ewc_estimates_the_fisher_information_from_several_batches() -> None:
    """f is the mean of the squared gradients of the first three batches, not of the first one thrice."""
    method = P.ewc(METHOD, WORK, lam=20.0, batches=3)
    assert method.adapt is not None
    found = method.adapt(W, client(), KEY)

    def expected(batches: tuple[int, ...]) -> dict[str, np.ndarray]:
        squares = [combine(np.square, gradient(W, K, rows(i, KEY))) for i in batches]
        fisher = scaled(20.0 / len(batches), plus(*squares))
        return descent(
            lambda v, of: plus(gradient(v, K, of), combine(np.multiply, fisher, pull(v, W, 1.0))), KEY
        )

    assert gap(found, expected((0, 1, 2))) < 2e-6
    assert min(gap(found, expected(other)) for other in ((0, 0, 0), (0, 1), (1, 2, 3))) > 1e-4


def test_ewc_draws_the_noise_of_training_anew_for_each_batch() -> None:
    """Batches of all examples differ in their noise alone."""
    work = eh.local.sgd(NOISY, LR, steps=2)
    single, double = (P.ewc(eh.algorithms.fedavg(work), work, lam=20.0, batches=n).adapt for n in (1, 2))
    assert single is not None and double is not None
    assert gap(single(W, client(), KEY), double(W, client(), KEY)) > 1e-4


def test_without_a_penalty_skl_has_the_noise_of_finetuning() -> None:
    work = eh.local.sgd(NOISY, LR, **SCHEDULE)
    method = eh.algorithms.fedavg(work)
    penalised, plain = (made.adapt for made in (P.skl(method, work, lam=0.0), P.finetune(method, work)))
    quiet = P.finetune(METHOD, WORK).adapt
    assert penalised is not None and plain is not None and quiet is not None
    expected = plain(W, client(), KEY)
    assert gap(penalised(W, client(), KEY), expected) < 1e-6
    assert gap(quiet(W, client(), KEY), expected) > 1e-3


def test_mapper_uploads_a_step_on_the_last_batch() -> None:
    """With ``gammas=(0,)``, one step of FedAvg, on the last of ten batches."""
    method = P.mapper(WORK, gammas=(0.0,))
    [phase] = method.phases
    state = method.init(jax.tree.map(jnp.float32, W), len(DATA.train.sizes))
    delta, _ = phase.work(phase.broadcast(state, jnp.int32(K)), method.init_client(W), client(), KEY)

    def expected(i: int) -> dict[str, np.ndarray]:
        return scaled(-LR, gradient(W, K, rows(i, KEY)))

    gaps = [gap(delta, expected(i)) for i in range(STEPS)]
    assert gaps[-1] < 1e-6 and min(gaps[:-1]) > 1e-3


def test_mapper_keeps_no_candidate_that_diverged() -> None:
    """A mixture of nothing takes no steps, however long these are."""
    _, own = one_round(P.mapper(eh.local.sgd(MODEL, 1e38, **SCHEDULE), gammas=(0.0, 1.0)), 1.0)
    assert own.gamma == 0.0 and gap(own.params, W) == 0.0
    _, own = one_round(P.mapper(eh.local.sgd(MODEL, 1e38, **SCHEDULE), gammas=(1.0,)), 1.0)
    assert not np.isfinite(own.params["w"]).all()


@pytest.mark.parametrize(
    ("name", "make"), [("fedalt", P.fedalt), ("fedsim", P.fedsim)], ids=["fedalt", "fedsim"]
)
def test_the_batches_of_both_parts(name: str, make: Any) -> None:
    """FedAlt trains the personal part on batches of its own; FedSim trains both parts on the same ones."""
    method = make(WORK, personal="b")
    [phase] = method.phases
    state = method.init(jax.tree.map(jnp.float32, W), len(DATA.train.sizes))
    _, kept = phase.work(phase.broadcast(state, jnp.int32(K)), method.init_client(W), client(), KEY)
    [bias] = jax.tree.leaves(kept)

    def expected(key: Any) -> np.ndarray:
        held = name == "fedalt"  # the shared part, meanwhile
        return descent(lambda v, of: only("b", g) if (g := gradient(v, K, of)) and held else g, key)["b"]

    gaps = {own: np.abs(bias - expected(key)).max() for own, key in _KEYS.items()}
    right, wrong = ("own", "shared") if name == "fedalt" else ("shared", "own")
    assert gaps[right] < 1e-6 and gaps[wrong] > 1e-3


def test_losses_are_reported_with_the_parameters_that_a_client_keeps() -> None:
    method = P.fedalt(WORK, personal="b", aggregator=eh.aggregators.loss_filter(1))
    [phase] = method.phases
    message = phase.broadcast(method.init(jax.tree.map(jnp.float32, W), len(DATA.train.sizes)), jnp.int32(K))
    kept = {"b": jnp.arange(3.0)}
    expected = eh.local.full_loss(MODEL, {"w": jnp.float32(W["w"]), **kept}, client())
    np.testing.assert_allclose(phase.report(message, kept, client()).loss, expected, rtol=1e-6)


def one_round(method: Any, progress: float) -> tuple[Any, Any]:
    """What the client sends and what it keeps, from its first state."""
    [phase] = method.phases
    state = method.init(jax.tree.map(jnp.float32, W), len(DATA.train.sizes))
    message = phase.broadcast(state, jnp.int32(K))
    return phase.work(message, method.init_client(W), client(progress), KEY)


ALL, SOME = (1.0, STEPS), (0.4, 5)
"""The share of its epochs that a client makes, and how many steps they have."""


@pytest.mark.parametrize(("progress", "steps"), [ALL, SOME])
def test_pfedme_descends_the_envelope_of_each_batch_as_far_as_a_straggler_comes(
    progress: float, steps: int
) -> None:
    def expected(order: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        u = theta = W
        for i in order:
            for _ in range(3):
                slope = plus(gradient(theta, K, rows(i, KEY)), pull(theta, u, 2.0))
                theta = combine(lambda v, g: v - 0.1 * g, theta, slope)
            u = combine(lambda v, t: v - LR * 2.0 * (v - t), u, theta)
        return combine(np.subtract, u, W), theta

    delta, theta = one_round(P.pfedme(WORK, lam=2.0, inner_step=0.1, inner_steps=3), progress)
    right = expected(range(steps))
    assert gap(delta, right[0]) < 2e-6 and gap(theta, right[1]) < 2e-6
    wrong = (expected(order) for order in ([0] * steps, range(steps - 1), range(10 - steps, 10)[::-1]))
    assert min(gap(theta, other) for _, other in wrong) > 1e-4


@pytest.mark.parametrize(("progress", "steps"), [ALL, SOME])
def test_apfl_adapts_its_mixture_on_the_batches_of_plain_descent(progress: float, steps: int) -> None:
    def expected(order: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], float]:
        u, v, alpha = W, W, 0.3
        for i in order:
            slope, plain = gradient(mix(alpha, v, u), K, rows(i, KEY)), gradient(u, K, rows(i, KEY))
            moved = float(np.clip(alpha - 0.1 * inner(combine(np.subtract, v, u), slope), 0, 1))
            v = combine(lambda p, g, a=alpha: p - LR * a * g, v, slope)
            u, alpha = combine(lambda p, g: p - LR * g, u, plain), moved
        return combine(np.subtract, u, W), v, alpha

    delta, own = one_round(P.apfl(WORK, alpha=0.3, alpha_step=0.1), progress)
    sent, kept, alpha = expected(range(steps))
    assert gap(delta, sent) < 2e-6 and gap(own.params, kept) < 2e-6
    assert float(own.alpha) == pytest.approx(alpha, abs=1e-6) and abs(alpha - 0.3) > 1e-3
    wrong = (expected(order) for order in ([0] * steps, range(steps - 1), range(10 - steps, 10)[::-1]))
    assert min(gap(own.params, other) for _, other, _ in wrong) > 1e-4


_KEYS = {"own": stream(KEY, Purpose.PERSONAL), "shared": KEY}
