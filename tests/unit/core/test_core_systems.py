"""Systems: which clients are available, how long they take, which are slow, and how much of their work these do."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import evenhand as eh
from evenhand import local
from evenhand.rounds import presence
from evenhand.streams import Purpose, keys_of, stream
from evenhand.systems import availability, bound, chain, diurnal, dropouts, speeds, stragglers
from evenhand.types import Array, ClientData, Cohort, Model

_ROUNDS, _M = 2000, 10
# The gradient is 1 everywhere, so that plain descent counts its own steps.
_COUNTER = Model(
    init=lambda key: jnp.float32(0.0),
    apply=lambda w, x: w + 0.0 * x,
    losses=lambda outputs, y: outputs,
    metrics={},
)


def _draws(fraction: float, m: int = _M) -> tuple[np.ndarray, np.ndarray]:
    """``(fast, progress)`` of many rounds, ``(rounds, ...)`` each; the cohort's ids are 100, 101, ..."""
    system, root = stragglers(fraction), jax.random.key(3)
    ids = 100 + jnp.arange(m, dtype=jnp.int32)

    def draw(number: Array) -> tuple[Array, Array]:
        key = stream(root, Purpose.STRAGGLERS, number)
        return (
            system.draw(key, Cohort.of(ids), False).ids - 100,
            system.draw(key, Cohort.of(ids), True).progress,
        )

    fast, progress = jax.jit(jax.vmap(draw))(jnp.arange(_ROUNDS))
    return np.asarray(fast), np.asarray(progress)


def _fast(fraction: float, m: int) -> int:
    """How many of ``m`` clients are fast."""
    return len(stragglers(fraction).draw(jax.random.key(0), Cohort.of(jnp.arange(m)), False).ids)


@pytest.fixture(scope="module")
def half() -> tuple[np.ndarray, np.ndarray]:
    return _draws(0.5)


def _steps(progress: np.ndarray, size: int, **work: Any) -> np.ndarray:
    """How many local steps clients of ``size`` rows do, one per entry of ``progress``."""
    solve = local.sgd(_COUNTER, 1.0, **work).solve
    rows = jnp.zeros(size)

    def count(share: Array) -> Array:
        data = ClientData(rows, rows, jnp.int32(0), jnp.int32(size), share, size)
        return -solve(jnp.float32(0.0), data, jax.random.key(0), optax.identity())[0]

    return np.asarray(jax.jit(jax.vmap(count))(jnp.asarray(progress.ravel()))).astype(int)


@pytest.mark.parametrize(("fraction", "fast"), [(0.0, 10), (0.5, 5), (0.9, 1), (1.0, 0)])
def test_how_many_of_ten_are_fast(fraction: float, fast: int) -> None:
    assert _fast(fraction, 10) == fast


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), [0.5], "0.5", None])
def test_a_share_outside_zero_to_one_is_refused(fraction: Any) -> None:
    with pytest.raises(eh.EvenhandError, match="share of slow clients"):
        stragglers(fraction)


def test_equal_shares_are_one_object() -> None:
    assert stragglers(0.5) is stragglers(0.5)
    assert stragglers(0.5) is not stragglers(0.4)


def test_fast_clients_do_all_work_and_only_they_stay_where_partial_work_is_dropped(
    half: tuple[np.ndarray, np.ndarray],
) -> None:
    fast, progress = half
    assert (np.diff(fast, axis=1) > 0).all(), "in the cohort's order"
    assert (np.take_along_axis(progress, fast, axis=1) >= 1).all()
    assert ((progress >= 1).sum(axis=1) == 5).all()
    assert (progress >= 0).all()


def test_fast_clients_are_drawn_anew_and_fairly(half: tuple[np.ndarray, np.ndarray]) -> None:
    fast = half[1] >= 1
    deviation = 4.5 * np.sqrt(0.25 / _ROUNDS)
    assert np.abs(fast.mean(axis=0) - 0.5).max() < deviation
    again = (fast[1:] & fast[:-1]).mean()
    assert abs(again - 0.25) < deviation, "a round does not remember the one before"
    assert abs((fast & fast).mean() - 0.25) > deviation


