"""Who is available when, and how long clients take: cohorts, clocks, deadlines, and what a run keeps of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from scipy import stats

import evenhand as eh
from evenhand import rounds
from evenhand.simulation import Job, iterate_many
from evenhand.simulation._simulate import runs_of
from evenhand.streams import keys_of
from evenhand.systems import Systems, availability, bound, chain, diurnal, speeds, stragglers
from evenhand.types import Algorithm, Cohort, Report

MODEL, DATA = eh.testing.toy_model(), eh.testing.toy_data()
N, SIZES = DATA.num_clients, np.asarray(DATA.train.sizes)
WORK = eh.local.sgd(MODEL, 0.1, epochs=3, batch_size=4)
FEDAVG, FEDPROX = eh.algorithms.fedavg(WORK), eh.algorithms.fedprox(WORK, mu=0.1)
SETTINGS: dict[str, Any] = {"rounds": 6, "eval_every": 3, "cohort": 3, "seed": 2}
_TABLE = np.array([[1, 0, 1], [1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 0, 1], [1, 1, 1]])
"""Six clients in three slots: four, two and four of them are present."""

# That clients are never available is what many of these tests make.
pytestmark = [pytest.mark.filterwarnings("ignore::evenhand.errors.EvenhandWarning"), pytest.mark.draws]


def flat(params: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


def cohorts(method: Algorithm, systems: Systems, m: int, count: int, seed: int) -> list[Cohort]:
    """Those of the first rounds, as server and clients draw them."""
    mine, sizes = bound(systems, DATA.client_ids), jnp.asarray(SIZES, jnp.int32)
    keys = rounds.roots(method, keys_of(seed))
    return [rounds.cohort(method, mine, sizes, m, keys, number, 0) for number in range(count)]


# --- cohorts among the clients that are available -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "systems"),
    [
        (
            eh.algorithms.fedavg(WORK, sampling=eh.sampling.proportional()),
            chain(diurnal(4, 2, smooth=True), stragglers(0.5)),
        ),
        (FEDPROX, chain(availability(_TABLE), speeds(0.1, 2.0, spread=1.0, communication=0.1))),
        (eh.algorithms.scaffold(WORK), chain(availability(_TABLE), speeds(0.1, 2.0, spread=1.0))),
        (eh.algorithms.feddane(WORK, mu=0.1), chain(diurnal(4, 2), speeds(0.1, 2.5, spread=0.5))),
        (eh.algorithms.delta_fl(WORK, theta=0.5, follow=True), availability(_TABLE)),
    ],
    ids=["proportional", "partial work", "states", "two exchanges", "delta_fl"],
)
def test_engine_and_twin_agree(method: Algorithm, systems: Systems) -> None:
    checks = eh.testing.algorithm_checks(method, systems=systems, lanes=(1, 3))
    wanted = ("twin", "lanes", "absent")
    chosen = [check for check in checks if any(word in check.name for word in wanted)]
    assert len(chosen) == 3, [check.name for check in checks]
    for check in chosen:
        check()


def test_one_group_without_turns_is_everybody_to_the_bit_and_two_are_not() -> None:
    usual = eh.simulate(FEDAVG, DATA, **SETTINGS)
    always = eh.simulate(FEDAVG, DATA, systems=diurnal(3, 1), **SETTINGS)
    for name, values in usual.history.items():
        np.testing.assert_array_equal(always.history[name], values)
    assert np.array_equal(flat(usual.params), flat(always.params))
    turns = eh.simulate(FEDAVG, DATA, systems=diurnal(2, 2), **SETTINGS)
    assert np.abs(flat(usual.params) - flat(turns.params)).max() > 1e-3
    assert usual.availability.shape == (0,) and always.availability.tolist() == [1.0] * N
    assert turns.availability.tolist() == [0.5] * N


def test_only_those_present_train_and_fewer_than_the_cohort_leave_slots_empty() -> None:
    run = eh.simulate(FEDAVG, DATA, systems=availability(_TABLE), **SETTINGS)
    assert run.per_round["reported"].tolist() == [3, 2, 3, 3, 2, 3]
    assert run.availability.tolist() == _TABLE.mean(axis=1).tolist()
    assert run.last_round[2] == 0 and (run.last_round[[0, 1, 3, 5]] > 0).all()
    whole = eh.simulate(FEDAVG, DATA, systems=availability(_TABLE), **{**SETTINGS, "cohort": None})
    assert whole.per_round["reported"].tolist() == [4, 2, 4, 4, 2, 4]


def test_a_round_without_anybody_changes_nothing() -> None:
    nobody = availability(np.zeros((N, 1)))
    first, last = eh.simulation.iterate(FEDAVG, DATA, systems=nobody, rounds=2, eval_every=2)
    pairs = zip(jax.tree.leaves(first.state), jax.tree.leaves(last.state), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
    kinds = [finding.kind for finding in last.findings]
    assert "unmoved" in kinds and "unavailable" in kinds
    assert "none was available" in last.findings[kinds.index("unmoved")].sentence


def test_rows_and_states_that_wait_on_the_host_are_those_of_present_clients() -> None:
    systems = chain(availability(_TABLE), speeds(0.1, 1.5, spread=1.0))
    scaffold = eh.algorithms.scaffold(WORK)
    usual = eh.simulate(scaffold, DATA, systems=systems, **SETTINGS)
    host = eh.simulate(scaffold, DATA, systems=systems, stream=True, offload=True, **SETTINGS)
    assert np.array_equal(flat(usual.params), flat(host.params))
    assert usual.per_round["reported"].tolist() == host.per_round["reported"].tolist()


def test_runs_that_train_together_are_those_of_each_alone() -> None:
    method = eh.algorithms.fedavg(WORK, sampling=eh.sampling.proportional(replace=False))
    systems = chain(diurnal(4, 2, smooth=True), speeds(0.1, 1.5, spread=1.0))
    jobs = [Job(method, DATA, rounds=4, cohort=3, seed=seed, systems=systems) for seed in (0, 1)]
    together = {position: run for position, run in iterate_many(jobs) if not isinstance(run, Exception)}
    for position, job in enumerate(jobs):
        *_, alone = runs_of(job)
        np.testing.assert_allclose(flat(together[position].params), flat(alone.params), atol=1e-6)
        for name in ("reported", "seconds"):
            np.testing.assert_allclose(together[position].per_round[name], alone.per_round[name], rtol=1e-6)
        assert np.array_equal(together[position].availability, alone.availability)
    assert not np.array_equal(together[0].availability, together[1].availability)


def test_a_run_continues_from_its_checkpoint_and_refuses_another_table(tmp_path: Path) -> None:
    systems = chain(availability(_TABLE), speeds(0.1, 1.5, spread=1.0))
    whole = eh.simulate(FEDAVG, DATA, systems=systems, **SETTINGS)
    eh.simulate(FEDAVG, DATA, systems=systems, checkpoint=tmp_path, **{**SETTINGS, "rounds": 3})
    again = eh.simulate(FEDAVG, DATA, systems=systems, checkpoint=tmp_path, **SETTINGS)
    assert np.array_equal(flat(whole.params), flat(again.params))
    assert np.array_equal(whole.availability, again.availability)
    for column in ("time", "seconds", "train_loss"):
        np.testing.assert_array_equal(whole.history[column], again.history[column])
    for other in (availability(_TABLE[::-1]), chain(availability(_TABLE), speeds(0.1, 1.5, spread=2.0))):
        with pytest.raises(eh.EvenhandError, match="of another run"):
            eh.simulate(FEDAVG, DATA, systems=other, checkpoint=tmp_path, **SETTINGS)


# --- samplings that rest on who takes part ------------------------------------------------------------------------


def test_poisson_cohorts_keep_their_promise_and_say_what_it_takes_for_granted() -> None:
    private = eh.privacy.dp_fedavg(WORK, clip=1.0, noise_multiplier=1.0, rate=0.5)
    usual = eh.simulate(private, DATA, rounds=4)
    limited = eh.simulate(private, DATA, rounds=4, systems=availability(_TABLE))
    assert usual.privacy is not None and limited.privacy is not None
    assert limited.privacy.epsilon == usual.privacy.epsilon
    assert set(limited.privacy.public) - set(usual.privacy.public) == {
        "which clients are available in which round, whatever their data"
    }
    drawn = cohorts(private, availability(_TABLE), 0, 4, 0)
    every = cohorts(private, diurnal(1, 1), 0, 4, 0)
    for number, (some, all_of_them) in enumerate(zip(drawn, every, strict=True)):
        here = set(np.flatnonzero(_TABLE[:, number % 3]))
        members, usually = (
            set(np.asarray(c.ids)[np.asarray(c.present)].tolist()) for c in (some, all_of_them)
        )
        assert members == usually & here, "the draw of a client does not depend on who else is there"
    assert limited.per_round["reported"].tolist() == [int(cohort.present.sum()) for cohort in drawn]


def test_a_fixed_part_of_all_clients_is_refused_and_so_is_a_sampling_that_knows_no_absence() -> None:
    fixed = eh.algorithms.fedavg(WORK, sampling=eh.sampling.fixed(0.5))
    with pytest.raises(eh.EvenhandError, match=r"systems=.*needs cohorts that are 0.5 of all clients"):
        eh.simulate(fixed, DATA, rounds=1, systems=diurnal(2, 2))
    own = eh.algorithms.fedavg(WORK, sampling=eh.sampling.uniform()._replace(among=None))
    with pytest.raises(eh.EvenhandError, match="draws from all clients only"):
        eh.simulate(own, DATA, rounds=1, systems=diurnal(2, 2))
    assert eh.simulate(fixed, DATA, rounds=1, systems=speeds(1.0)).per_round["reported"].tolist() == [3.0]
    with pytest.raises(eh.EvenhandError, match="has 3 rows, the data have 6 clients"):
        eh.simulate(FEDAVG, DATA, rounds=1, systems=availability(_TABLE[:3]))


def test_clients_in_turns_wait_for_their_next_turn() -> None:
    """Nobody takes the turn of a client that is absent: the schedule is that of everybody, with empty slots."""
    method = eh.algorithms.fedavg(WORK, sampling=eh.sampling.cyclic())
    drawn, usual = (cohorts(method, systems, 2, 6, 0) for systems in (availability(_TABLE), diurnal(1, 1)))
    for number, (some, everybody) in enumerate(zip(drawn, usual, strict=True)):
        assert some.ids.tolist() == everybody.ids.tolist()
        assert some.present.tolist() == _TABLE[np.asarray(some.ids), number % 3].astype(bool).tolist()
    assert not all(cohort.present.all() for cohort in drawn)


# --- simulated time -----------------------------------------------------------------------------------------------


def test_a_round_lasts_as_long_as_its_slowest_client() -> None:
    each = np.array([0.1, 0.5, 0.2, 0.3, 0.4, 0.25])
    run = eh.simulate(FEDAVG, DATA, systems=speeds(each, communication=2.0), **SETTINGS)
    lasted = [
        2.0 + max(float(each[k] * 3 * SIZES[k]) for k in cohort.ids.tolist())
        for cohort in cohorts(FEDAVG, speeds(each), 3, 6, 2)
    ]
    np.testing.assert_allclose(run.per_round["seconds"], lasted, rtol=1e-6)
    np.testing.assert_allclose(run.history["time"], [0.0, sum(lasted[:3]), sum(lasted)], rtol=1e-6)
    usual = eh.simulate(FEDAVG, DATA, **SETTINGS)
    assert np.array_equal(flat(usual.params), flat(run.params)), "a clock changes no number"
    assert "seconds" not in usual.per_round and "time" not in usual.history


def test_who_is_late_is_dropped_or_sends_the_epochs_that_fit() -> None:
    """An epoch takes each client one second: by a deadline of 2.5 seconds, two of three epochs are done."""
    each = 1.0 / SIZES
    settings: dict[str, Any] = {"rounds": 3, "seed": 1}
    two = eh.algorithms.fedprox(eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=4), mu=0.1)
    cut = eh.simulate(FEDPROX, DATA, systems=speeds(each, 2.5), **settings)
    np.testing.assert_allclose(flat(cut.params), flat(eh.simulate(two, DATA, **settings).params), atol=1e-6)
    assert np.abs(flat(cut.params) - flat(eh.simulate(FEDPROX, DATA, **settings).params)).max() > 1e-3
    assert cut.per_round["seconds"].tolist() == [2.5] * 3
    dropped = eh.simulate(FEDAVG, DATA, systems=speeds(each, 2.5), **settings)
    assert dropped.per_round["reported"].tolist() == [0, 0, 0]
    none_fits = eh.simulate(FEDPROX, DATA, systems=speeds(each, 0.9), **settings)
    assert none_fits.per_round["reported"].tolist() == [0, 0, 0], "not even one epoch"
    with_way = eh.simulate(FEDPROX, DATA, systems=speeds(each, 2.5, communication=0.6), **settings)
    assert np.abs(flat(with_way.params) - flat(cut.params)).max() > 1e-3, (
        "one epoch, since the way takes time"
    )
    in_time = eh.simulate(FEDAVG, DATA, systems=speeds(each, 3.001), **settings)
    assert in_time.per_round["reported"].tolist() == [N] * 3


def test_a_deadline_leaves_out_the_slow_ones_only() -> None:
    each = np.array([0.1, 5.0, 0.1, 5.0, 0.1, 0.1])
    run = eh.simulate(FEDAVG, DATA, systems=speeds(each, 10.0), rounds=2)
    assert run.per_round["reported"].tolist() == [4, 4]
    assert (run.last_round == np.where(each > 1, 0, 2)).all()


def test_stragglers_take_the_time_of_what_they_do_and_each_exchange_has_its_own() -> None:
    each = 1.0 / SIZES
    slow = eh.simulate(FEDPROX, DATA, systems=chain(stragglers(1.0), speeds(each)), rounds=20, cohort=1)
    np.testing.assert_allclose(np.unique(slow.per_round["seconds"].round(4)), [1, 2, 3], atol=1e-3)
    dane = eh.simulate(
        eh.algorithms.feddane(WORK, mu=0.1), DATA, systems=speeds(0.0, communication=1.0), rounds=1
    )
    assert dane.per_round["seconds"].tolist() == [2.0]


def test_who_is_absent_was_never_drawn_and_who_is_late_sends_nothing() -> None:
    """Two of four that are present are late: two uploads count, two are left out, and absent clients are neither."""
    present, each = np.array([[1], [1], [0], [1], [0], [1]]), np.array([0.1, 5.0, 0.1, 5.0, 0.1, 0.1])
    systems = chain(availability(present), speeds(each, 10.0))
    for stream in (False, True):
        run = eh.simulate(FEDAVG, DATA, systems=systems, rounds=3, stream=stream)
        sent = run.info["communication"]
        assert run.per_round["reported"].tolist() == [2, 2, 2]
        assert (sent["took_part"], sent["left_out"]) == (6, 6)
    partial = eh.simulate(FEDPROX, DATA, systems=chain(availability(present), speeds(0.1)), rounds=3)
    assert partial.info["communication"]["took_part"] == 12
    assert partial.info["communication"]["left_out"] == 0


def test_accuracy_against_time_is_a_figure_where_time_is_simulated(tmp_path: Path) -> None:
    run = eh.simulate(FEDAVG, DATA, systems=speeds(60.0, spread=0.5), **SETTINGS)
    figure = eh.report.figures.metric_against(run, "time")
    assert figure.axes[0].get_xlabel() == "simulated time (h)"
    drawn = [line.get_xdata() for line in figure.axes[0].lines if len(np.atleast_1d(line.get_xdata())) == 3]
    np.testing.assert_allclose(np.asarray(drawn[0], float), run.history["time"] / 3600.0)
    assert "against time" in run.report(tmp_path / "a.html").read_text()
    usual = eh.simulate(FEDAVG, DATA, **SETTINGS)
    assert "against time" not in usual.report(tmp_path / "b.html").read_text()
    with pytest.raises(eh.EvenhandError, match="has not recorded it"):
        eh.report.figures.metric_against([run, usual], "time")
    with pytest.raises(eh.EvenhandError, match="always available"):
        eh.report.figures.availability_scatter(run)


# --- what a run keeps and shows -----------------------------------------------------------------------------------


def test_a_folder_keeps_how_often_each_client_was_available(tmp_path: Path) -> None:
    run = eh.simulate(FEDAVG, DATA, systems=availability(_TABLE), **SETTINGS)
    saved = eh.load_run(run.save(tmp_path / "run"))
    assert np.array_equal(saved.availability, run.availability)
    assert [finding.kind for finding in saved.findings] == [finding.kind for finding in run.findings]
    header, *lines = (tmp_path / "run" / "clients.csv").read_text().splitlines()
    column = header.split(",").index("availability")
    np.testing.assert_allclose([float(line.split(",")[column]) for line in lines], _TABLE.mean(axis=1))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())["availability"]
    assert (summary["never"], summary["clients"], summary["max"]) == (1, 6, 1.0)
    losses = run.client_metrics("train")
    metric = summary["correlation"]["train"]["metric"]
    expected = cast(Any, stats.spearmanr(_TABLE.mean(axis=1), losses[metric])).statistic
    assert summary["correlation"]["train"]["spearman"] == pytest.approx(expected)
    page = run.report(tmp_path / "report.html").read_text()
    assert "How often clients were available" in page and "rank correlation" in page
    other = eh.simulate(FEDAVG, DATA, **SETTINGS)
    assert "available" not in other.report(tmp_path / "other.html").read_text()
    assert "availability" not in (other.save(tmp_path / "other") / "clients.csv").read_text()


def test_the_finding_counts_clients_that_were_never_available() -> None:
    run = eh.simulate(FEDAVG, DATA, systems=availability(_TABLE), **SETTINGS)
    (sentence,) = [finding.sentence for finding in run.findings if finding.kind == "unavailable"]
    assert sentence.startswith("1 of 6 clients was never available in 6 rounds")
    early, *_ = eh.simulation.iterate(FEDAVG, DATA, systems=availability(_TABLE), rounds=1)
    assert np.isnan(early.availability).all()
    assert not [finding for finding in early.findings if finding.kind == "unavailable"]
    held = eh.simulate(FEDAVG, DATA, systems=diurnal(2, 2), **SETTINGS)
    assert not [finding for finding in held.findings if finding.kind == "unavailable"]


# --- Delta-FL that follows availability ---------------------------------------------------------------------------


def test_delta_fl_that_follows_is_delta_fl_while_all_slots_are_filled() -> None:
    """Half of four slots count: of two clients that are there, both, and not one."""
    alike = eh.sampling.uniform(weighted=False)
    plain, follows = (
        eh.algorithms.delta_fl(WORK, theta=0.5, follow=follow, sampling=alike) for follow in (False, True)
    )
    settings: dict[str, Any] = {**SETTINGS, "cohort": 4}
    usual = [flat(eh.simulate(method, DATA, **settings).params) for method in (plain, follows)]
    assert np.array_equal(usual[0], usual[1])
    limited = [
        eh.simulate(method, DATA, systems=availability(_TABLE), **settings) for method in (plain, follows)
    ]
    assert np.abs(flat(limited[0].params) - flat(limited[1].params)).max() > 1e-3
    counts = [run.per_round["effective_cohort"] for run in limited]
    np.testing.assert_allclose(counts, [[2, 1, 2, 2, 1, 2], [2] * 6], rtol=1e-5)


def test_delta_fl_that_follows_counts_the_slots_of_stragglers_that_are_left_out() -> None:
    """Of four slots half of which are slow, both fast clients count; alone and beside another method."""
    alike = eh.sampling.uniform(weighted=False)
    follows = eh.algorithms.delta_fl(WORK, theta=0.5, follow=True, sampling=alike)
    settings: dict[str, Any] = {**SETTINGS, "cohort": 4, "rounds": 2, "systems": stragglers(0.5)}
    alone = eh.simulate(follows, DATA, **settings)
    assert alone.per_round["reported"].tolist() == [2, 2]
    np.testing.assert_allclose(alone.per_round["effective_cohort"], [2, 2], rtol=1e-5)
    pair = eh.algorithms.side_by_side({"mean": eh.algorithms.fedavg(WORK, sampling=alike), "tail": follows})
    np.testing.assert_allclose(
        flat(eh.simulate(pair, DATA, **settings).params[1]), flat(alone.params), atol=1e-6
    )


def test_delta_fl_follows_no_cohorts_of_random_size() -> None:
    with pytest.raises(
        eh.EvenhandError, match=r"draws each client independently: .* eh\.sampling\.uniform\(\)"
    ):
        eh.algorithms.delta_fl(WORK, theta=0.5, follow=True, sampling=eh.sampling.poisson(0.5))
    eh.algorithms.delta_fl(WORK, theta=0.5, follow=True, sampling=eh.sampling.fixed(0.5))


@pytest.mark.parametrize("kind", ["superquantile", "smoothed", "filtered"])
@given(data=st.data())
@hypothesis.settings(max_examples=25, deadline=None)
def test_the_tail_of_the_slots_is_that_of_the_clients_at_the_fraction_that_follows(
    kind: str, data: Any
) -> None:
    """Unequal weights, any losses: theta_t = min(1, theta m / |S_t|), and it differs from theta."""
    draw, m = data.draw, 8
    present = np.array(draw(st.lists(st.booleans(), min_size=m, max_size=m).filter(any)))
    losses = np.array(draw(st.permutations(np.linspace(-3.0, 50.0, m).tolist())))
    weights = np.array(draw(st.lists(st.integers(1, 50), min_size=m, max_size=m)), np.float64)
    theta = draw(st.sampled_from([0.125, 0.3, 0.5, 0.8, 1.0]))
    follows = min(1.0, theta * m / present.sum())
    make = {
        "superquantile": eh.risks.superquantile,
        "smoothed": lambda share: eh.risks.smoothed_superquantile(share, 4.0),
        "filtered": eh.risks.tail_mean,
    }[kind]
    if (
        kind == "filtered"
    ):  # a quantile of unequal weights falls on a client, and rounding decides on which side
        weights = np.ones(m)
    weigh = eh.aggregators.risk_weighted(make(theta), of_slots=True).weigh
    assert weigh is not None
    report = Report(*(jnp.where(present, x, 0.0).astype(jnp.float32) for x in (weights, losses)))
    found = np.asarray(weigh(report, Cohort.of(jnp.arange(m), jnp.asarray(present)), ())[0])
    assert not found[~present].any()
    expected = make(follows).weights(
        jnp.asarray(losses[present], jnp.float32), jnp.asarray(weights[present], jnp.float32)
    )
    np.testing.assert_allclose(found[present] / found.sum(), expected, atol=2e-5)
