"""No key is used for two draws or two purposes, which the drawn numbers cannot show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand import rounds
from evenhand.centralized import Solver, grouped, stochastic
from evenhand.rounds import cohort
from evenhand.streams import MAX_ROUNDS, Purpose, client_stream, keys_of, permutation_words, root_key, stream
from evenhand.systems import Systems, stragglers
from evenhand.types import Algorithm, Attack, ClientData, Cohort, Model, Report, Sampling

MODEL = Model(
    init=lambda key: jnp.float32(0.0),
    apply=lambda w, x: w - x[:, 0],
    losses=lambda outputs, y: jnp.square(outputs),
    metrics={},
    apply_train=lambda w, x, key: w - x[:, 0] + jax.random.normal(key, x.shape[:1]),
)
HOW: dict[str, Any] = {"rate": 0.5, "batch_size": 2, "optimiser": optax.sgd(0.1)}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes]]:
    """The name of each draw, and its key, in order."""
    seen: list[tuple[str, bytes]] = []

    def spied(name: str, draw: Callable[..., Any]) -> Callable[..., Any]:
        def spy(key: Any, *arguments: Any, **options: Any) -> Any:
            seen.append((name, np.asarray(jax.random.key_data(key)).tobytes()))
            return draw(key, *arguments, **options)

        return spy

    for name in ("randint", "gumbel", "normal", "uniform"):
        monkeypatch.setattr(jax.random, name, spied(name, getattr(jax.random, name)))
    return seen


@pytest.mark.parametrize(
    ("solver", "draws"),
    [
        (stochastic(MODEL, t=1.0, **HOW), ["randint", "normal"]),
        (stochastic(MODEL, t=1.0, two_batches=True, **HOW), ["randint", "normal", "randint"]),
        (grouped(MODEL, groups=[0, 0, 1], t=1.0, tau=0.0, **HOW), ["gumbel", "randint", "normal"]),
    ],
)
def test_rows_groups_and_dropout_have_different_keys(
    solver: Solver, draws: list[str], drawn: list[tuple[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "evenhand.centralized._solver.lowered", lambda forward: forward
    )  # it compiles, and compiled keys are unknown
    x, y, key = jnp.arange(3.0)[:, None], jnp.zeros(3), jax.random.key(4)
    state = solver.init(jnp.float32(0.0), x, y)
    solver.step(state, x, y, jnp.int32(0), key)
    assert [name for name, _ in drawn] == draws
    keys = [each for _, each in drawn] + [np.asarray(jax.random.key_data(key)).tobytes()]
    assert len(set(keys)) == len(keys), "a key was used twice, or the step's own"


def test_stragglers_have_another_stream_than_cohorts() -> None:
    """In every round, the keys are those of the two purposes, and slow clients are left out unless they are kept."""
    seen: dict[str, bytes] = {}

    def record(name: str, key: Any) -> None:
        seen[name] = np.asarray(jax.random.key_data(key)).tobytes()

    def draw(key: Any, sizes: Any, m: int) -> Any:
        record("cohort", key)
        return Cohort.of(jnp.arange(m, dtype=jnp.int32))

    def slow(key: Any, cohort: Cohort, keep_partial: bool) -> Cohort:
        record("slow", key)
        slow = cohort._replace(progress=jnp.array([1.0, 0.5, 1.0]))
        return slow if keep_partial else jax.tree.map(lambda leaf: leaf[jnp.array([0, 2])], slow)

    method: Algorithm = eh.algorithms.fedavg(
        eh.local.sgd(MODEL, 0.1, steps=1), sampling=Sampling(draw, lambda size: jnp.ones(()))
    )
    keys, every = keys_of(1), set()
    for number in (0, 3):
        clients = cohort(method, Systems(slow), jnp.ones(5, jnp.int32), 3, keys, number, 0)
        assert clients.ids.tolist() == [0, 2]
        for name, purpose in (("cohort", Purpose.COHORT), ("slow", Purpose.STRAGGLERS)):
            expected = stream(keys.shared, purpose, number)
            assert seen[name] == np.asarray(jax.random.key_data(expected)).tobytes()
            every.add(seen[name])
    assert len(every) == 4
    kept = method._replace(partial_work=True)
    clients = cohort(kept, Systems(slow), jnp.ones(5, jnp.int32), 3, keys, 0, 0)
    assert (clients.ids.tolist(), clients.progress.tolist()) == ([0, 1, 2], [1.0, 0.5, 1.0])


def test_which_clients_are_slow_and_how_slow_have_different_keys(
    drawn: list[tuple[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    words, ids = [], jnp.array([4, 7])
    whole = permutation_words
    monkeypatch.setattr(
        "evenhand.systems.permutation_words",
        lambda key: (words.append(jax.random.key_data(key)), whole(key))[1],
    )
    monkeypatch.setattr(jax, "vmap", lambda f: lambda xs: jnp.stack([f(x) for x in xs]))
    key = jax.random.key(3)
    stragglers(0.5).draw(key, Cohort.of(ids), True)
    shares = stream(key, Purpose.WORK)
    expected = [np.asarray(jax.random.key_data(client_stream(shares, k))).tobytes() for k in ids]
    assert [each for name, each in drawn if name == "uniform"] == expected
    (order,) = words
    assert np.array_equal(order, jax.random.key_data(stream(key, Purpose.COHORT)))


def test_what_a_malicious_client_draws_for_examples_reports_and_uploads_differs() -> None:
    seen: list[bytes] = []

    def noted(made: Any, key: Any) -> Any:
        seen.append(np.asarray(jax.random.key_data(key)).tobytes())
        return made

    attack = Attack(
        fresh=lambda x, y, size, key: noted((x, y), key),
        report=noted,
        upload=noted,
    )
    rows, key, malicious = jnp.zeros((2, 1)), jax.random.key(5), jnp.array([True])
    data = ClientData(rows, jnp.zeros(2, jnp.int32), jnp.int32(0), jnp.int32(2), jnp.float32(1.0), 2)
    rounds.fresh_data(attack, data, malicious, jnp.int32(0), 0, key)
    rounds.false_report(attack, Report(jnp.float32(1.0), jnp.float32(0.0)), malicious[0], 0, key)
    rounds.false_delta(attack, rows, malicious[0], 0, key)
    assert len({*seen, np.asarray(jax.random.key_data(key)).tobytes()}) == 4


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 20260101120000])
def test_a_root_is_the_key_that_jax_makes_of_the_seed(seed: int) -> None:
    """Without its program; also of the longer seeds of deployments, and a stream of it in a program and outside."""
    expected = jax.random.key(seed)
    assert jnp.array_equal(jax.random.key_data(root_key(seed)), jax.random.key_data(expected))
    assert root_key(seed).dtype == expected.dtype
    narrow: Any = np.array(seed).astype(np.uint32)[()]  # whose own modulus of 2**32 would overflow
    assert jnp.array_equal(jax.random.key_data(root_key(narrow)), jax.random.key_data(expected))
    outside, inside = (make(stream)(root_key(seed), Purpose.WORK, 7) for make in (lambda f: f, _jitted))
    assert jnp.array_equal(jax.random.key_data(outside), jax.random.key_data(inside))
    folded = jax.random.fold_in(expected, int(Purpose.WORK) * 16 * MAX_ROUNDS + 7)
    assert jnp.array_equal(jax.random.key_data(outside), jax.random.key_data(folded))


def _jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(function, static_argnums=(1, 2))
