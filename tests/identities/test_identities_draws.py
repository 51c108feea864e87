"""Each purpose draws from a stream of its own: turning one feature on changes no other's draws.

A method that learns nothing shows them: its clients upload who they are, how far they get and the key of their
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
from identity_runs import DATA, flat

import evenhand as eh
from evenhand.simulation._simulate import device_rows
from evenhand.types import Algorithm, Array, Attack, ClientData, Key, Model, Sampling, Stack, Upload

_ROUNDS = 4
_MODEL = Model(
    init=lambda key: jnp.zeros(4), apply=lambda w, x: x @ w, losses=lambda outputs, y: outputs, metrics={}
)
_KEEP = eh.sampling.uniform()


def _tell(params: Array, data: ClientData, key: Key, correction: optax.GradientTransformation) -> Any:
    """Local work whose result is the client's first row, its progress, and 48 bits of its key."""
    words = jax.random.key_data(key) >> np.uint32(8)
    told = jnp.stack([data.start.astype(jnp.float32), data.progress, *words.astype(jnp.float32)])
    return params + told, correction.init(params)


def _spy(m: int) -> Stack:
    """Keeps the latest uploads of ``m`` clients in its state and moves nothing."""

    def apply(uploads: Upload, state: Array, key: Key) -> tuple[Array, Array]:
        return jnp.zeros(4), uploads.delta

    return Stack(lambda like: jnp.zeros((m, 4)), apply)


_SLOW = eh.systems.stragglers(0.5)


def _method(kind: str, m: int = 4, sampling: Sampling = _KEEP) -> Algorithm:
    common: dict[str, Any] = {"solver": _tell, "aggregator": _spy(m), "sampling": sampling}
    if kind == "fedavg":
        return eh.algorithms.fedavg(_MODEL, **common)
    return eh.algorithms.fedprox(_MODEL, mu=1.0, **common)


def _uploads(method: Algorithm, seed: int = 0, **settings: Any) -> np.ndarray:
    """``(rounds, m, 4)``: start, progress and two words of a key of each upload."""
    settings = {"cohort": 4, "rounds": _ROUNDS, "eval_every": 1, "seed": seed, **settings}
    watched = list(eh.simulation.iterate(method, DATA, **settings))
    return np.stack([np.asarray(run.state.aggregators[0]) for run in watched[1:]])


@cache
def _plain(seed: int = 0) -> np.ndarray:
    return _uploads(_method("fedavg"), seed)


@cache
def _slow_fedprox() -> np.ndarray:
    return _uploads(_method("fedprox"), systems=_SLOW)


def test_uploads_are_told_apart() -> None:
    told = _plain()
    assert set(told[:, :, 0].ravel()) == {0.0, 1.0, 4.0, 12.0, 29.0, 34.0}, "everybody is drawn sometimes"
    assert (told[:, :, 1] == 1).all()
    keys = told[:, :, 2:].reshape(-1, 2)
    assert len(np.unique(keys, axis=0)) == len(keys), "every client and round has a key of its own"


def test_rounds_and_seeds_draw_other_cohorts_and_keys() -> None:
    cohorts = [tuple(sorted(starts)) for starts in _plain()[:, :, 0].tolist()]
    assert len(set(cohorts)) > 1
    assert not np.array_equal(_plain(1)[:, :, 0], _plain()[:, :, 0])
    assert not set(_plain(1)[:, :, 2].ravel()) & set(_plain()[:, :, 2].ravel())


def test_methods_with_one_seed_meet_the_same_draws() -> None:
    assert np.array_equal(_uploads(_method("fedprox")), _plain())


def test_stragglers_change_progress_only() -> None:
    slow = _slow_fedprox()
    assert np.array_equal(slow[:, :, [0, 2, 3]], _plain()[:, :, [0, 2, 3]])
    assert ((slow[:, :, 1] < 1).sum(axis=1) == 2).all()
    shares = slow[:, :, 1][slow[:, :, 1] < 1]
    assert len(set(shares.tolist())) == 2 * _ROUNDS, "every client and round has a share of its own"
    assert len(np.unique(slow[:, :, 1] < 1, axis=0)) > 1, "nor are the same slots slow"


def test_all_methods_meet_the_same_stragglers() -> None:
    survivors = _uploads(_method("fedavg", m=2), systems=_SLOW)
    assert (survivors[:, :, 1] >= 1).all()
    for dropped, kept in zip(survivors, _slow_fedprox(), strict=True):
        fast = kept[kept[:, 1] >= 1]
        assert np.array_equal(np.sort(dropped, axis=0), np.sort(fast, axis=0))
    again = _uploads(_method("fedavg", m=2), systems=_SLOW, seed=1)
    assert not np.array_equal(again[:, :, 0], survivors[:, :, 0])


def _double(delta: Array, key: Key) -> Array:
    return 2.0 * delta


