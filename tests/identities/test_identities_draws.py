"""Each purpose draws from its own stream: turning one feature on changes no draws of another.

A method that learns nothing shows the draws: its clients upload their first row, their progress and the key of their
work, and its aggregator keeps every upload in its state.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from identity_runs import DATA, MODEL, flat, gap

import evenhand as eh
from evenhand.simulation.setup import device_rows
from evenhand.types import Algorithm, Array, Attack, ClientData, Key, Model, Sampling, Stack, Upload

_ROUNDS = 4
_MODEL = Model(
    init=lambda key: jnp.zeros(4), apply=lambda w, x: x @ w, losses=lambda outputs, y: outputs, metrics={}
)
_UNIFORM = eh.sampling.uniform()


def _show_draws(params: Array, data: ClientData, key: Key, correction: optax.GradientTransformation) -> Any:
    """Local work whose result is the client's first row, its progress, and 48 bits of its key."""
    words = jax.random.key_data(key) >> np.uint32(8)
    draws = jnp.stack([data.start.astype(jnp.float32), data.progress, *words.astype(jnp.float32)])
    return params + draws, correction.init(params)


def _spy(m: int) -> Stack:
    """Keeps the latest uploads of ``m`` clients in its state and moves nothing."""

    def init(like: Any, clients: int) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros((m, *leaf.shape)), like)

    def apply(uploads: Upload, present: Array, state: Any, key: Key) -> tuple[Any, Any]:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:]), uploads.delta), uploads.delta

    return Stack(init, apply)


_SLOW = eh.systems.stragglers(0.5)
_FEDDANES: dict[str, dict[str, bool]] = {
    "feddane": {"fresh_cohort": True},
    "feddane, same cohort": {"fresh_cohort": False},
    "feddane, dropping": {"fresh_cohort": True, "keep_partial": False},
    "feddane, same cohort, dropping": {"fresh_cohort": False, "keep_partial": False},
}
_KEEPING = ["fedprox", "feddane", "feddane, same cohort"]
_DROPPING = ["fedavg", "scaffold", "feddane, dropping", "feddane, same cohort, dropping"]


def _method(kind: str, m: int = 4, sampling: Sampling = _UNIFORM) -> Algorithm:
    work = eh.local.Work(_MODEL, _show_draws)
    common: dict[str, Any] = {"aggregator": _spy(m), "sampling": sampling}
    if kind == "fedavg":
        return eh.algorithms.fedavg(work, **common)
    if kind == "scaffold":
        return eh.algorithms.scaffold(work, **common)
    if kind in _FEDDANES:
        return eh.algorithms.feddane(work, mu=1.0, **_FEDDANES[kind], **common)
    return eh.algorithms.fedprox(work, mu=1.0, **common)


def _phases(method: Algorithm, seed: int = 0, **settings: Any) -> list[np.ndarray]:
    """For each phase ``(rounds, m, 4)``: the first leaf of what its clients uploaded."""
    settings = {"cohort": 4, "rounds": _ROUNDS, "eval_every": 1, "seed": seed, **settings}
    watched = [run.state.aggregators for run in eh.simulation.iterate(method, DATA, **settings)][1:]
    return [
        np.stack([np.asarray(jax.tree.leaves(kept[phase])[0]) for kept in watched])
        for phase in range(len(method.phases))
    ]


def _uploads(method: Algorithm, seed: int = 0, **settings: Any) -> np.ndarray:
    """``(rounds, m, 4)``: start, progress and two words of a key of each upload after training."""
    return _phases(method, seed, **settings)[-1]


@cache
def _plain(seed: int = 0) -> np.ndarray:
    return _uploads(_method("fedavg"), seed)


@cache
def _slow_fedprox() -> np.ndarray:
    return _uploads(_method("fedprox"), systems=_SLOW)


def test_every_client_and_round_has_its_own_key() -> None:
    uploads = _plain()
    assert set(uploads[:, :, 0].ravel()) == {0.0, 1.0, 4.0, 12.0, 29.0, 34.0}, "every client is drawn"
    assert (uploads[:, :, 1] == 1).all()
    keys = uploads[:, :, 2:].reshape(-1, 2)
    assert len(np.unique(keys, axis=0)) == len(keys), "every client and round has its own key"