def test_slow_shares_are_uniform_and_independent(half: tuple[np.ndarray, np.ndarray]) -> None:
    progress = half[1]
    shares = progress[progress < 1]
    assert stats.kstest(shares, "uniform").pvalue > 1e-3
    assert stats.kstest(shares**1.1, "uniform").pvalue < 1e-6
    both = (progress[:, 0] < 1) & (progress[:, 1] < 1)
    assert abs(np.corrcoef(progress[both, 0], progress[both, 1])[0, 1]) < 4.5 / np.sqrt(both.sum())


def test_a_client_has_the_same_share_in_any_slot() -> None:
    key, system = jax.random.key(0), stragglers(1.0)
    first = system.draw(key, Cohort.of(jnp.array([4, 7, 9])), True).progress
    moved = system.draw(key, Cohort.of(jnp.array([9, 4, 1])), True).progress
    assert moved[:2].tolist() == [float(first[2]), float(first[0])]
    assert float(moved[2]) != float(first[1])


def test_epochs_of_slow_clients_are_uniform(half: tuple[np.ndarray, np.ndarray]) -> None:
    shares = half[1][half[1] < 1]
    epochs, remainders = np.divmod(_steps(shares, size=7, epochs=20, batch_size=4), 2)
    assert not remainders.any(), "only whole epochs"
    assert epochs.min() == 1
    assert epochs.max() == 20
    assert stats.chisquare(np.bincount(epochs, minlength=21)[1:]).pvalue > 1e-3
    tolerance = 4.5 * epochs.std() / np.sqrt(len(epochs))
    assert abs(epochs.mean() - 10.5) < tolerance
    assert abs(epochs.mean() - 10.0) > tolerance, "not the {1, ..., 19} of the reference code"


@pytest.mark.parametrize(
    ("work", "most"),
    [({"epochs": 1, "batch_size": 4}, 3), ({"steps": 7, "batch_size": 4}, 7), ({"steps": 3}, 3)],
)
def test_slow_clients_do_a_part_of_the_steps_of_one_epoch(
    half: tuple[np.ndarray, np.ndarray], work: dict[str, int], most: int
) -> None:
    shares = half[1][half[1] < 1]
    steps = _steps(shares, size=10, **work)
    assert stats.chisquare(np.bincount(steps, minlength=most + 1)[1:]).pvalue > 1e-3
    assert steps.min() == 1
    assert steps.max() == most


def test_one_epoch_of_one_full_batch_cannot_be_cut() -> None:
    assert _steps(np.array([0.0, 0.5, 1.0], np.float32), size=10, epochs=1).tolist() == [1, 1, 1]


def test_fast_clients_do_all_epochs() -> None:
    below = np.nextafter(np.float32(1), np.float32(0))
    steps = _steps(np.array([1.0, 2.0, below, 0.0], np.float32), size=7, epochs=20)
    assert steps.tolist() == [20, 20, 20, 1]


def test_the_only_client_of_a_cohort_is_fast_or_slow() -> None:
    assert (_fast(0.4, 1), _fast(0.6, 1)) == (1, 0)
    fast, progress = _draws(0.4, m=1)
    assert fast.shape[1:] == (1,) and not fast.any(), "the client itself, in every round"
    assert (progress >= 1).all()


# --- dropouts ----------------------------------------------------------------------------------------------------


def _present(system: eh.systems.Systems, ids: Array, rounds: int = 2000) -> np.ndarray:
    draw = jax.vmap(
        lambda t: system.draw(stream(jax.random.key(5), Purpose.STRAGGLERS, t), Cohort.of(ids), True)
    )
    return np.asarray(jax.jit(draw)(jnp.arange(rounds)).present)