def test_an_attack_changes_what_liars_send_only() -> None:
    attacked = _uploads(_method("fedavg"), attack=Attack(fraction=0.34, upload=_double))
    liars = set()
    for before, after in zip(_plain().reshape(-1, 4), attacked.reshape(-1, 4), strict=True):
        if np.array_equal(after, before):
            continue
        assert np.array_equal(after, 2 * before)
        liars.add(before[0])
    assert len(liars) == 2, "a third of six, drawn once per run"


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


# --- who lies ----------------------------------------------------------------------------------------------------


def _many(clients: int) -> eh.data.FederatedDataset:
    rows = np.zeros((clients, 1), np.float32)
    split = eh.data.Split(rows, np.zeros(clients, np.int32), np.arange(clients + 1))
    none = eh.data.Split(rows[:0], np.zeros(0, np.int32), np.zeros(clients + 1, int))
    return eh.data.FederatedDataset(split, none, none, tuple(map(str, range(clients))))


def _liars(data: eh.data.FederatedDataset, attack: Attack | None, seed: int = 0) -> np.ndarray:
    return np.flatnonzero(device_rows(data, attack, seed).liars)


@pytest.mark.parametrize("clients", [6, 100])
def test_the_share_of_liars_is_rounded_down(clients: int) -> None:
    data = _many(clients)
    for percent in range(101):
        liars = _liars(data, Attack(fraction=percent / 100))
        assert len(liars) == percent * clients // 100, f"{percent} % of {clients}"
    assert len(_liars(data, None)) == 0


def test_who_lies_is_drawn_once_from_the_seed() -> None:
    data = _many(100)
    by_upload, by_rows = Attack(0.3, upload=_double), Attack(0.3, rows=lambda x, y, rng: (x + 1, y))
    assert np.array_equal(_liars(data, by_upload), _liars(data, by_rows))
    assert not np.array_equal(_liars(data, by_upload), _liars(data, by_upload, seed=1))
    counts = np.bincount(np.concatenate([_liars(data, by_upload, seed) for seed in range(40)]), minlength=100)
    assert counts.max() < 40 * 0.3 + 4.5 * np.sqrt(40 * 0.3 * 0.7), "nobody is picked on"


def _noise(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return x + rng.normal(size=x.shape).astype(np.float32), (y + 1) % 3


def test_poison_reaches_the_rows_of_liars_only() -> None:
    kept = DATA.train.x.copy(), DATA.train.y.copy()
    attack = Attack(fraction=0.5, rows=_noise)
    rows = device_rows(DATA, attack, 0)
    liars = _liars(DATA, attack)
    assert len(liars) == 3
    for k in range(6):
        own = slice(*DATA.train.offsets[k : k + 2])
        assert np.array_equal(rows.x[own], DATA.train.x[own]) == (k not in liars)
        assert np.array_equal(rows.y[own], DATA.train.y[own]) == (k not in liars)
    assert np.array_equal(DATA.train.x, kept[0]) and np.array_equal(DATA.train.y, kept[1]), (
        "the data set is not"
    )


def test_poison_is_drawn_per_client_and_seed() -> None:
    everybody = Attack(fraction=1.0, rows=_noise)
    added = [np.asarray(device_rows(DATA, everybody, seed).x) - DATA.train.x for seed in (0, 0, 1)]
    assert np.array_equal(added[0], added[1])
    first_rows = [noise[start] for noise in (added[0], added[2]) for start in DATA.train.offsets[:-1]]
    assert len(np.unique(np.round(first_rows, 5), axis=0)) == 12


def test_poisoned_rows_are_trained_on_but_not_evaluated_on() -> None:
    model, steps = eh.testing.toy_model(), {"client_opt": optax.sgd(0.1), "steps": 1}
    method = eh.algorithms.fedavg(model, **steps)
    honest, poisoned = (
        eh.simulate(method, DATA, rounds=1, attack=attack)
        for attack in (None, Attack(fraction=0.5, rows=_noise))
    )
    assert np.abs(flat(honest.params) - flat(poisoned.params)).max() > 1e-3
    assert honest.history["train_loss"][0] == poisoned.history["train_loss"][0]


# --- what liars send ---------------------------------------------------------------------------------------------


def _random(delta: Array, key: Key) -> Array:
    return jax.random.normal(key, delta.shape)


def test_random_uploads_differ_by_liar_and_round() -> None:
    attack = Attack(fraction=0.5, upload=_random)
    method = _method("fedavg", m=6)
    honest = _uploads(method, cohort=None)
    attacked = _uploads(method, cohort=None, attack=attack)
    lied = (honest != attacked).any(axis=2)
    assert (lied == lied[0]).all(), "the same clients in every round"
    assert np.flatnonzero(lied[0]).tolist() == _liars(DATA, attack).tolist()
    assert len(np.unique(attacked[lied], axis=0)) == 3 * _ROUNDS