def test_rounds_and_seeds_draw_other_cohorts_and_keys() -> None:
    cohorts = [tuple(sorted(starts)) for starts in _plain()[:, :, 0].tolist()]
    assert len(set(cohorts)) > 1
    assert not np.array_equal(_plain(1)[:, :, 0], _plain()[:, :, 0])
    assert not set(_plain(1)[:, :, 2].ravel()) & set(_plain()[:, :, 2].ravel())


@pytest.mark.parametrize("kind", ["fedprox", "feddane", "feddane, same cohort", "scaffold"])
def test_methods_with_the_same_seed_have_the_same_draws(kind: str) -> None:
    assert np.array_equal(_uploads(_method(kind)), _plain())


def test_stragglers_change_progress_only() -> None:
    slow = _slow_fedprox()
    assert np.array_equal(slow[:, :, [0, 2, 3]], _plain()[:, :, [0, 2, 3]])
    assert ((slow[:, :, 1] < 1).sum(axis=1) == 2).all()
    shares = slow[:, :, 1][slow[:, :, 1] < 1]
    assert len(set(shares.tolist())) == 2 * _ROUNDS, "every client and round has its own share"
    assert len(np.unique(slow[:, :, 1] < 1, axis=0)) > 1, "other slots are slow in other rounds"


@pytest.mark.parametrize("kind", _KEEPING)
def test_methods_that_keep_partial_work_have_the_same_stragglers(kind: str) -> None:
    assert np.array_equal(_uploads(_method(kind), systems=_SLOW), _slow_fedprox())


@pytest.mark.parametrize("kind", _DROPPING)
def test_methods_that_drop_stragglers_have_the_same_ones(kind: str) -> None:
    method = _method(kind, m=2)
    survivors = _uploads(method, systems=_SLOW)
    assert (survivors[:, :, 1] >= 1).all()
    for dropped, kept in zip(survivors, _slow_fedprox(), strict=True):
        fast = kept[kept[:, 1] >= 1]
        assert np.array_equal(np.sort(dropped, axis=0), np.sort(fast, axis=0))
    again = _uploads(method, systems=_SLOW, seed=1)
    assert not np.array_equal(again[:, :, 0], survivors[:, :, 0])


def _starts(gradients: np.ndarray) -> np.ndarray:
    """The first rows ``(rounds, m)`` of the clients whose gradients of ``mean(x @ w)`` these are."""
    means = np.stack([DATA.train.client(k)[0].mean(axis=0) for k in range(6)])
    distance = np.abs(gradients[:, :, None] - means).max(axis=-1)
    assert (distance.min(axis=-1) < 1e-5).all()
    return DATA.train.offsets[:-1][distance.argmin(axis=-1)]


@pytest.mark.parametrize(
    ("kind", "m", "systems"),
    [("feddane", 4, None), ("feddane", 4, _SLOW), ("feddane, dropping", 2, _SLOW)],
)
def test_the_second_exchange_of_feddane_draws_another_cohort_only_if_asked(
    kind: str, m: int, systems: eh.systems.Systems | None
) -> None:
    for fresh in (True, False):
        name = kind if fresh else kind.replace("feddane", "feddane, same cohort")
        gradients, trained = _phases(_method(name, m), systems=systems)
        first, second = _starts(gradients), trained[:, :, 0]
        assert np.array_equal(first, second) != fresh
        if fresh:
            differ = [set(a) != set(b) for a, b in zip(first.tolist(), second.tolist(), strict=True)]
            assert any(differ), "other clients, not another order"


def _alone(x: np.ndarray, y: np.ndarray) -> eh.data.FederatedDataset:
    none = eh.data.Split(x[:0], y[:0], np.zeros(2, int))
    return eh.data.FederatedDataset(eh.data.Split(x, y, np.array([0, len(x)])), none, none, ("all",))