def test_each_client_drops_out_independently_with_the_given_probability() -> None:
    stays = _present(dropouts(0.3), 100 + jnp.arange(4))
    deviation = 4.5 * np.sqrt(0.3 * 0.7 / len(stays))
    assert np.abs(stays.mean(axis=0) - 0.7).max() < deviation
    assert abs((stays[:, 0] & stays[:, 1]).mean() - 0.49) < deviation
    assert abs((stays[1:] & stays[:-1]).mean() - 0.49) < deviation, "a round does not remember the one before"
    assert abs(stays.mean() - 0.75) > deviation / 2
    assert _present(dropouts(0.0), jnp.arange(4), 50).all()
    assert not _present(dropouts(1.0), jnp.arange(4), 50).any()


def test_a_client_drops_out_in_any_slot_and_an_empty_slot_stays_empty() -> None:
    first, moved = (_present(dropouts(0.5), jnp.array(ids), 50) for ids in ([4, 7, 9], [9, 4, 1]))
    assert np.array_equal(first[:, [0, 2]], moved[:, [1, 0]])
    assert not np.array_equal(first[:, 1], moved[:, 2])
    cohort = Cohort.of(jnp.arange(3), jnp.array([True, False, True]))
    assert dropouts(0.0).draw(jax.random.key(0), cohort, True).present.tolist() == [True, False, True]