_BATCHES = eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=4)


@cache
def _batched_fedprox(reverse: bool = False, alone: bool = True) -> np.ndarray:
    order = slice(None, None, -1 if reverse else 1)
    data = _alone(DATA.train.x[order], DATA.train.y[order]) if alone else DATA
    return flat(eh.simulate(eh.algorithms.fedprox(_BATCHES, mu=0.1), data, rounds=3).params)


@pytest.mark.parametrize("fresh_cohort", [True, False])
def test_feddane_with_one_client_is_fedprox_batch_by_batch(fresh_cohort: bool) -> None:
    method = eh.algorithms.feddane(_BATCHES, mu=0.1, fresh_cohort=fresh_cohort)
    alone = flat(eh.simulate(method, _alone(DATA.train.x, DATA.train.y), rounds=3).params)
    assert gap(alone, _batched_fedprox()) < 1e-6
    assert gap(alone, _batched_fedprox(reverse=True)) > 1e-3, "other batches lead to another model"
    unlike = flat(eh.simulate(method, DATA, rounds=3).params)
    assert gap(unlike, _batched_fedprox(alone=False)) > 1e-3


def test_no_cohort_means_as_many_draws_as_clients() -> None:
    all_clients = DATA.train.offsets[:-1].tolist()
    uniform = _uploads(_method("fedavg", m=6), cohort=None)
    assert all(sorted(starts) == all_clients for starts in uniform[:, :, 0].tolist())
    scheme_a = _method("fedavg", m=6, sampling=eh.sampling.proportional(replace=True))
    drawn = _uploads(scheme_a, cohort=None)
    assert np.array_equal(drawn, _uploads(scheme_a, cohort=6))
    assert any(sorted(starts) != all_clients for starts in drawn[:, :, 0].tolist()), "some twice, some not"


def test_no_cohort_trains_as_a_cohort_of_as_many_draws() -> None:
    work = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4)
    scheme_a = eh.algorithms.fedavg(work, sampling=eh.sampling.proportional(replace=True))
    drawn = flat(eh.simulate(scheme_a, DATA, rounds=2).params)
    assert np.array_equal(drawn, flat(eh.simulate(scheme_a, DATA, rounds=2, cohort=6).params))
    equal_weights = eh.algorithms.fedavg(work, sampling=eh.sampling.uniform(weighted=False))
    assert gap(drawn, flat(eh.simulate(equal_weights, DATA, rounds=2).params)) > 1e-3, "not each client once"


def _double(delta: Array, key: Key) -> Array:
    return 2.0 * delta


def test_an_attack_changes_only_what_malicious_clients_send() -> None:
    attacked = _uploads(_method("fedavg"), attack=Attack(fraction=0.34, upload=_double))
    malicious = set()
    for before, after in zip(_plain().reshape(-1, 4), attacked.reshape(-1, 4), strict=True):
        if np.array_equal(after, before):
            continue
        assert np.array_equal(after, 2 * before)
        malicious.add(before[0])
    assert len(malicious) == 2, "a third of six, drawn once per run"


def test_another_sampling_changes_the_cohort_but_no_clients_key() -> None:
    other = _uploads(_method("fedavg", sampling=eh.sampling.proportional()))
    assert not np.array_equal(other[:, :, 0], _plain()[:, :, 0])
    shared = 0
    for one, two in zip(other, _plain(), strict=True):
        keys = {start: (a, b) for start, _, a, b in one.tolist()}
        for start, _, a, b in two.tolist():
            shared += start in keys
            assert keys.get(start, (a, b)) == (a, b)
    assert shared > 0


# --- which clients are malicious ---------------------------------------------------------------------------------


def _many(clients: int) -> eh.data.FederatedDataset:
    rows = np.zeros((clients, 1), np.float32)
    split = eh.data.Split(rows, np.zeros(clients, np.int32), np.arange(clients + 1))
    none = eh.data.Split(rows[:0], np.zeros(0, np.int32), np.zeros(clients + 1, int))
    return eh.data.FederatedDataset(split, none, none, tuple(map(str, range(clients))))


def _malicious(data: eh.data.FederatedDataset, attack: Attack | None, seed: int = 0) -> np.ndarray:
    return np.flatnonzero(device_rows(data, attack, seed).malicious)


@pytest.mark.parametrize("clients", [6, 100])
def test_the_share_of_malicious_clients_is_rounded_down(clients: int) -> None:
    data = _many(clients)
    for percent in range(101):
        malicious = _malicious(data, Attack(fraction=percent / 100))
        assert len(malicious) == percent * clients // 100, f"{percent} % of {clients}"
    assert len(_malicious(data, None)) == 0


def test_malicious_clients_are_drawn_once_from_the_seed() -> None:
    data = _many(100)
    by_upload, by_rows = Attack(0.3, upload=_double), Attack(0.3, rows=lambda x, y, rng: (x + 1, y))
    assert np.array_equal(_malicious(data, by_upload), _malicious(data, by_rows))
    assert not np.array_equal(_malicious(data, by_upload), _malicious(data, by_upload, seed=1))
    counts = np.bincount(
        np.concatenate([_malicious(data, by_upload, seed) for seed in range(40)]), minlength=100
    )
    assert counts.max() < 40 * 0.3 + 4.5 * np.sqrt(40 * 0.3 * 0.7), "no client is drawn too often"


def _noise(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return x + rng.normal(size=x.shape).astype(np.float32), (y + 1) % 3


def test_poison_reaches_only_the_rows_of_malicious_clients() -> None:
    kept = DATA.train.x.copy(), DATA.train.y.copy()
    attack = Attack(fraction=0.5, rows=_noise)
    rows = device_rows(DATA, attack, 0)
    malicious = _malicious(DATA, attack)
    assert len(malicious) == 3
    for k in range(6):
        window = slice(*DATA.train.offsets[k : k + 2])
        assert np.array_equal(rows.x[window], DATA.train.x[window]) == (k not in malicious)
        assert np.array_equal(rows.y[window], DATA.train.y[window]) == (k not in malicious)
    assert np.array_equal(DATA.train.x, kept[0]) and np.array_equal(DATA.train.y, kept[1]), (
        "the data set itself is never poisoned"
    )


def test_poison_is_drawn_per_client_and_seed() -> None:
    attack = Attack(fraction=1.0, rows=_noise)
    added = [np.asarray(device_rows(DATA, attack, seed).x) - DATA.train.x for seed in (0, 0, 1)]
    assert np.array_equal(added[0], added[1])
    first_rows = [noise[start] for noise in (added[0], added[2]) for start in DATA.train.offsets[:-1]]
    assert len(np.unique(np.round(first_rows, 5), axis=0)) == 12


def test_poisoned_rows_are_trained_on_but_not_evaluated_on() -> None:
    method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, steps=1))
    attack = Attack(fraction=0.5, rows=_noise)
    start, end = (
        [eh.simulate(method, DATA, rounds=rounds, attack=each) for each in (None, attack)]
        for rounds in (0, 1)
    )
    assert np.abs(flat(end[0].params) - flat(end[1].params)).max() > 1e-3
    losses = [run.client_metrics("train")["loss"] for run in start]
    np.testing.assert_array_equal(losses[0], losses[1])


# --- what malicious clients send ---------------------------------------------------------------------------------


def _random(delta: Array, key: Key) -> Array:
    return jax.random.normal(key, delta.shape)


def test_random_uploads_differ_by_client_and_round() -> None:
    attack = Attack(fraction=0.5, upload=_random)
    method = _method("fedavg", m=6)
    honest = _uploads(method, cohort=None)
    attacked = _uploads(method, cohort=None, attack=attack)
    changed = (honest != attacked).any(axis=2)
    assert (changed == changed[0]).all(), "the same clients in every round"
    assert np.flatnonzero(changed[0]).tolist() == _malicious(DATA, attack).tolist()
    assert len(np.unique(attacked[changed], axis=0)) == 3 * _ROUNDS