def test_a_chain_applies_each_system_and_each_draws_as_it_does_alone() -> None:
    key, cohort = jax.random.key(2), Cohort.of(jnp.arange(40))
    both = chain(stragglers(0.5), dropouts(0.5)).draw(key, cohort, True)
    assert np.array_equal(both.progress, stragglers(0.5).draw(key, cohort, True).progress)
    assert np.array_equal(both.present, dropouts(0.5).draw(key, cohort, True).present)
    assert 0 < both.present.sum() < 40
    assert chain(stragglers(0.5)) is chain(stragglers(0.5))
    before = stragglers(0.5).draw(key, cohort, True).progress
    after = chain(stragglers(0.5), stragglers(0.5)).draw(key, cohort, True).progress
    assert (after == before).sum() == 20 and (after < 1).sum() > 20, "the fast ones keep what they had"
    twice = _present(chain(dropouts(0.5), dropouts(0.4)), jnp.arange(4))
    assert abs(twice.mean() - 0.3) < 4.5 * np.sqrt(0.3 * 0.7 / twice.size)
    nested = chain(chain(stragglers(0.5), dropouts(0.5)), dropouts(0.4))
    assert nested is chain(stragglers(0.5), dropouts(0.5), dropouts(0.4))
    with pytest.raises(eh.EvenhandError, match="systems="):
        chain(0.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(eh.EvenhandError, match="clients that drop out"):
        dropouts(2)


# --- who is available --------------------------------------------------------------------------------------------


def _available(
    system: eh.systems.Systems, clients: int, rounds: int, ids: tuple[str, ...] = ()
) -> np.ndarray:
    """Which clients are present in each round, ``(rounds, clients)``, as the engine asks for them."""
    mine = bound(system, ids or tuple(map(str, range(clients))))
    program = jax.vmap(lambda t: presence(mine, keys_of(0), clients, t))
    return np.asarray(jax.jit(program)(jnp.arange(rounds)))


def test_a_table_gives_each_client_its_slots_in_turn() -> None:
    table = np.array([[1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 0]])
    seen = _available(availability(table), 4, 7)
    assert np.array_equal(seen, table.T.astype(bool)[np.arange(7) % 3])
    assert not np.array_equal(_available(availability(1 - table), 4, 7), seen)


def test_a_file_is_matched_by_the_clients_ids(tmp_path: Path) -> None:
    path = tmp_path / "slots.csv"
    path.write_text("client,night,day\nb,0,1\nunused,1,1\n a ,1,0\n", encoding="utf-8")
    assert _available(availability(path), 2, 2, ("a", "b")).tolist() == [[True, False], [False, True]]
    assert _available(availability(str(path)), 2, 2, ("b", "a")).tolist() == [[False, True], [True, False]]
    accented = tmp_path / "accented.csv"
    accented.write_text("client,monday\ncafe\u0301,1\n", encoding="utf-8")  # an accent of its own
    assert _available(availability(accented), 1, 1, ("caf\u00e9",)).all(), "as the data spell it"
    with pytest.raises(eh.EvenhandError, match=r"no line for 1 of 2 clients of the data: 'unusd' \(perhaps"):
        bound(availability(path), ("a", "unusd"))
    with pytest.raises(eh.EvenhandError, match=r"'c', 'd', 'e' and 2 more"):
        bound(availability(path), tuple("abcdefg"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("client,s\na,2\n", "the table holds 2"),
        ("client,s\na,x\n", "not a number"),
        ("client,s\na,nan\n", "the table holds nan"),
        ("client,s\na,1\na,0\n", "more than one line"),
        ("client,s\na,1,0\n", "line 2 has 3 fields"),
        ("client,s\n", "no table"),
        ("client\na\n", "no table"),
        ("", "no table"),
    ],
)
def test_a_file_that_is_no_table_of_zeros_and_ones_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "slots.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(eh.EvenhandError, match=words):
        availability(path)


@pytest.mark.parametrize("table", [[0, 1], np.zeros((3, 0)), [[0.5]], [[1, 0], [1]], "no such file.csv"])
def test_what_is_no_table_is_refused(table: Any) -> None:
    with pytest.raises(eh.EvenhandError, match="availability"):
        availability(table)


def test_equal_tables_are_one_object_by_their_content(tmp_path: Path) -> None:
    table = np.eye(3, dtype=int)
    assert availability(table) is availability(table.astype(float)) is availability(table.tolist())
    ids = ("a", "b", "c")
    assert bound(availability(table), ids) is bound(availability(table.copy()), ids)
    path = tmp_path / "a.csv"
    path.write_text("id,t\na,1\n", encoding="utf-8")
    before = availability(path)
    assert availability(path) is before
    path.write_text("id,t\na,0\n", encoding="utf-8")
    assert availability(path) is not before
    with pytest.raises(eh.EvenhandError, match="has 3 rows, the data have 2 clients"):
        bound(availability(table), ("a", "b"))


@pytest.mark.parametrize(("period", "groups"), [(1, 1), (4, 2), (24, 3), (7, 3), (5, 5)])
def test_groups_take_turns_over_the_day(period: int, groups: int) -> None:
    seen = _available(diurnal(period, groups), 2 * groups + 1, 3 * period)
    for t, k in itertools.product(range(3 * period), range(2 * groups + 1)):
        assert seen[t, k] == (math.floor(groups / period * (t % period) + 1e-9) == k % groups)
    assert (np.array([seen[:, :groups].sum(axis=1)]) == 1).all(), "exactly one group at a time"


def test_a_smooth_day_has_its_sinusoid_for_each_group() -> None:
    """400 days of a day of 6 rounds; with the phase of the next group, the frequencies would be others."""
    days, period, groups = 400, 6, 3
    seen = _available(diurnal(period, groups, smooth=True), 6, days * period).reshape(days, period, 6)
    hours, group = np.arange(period)[:, None], np.arange(6) % groups
    chance = 0.5 * (1 + np.cos(2 * np.pi * (hours / period - group / groups)))
    deviation = 4.5 * np.sqrt(chance * (1 - chance) / days) + 1e-6
    assert (np.abs(seen.mean(axis=0) - chance) <= deviation).all()
    assert not (np.abs(seen.mean(axis=0) - np.roll(chance, 1, axis=1)) <= deviation).all()
    own, other = seen[:, 1, 0].astype(float), seen[:, 1, 3].astype(float)
    assert abs(np.corrcoef(own, other)[0, 1]) < 4.5 / np.sqrt(days), "clients of a group are independent"


def test_a_chain_of_availabilities_needs_all_of_them_and_draws_anew_for_each() -> None:
    night, day = availability([[1, 0], [1, 1]]), diurnal(4, 2)
    both = chain(night, stragglers(0.5), day)
    seen = _available(both, 2, 8)
    assert np.array_equal(seen, _available(night, 2, 8) & _available(day, 2, 8))
    smooth = diurnal(2, 1, smooth=True)
    twice = _available(chain(smooth, smooth), 2000, 2)
    assert twice[0].all() and not twice[1].any()
    quarter = _available(chain(diurnal(4, 1, smooth=True), diurnal(4, 1, smooth=True)), 2000, 2)[1]
    assert abs(quarter.mean() - 0.25) < 4.5 * np.sqrt(0.25 * 0.75 / 2000), "independently, or it were 0.5"


@pytest.mark.parametrize(("period", "groups"), [(0, 1), (4, 5), (4, 0), (2.5, 1), (2**15 + 1, 1)])
def test_a_day_without_rounds_or_with_too_many_groups_is_refused(period: Any, groups: Any) -> None:
    with pytest.raises(eh.EvenhandError, match="diurnal"):
        diurnal(period, groups)


# --- how long clients take ---------------------------------------------------------------------------------------


def _seconds(system: eh.systems.Systems, ids: tuple[str, ...]) -> np.ndarray:
    mine = bound(system, ids)
    assert mine is not None and mine.pace is not None
    return np.asarray(mine.pace.per_example(jnp.arange(len(ids))))


def test_seconds_are_given_for_each_client_or_for_all(tmp_path: Path) -> None:
    path = tmp_path / "speeds.csv"
    path.write_text("client,seconds\nb,2.5\na,1\n", encoding="utf-8")
    assert _seconds(speeds(path), ("a", "b")).tolist() == [1.0, 2.5]
    assert _seconds(speeds([0.5, 0.25]), ("a", "b")).tolist() == [0.5, 0.25]
    assert _seconds(speeds(3), ("a", "b")).tolist() == [3.0, 3.0]
    assert speeds([0.5, 0.25]) is speeds(np.array([0.5, 0.25])) is not speeds([0.5, 0.3])
    path.write_text("client,seconds,more\nb,2.5,1\n", encoding="utf-8")
    with pytest.raises(eh.EvenhandError, match="it has 3 columns"):
        speeds(path)


def test_a_spread_makes_seconds_log_normal_with_their_median_by_seed() -> None:
    ids = tuple(map(str, range(4000)))
    logs = np.log(_seconds(speeds(2.0, spread=0.7, seed=5), ids) / 2.0)
    assert stats.kstest(logs, stats.norm(scale=0.7).cdf).pvalue > 1e-3
    assert stats.kstest(logs, stats.norm(scale=0.85).cdf).pvalue < 1e-6
    assert np.array_equal(logs, np.log(_seconds(speeds(2.0, spread=0.7, seed=5), ids) / 2.0))
    assert not np.array_equal(logs, np.log(_seconds(speeds(2.0, spread=0.7, seed=6), ids) / 2.0))


@pytest.mark.parametrize(
    ("seconds", "options"),
    [
        (-1.0, {}),
        (math.nan, {}),
        ([1.0, math.inf], {}),
        ([[1.0]], {}),
        ("none.csv", {}),
        (None, {}),
        (1.0, {"deadline": -1.0}),
        (1.0, {"deadline": math.inf}),
        (1.0, {"communication": -0.1}),
        (1.0, {"spread": "0.5"}),
        ([1.0, 2.0], {"spread": 0.5}),
        (1.0, {"seed": -1}),
    ],
)
def test_seconds_that_are_no_times_are_refused(seconds: Any, options: dict[str, Any]) -> None:
    with pytest.raises(eh.EvenhandError, match="speeds"):
        speeds(seconds, **options)


def test_a_chain_has_one_clock() -> None:
    mine = bound(chain(stragglers(0.5), speeds(2.0, 5.0), diurnal(4, 2)), ("a", "b"))
    assert mine is not None and mine.pace is not None and mine.present is not None
    assert mine.pace.deadline == 5.0
    with pytest.raises(eh.EvenhandError, match="more than one speeds"):
        bound(chain(speeds(2.0), speeds(3.0)), ("a", "b"))
