"""Who is there and what counts: empty slots, noise, rejected uploads, coalitions and several passes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits

import evenhand as eh
from evenhand import rounds, tree
from evenhand.streams import Purpose, keys_of, stream
from evenhand.systems import Systems
from evenhand.types import Algorithm, Attack, Cohort, Report, Stack, Sum, Summation

MODEL, DATA = eh.testing.toy_model(), eh.testing.toy_data()
CLIENTS = DATA.num_clients
WORK = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4)


# Rejected uploads are what many of these tests make, and what each of them counts.
pytestmark = pytest.mark.filterwarnings("ignore::evenhand.errors.EvenhandWarning")


def flat(params: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


# --- Poisson cohorts, noise and rounds without anybody -----------------------------------------------------------


NOBODY = 1e-10
"""A rate at which no client is ever drawn."""
NOISY = eh.privacy.noisy_mean(1.0, noise_multiplier=0.5, rate=2.0 / CLIENTS)
"""With two clients expected, its noise has a deviation of 1/4."""


def _private(rate: float, *, aggregator: Sum = NOISY, steps: bool = True) -> Algorithm:
    method = eh.algorithms.fedavg(WORK, aggregator=aggregator, sampling=eh.sampling.poisson(rate))
    (phase,) = method.phases
    return method._replace(phases=(phase._replace(steps_if_empty=steps),))


def test_poisson_cohorts_with_noise_of_clients_and_server_keep_the_contract() -> None:
    def lift(upload: Any, clip: Any, key: Any) -> Any:
        lifted = NOISY.lift(upload, clip, key)
        return jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(key, leaf.shape), lifted)

    method = _private(0.5, aggregator=NOISY._replace(lift=lift))
    eh.testing.check_algorithm(method, lanes=(3,), devices=(1, 2))


def test_the_noise_of_an_empty_round_is_drawn_as_ever_and_moves_the_model() -> None:
    """The server's first direction is clip * noise / expected of the draws that its key gives."""
    run = eh.simulate(_private(NOBODY), DATA, rounds=1, seed=3)
    key = jax.random.fold_in(stream(keys_of(3).secret, Purpose.AGGREGATOR, 0, 0), 0)
    start = eh.simulate(_private(NOBODY), DATA, rounds=0, seed=3).params
    of_mean, _ = jax.random.split(key)
    keys = jax.random.split(of_mean, len(jax.tree.leaves(start)))
    noise = [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, jax.tree.leaves(start), strict=True)]
    np.testing.assert_allclose(flat(run.params) - flat(start), 0.25 * flat(noise), atol=1e-6)
    assert run.per_round["reported"].tolist() == run.per_round["rejected"].tolist() == [0.0]


def test_a_round_without_anybody_changes_nothing_where_the_method_does_not_ask_for_it() -> None:
    first, *others = eh.simulation.iterate(_private(NOBODY, steps=False), DATA, rounds=3, eval_every=1)
    momentum = eh.algorithms.fedavg(
        WORK, server_opt=eh.server_opt.fedadam(0.1), sampling=eh.sampling.poisson(NOBODY)
    )
    begin, *empty = eh.simulation.iterate(momentum, DATA, rounds=2, eval_every=1)
    for before, runs in ((first, others), (begin, empty)):
        for run in runs:
            pairs = zip(jax.tree.leaves(before.state), jax.tree.leaves(run.state), strict=True)
            assert all(np.array_equal(a, b) for a, b in pairs)
    assert not np.array_equal(flat(eh.simulate(_private(NOBODY), DATA, rounds=1).params), flat(first.params))


def test_reported_counts_who_is_there() -> None:
    run = eh.simulate(_private(0.5), DATA, rounds=20, seed=1)
    ids = jnp.asarray(DATA.train.sizes, jnp.int32)
    cohorts = [rounds.cohort(_private(0.5), None, ids, 1, keys_of(1), number, 0) for number in range(20)]
    counts = [int(cohort.present.sum()) for cohort in cohorts]
    assert run.per_round["reported"].tolist() == counts
    assert len(set(counts)) > 2 and max(counts) <= CLIENTS


def test_streamed_rows_are_those_of_present_clients_and_change_nothing() -> None:
    resident, streamed = (eh.simulate(_private(0.3), DATA, rounds=5, stream=each) for each in (False, True))
    assert np.array_equal(flat(resident.params), flat(streamed.params))


def test_noise_comes_from_the_secret_root_alone() -> None:
    """With another secret, the cohorts and batches are the same, and what the server adds is not."""
    keys = keys_of(0)
    other = keys._replace(secret=jax.random.key(99))
    ids = jnp.asarray(DATA.train.sizes, jnp.int32)
    for number in range(3):
        drawn = [rounds.cohort(_private(0.5), None, ids, 1, each, number, 0) for each in (keys, other)]
        assert np.array_equal(drawn[0].present, drawn[1].present)
        assert rounds.work_key(keys, number, 0, jnp.int32(1)) == rounds.work_key(
            other, number, 0, jnp.int32(1)
        )
        lifts = {
            tuple(jax.random.key_data(rounds.lift_key(each, number, 0, jnp.int32(k))).tolist())
            for each in (keys, other)
            for k in range(3)
        }
        assert len(lifts) == 6
    assert (
        len({tuple(jax.random.key_data(key).tolist()) for seed in range(50) for key in keys_of(seed)}) == 100
    )


def test_client_noise_differs_by_client_round_and_pass() -> None:
    """Uploads are 0: what two clients add in two rounds of two passes is all that the sums hold."""

    def lift(upload: Any, public: Any, key: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf + jax.random.normal(key, leaf.shape), upload.delta)

    def lower(total: Any, state: Any, key: Any) -> Any:
        return total, (state[1], total)

    noted = Sum(lambda like, clients: (like, like), lift, lower, passes=2)
    still = eh.algorithms.fedavg(eh.local.sgd(MODEL, 0.0, steps=1), aggregator=noted)
    runs = list(eh.simulation.iterate(still, DATA, rounds=2, eval_every=1, cohort=2))[1:]
    sums = [flat(one) for run in runs for one in run.state.aggregators[0]]
    assert len({tuple(one.tolist()) for one in sums}) == 4
    alone = list(eh.simulation.iterate(still, DATA, rounds=1, cohort=1))[-1]
    assert abs(np.var(sums) / np.var([flat(one) for one in alone.state.aggregators[0]]) - 2) < 1.2


@pytest.mark.parametrize("is_secure", [True, False])
def test_masks_and_noise_of_a_pass_have_keys_of_their_own(is_secure: bool) -> None:
    """Instead of masks, the sums are what their key draws; beside them is what the key of the noise draws."""

    def drawn(like: Any, key: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.random.normal(key, leaf.shape), like)

    def add(lifted: Any, present: Any, key: Any) -> Any:
        return drawn(jax.tree.map(lambda leaf: leaf[0], lifted), key)

    noted = Sum(
        lambda like, clients: (like,) * 4,
        lambda upload, public, key: upload.delta,
        lambda total, state, key: (total, (*state[2:], total, drawn(total, key))),
        passes=2,
        summation=Summation(bits=32, add=add, is_secure=is_secure),
    )
    run = eh.simulate(eh.algorithms.fedavg(WORK, aggregator=noted), DATA, rounds=1, masks=True)
    assert len({tuple(flat(part).tolist()) for part in run.state.aggregators[0]}) == 4


# --- uploads that no honest client can send ----------------------------------------------------------------------

_WRONG: dict[str, float] = {"too large": 1e38, "negative": -1e6, "nan": np.nan, "inf": np.inf}
METHODS: dict[str, Algorithm] = {
    "fedavg": eh.algorithms.fedavg(WORK),
    "fedavg, alike": eh.algorithms.fedavg(WORK, sampling=eh.sampling.uniform(weighted=False)),
    "fedadam": eh.algorithms.fedavg(WORK, server_opt=eh.server_opt.fedadam(0.1)),
    "fedprox": eh.algorithms.fedprox(WORK, mu=0.1),
    "fedprox_adaptive": eh.algorithms.fedprox_adaptive(WORK, mu0=0.1),
    "feddane": eh.algorithms.feddane(WORK, mu=0.1),
    "scaffold": eh.algorithms.scaffold(WORK),
    "qfedavg": eh.algorithms.qfedavg(WORK, q=1.0),
    "qfedsgd": eh.algorithms.qfedsgd(MODEL, q=1.0, lipschitz=10.0),
    "qfedsgd, step": eh.algorithms.qfedsgd(MODEL, q=1.0, step_size=0.1),
    "afl": eh.algorithms.afl(MODEL, gamma_w=0.1, gamma_lambda=0.1),
    "qmaml": eh.algorithms.qmaml(MODEL, q=1.0, step_size=0.1),
    "delta_fl": eh.algorithms.delta_fl(WORK, theta=0.5),
    "term": eh.algorithms.term(WORK, t=1.0),
    "term, running": eh.algorithms.term(WORK, t=1.0, running=0.5),
    "fedmgda": eh.algorithms.fedmgda(WORK),
    "fedtilt": eh.algorithms.fedtilt(WORK, classes=3, tilt_server=0.5),
    "geometric median": eh.algorithms.fedavg(
        WORK, aggregator=eh.aggregators.geometric_median(3, start="mean")
    ),
    "krum": eh.algorithms.fedavg(WORK, aggregator=eh.aggregators.krum(0)),
    "side by side": eh.algorithms.side_by_side(
        {name: eh.algorithms.delta_fl(WORK, theta=theta) for name, theta in (("a", 0.5), ("b", 1.0))}
    ),
}


def _attack(method: Algorithm, malicious: tuple[int, ...]) -> Attack:
    """Each malicious client sends, by its key, one of six things that no honest one can send."""
    wrong = jnp.array(list(_WRONG.values()), jnp.float32)
    needs_loss = any(phase.aggregator.needs_loss for phase in method.phases)

    def report(report: Report, key: Any) -> Report:
        kind = jax.random.randint(key, (), 0, 5 if needs_loss else 4)
        weight = jnp.where(kind < 4, wrong[jnp.minimum(kind, 3)], report.weight)
        return Report(weight, jnp.where(kind == 4, jnp.nan, report.loss))

    def upload(delta: Any, key: Any) -> Any:
        spoilt = wrong[jax.random.randint(key, (), 2, 4)]
        return jax.tree.map(lambda leaf: leaf.at[(0,) * leaf.ndim].set(spoilt.astype(leaf.dtype)), delta)

    return Attack(clients=malicious, report=report, upload=upload)


def _without(absent: tuple[int, ...]) -> Systems:
    """A world in which these two clients drop out of every round; one program, whoever they are."""
    # Fractions become arguments of the program; whole numbers and arrays would compile it again.
    numbers = tuple(client + 0.2 for client in absent)

    def draw(key: Any, cohort: Cohort, keep_partial: bool) -> Cohort:
        ids = cohort.ids.astype(jnp.float32)
        gone = (jnp.abs(ids - numbers[0]) < 0.5) | (jnp.abs(ids - numbers[1]) < 0.5)
        return cohort._replace(present=cohort.present & ~gone)

    return Systems(draw)


@pytest.mark.parametrize("name", METHODS)
def test_what_no_honest_client_can_send_is_rejected_and_counted_by_every_method(name: str) -> None:
    """The run is that of a world in which the malicious clients always drop out; SCAFFOLD keeps their states."""
    method, malicious, nobody = METHODS[name], (1, 4), (CLIENTS, CLIENTS + 1)
    attack = _attack(method, malicious)
    settings: dict[str, Any] = {"rounds": 3, "seed": 2, "eval_every": 3}
    attacked = eh.simulate(method, DATA, attack=attack, systems=_without(nobody), **settings)
    without = eh.simulate(method, DATA, attack=attack, systems=_without(malicious), **settings)
    for a, b in zip(jax.tree.leaves(attacked.state), jax.tree.leaves(without.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert np.isfinite(flat(attacked.params)).all()
    assert attacked.per_round["rejected"].tolist() == [2.0 * len(method.phases)] * 3
    assert attacked.per_round["reported"].tolist() == [CLIENTS - 2.0] * 3
    assert without.per_round["rejected"].tolist() == [0.0] * 3
    assert [finding.kind for finding in attacked.findings] == ["rejected"]
    no_attack = attack._replace(clients=())
    honest = eh.simulate(method, DATA, attack=no_attack, systems=_without(nobody), **settings)
    assert honest.per_round["reported"].tolist() == [float(CLIENTS)] * 3
    assert not np.allclose(flat(honest.params), flat(attacked.params), rtol=1e-5, atol=1e-6)
    # Everybody fails: the model stays where it was, and the run says so.
    everybody = attack._replace(clients=tuple(range(CLIENTS)))
    begin, end = eh.simulation.iterate(method, DATA, attack=everybody, systems=_without(nobody), **settings)
    assert np.array_equal(flat(begin.params), flat(end.params))
    assert end.per_round["reported"].tolist() == [0.0] * 3
    assert end.per_round["rejected"].tolist() == [float(CLIENTS) * len(method.phases)] * 3
    assert [finding.kind for finding in end.findings] == ["rejected"]
    assert "none was ever accepted" in end.findings[0].sentence


@pytest.mark.parametrize("what", ["weight", "loss", "delta"])
def test_each_kind_is_rejected_alone(what: str) -> None:
    """And what an honest client might have sent is not: half its weight, a large loss, a large delta."""

    def send(a: float, b: float) -> Attack:
        """The value ``exp(a) + log(b)``, so that one program serves a NaN and an infinity, too."""

        def value() -> Any:
            return jnp.exp(jnp.float32(a)) + jnp.log(jnp.float32(b))

        if what == "delta":

            def upload(delta: Any, key: Any) -> Any:
                return jax.tree.map(lambda leaf: jnp.full_like(leaf, value()), delta)

            return Attack(clients=(2,), upload=upload)
        return Attack(clients=(2,), report=lambda report, key: report._replace(**{what: value()}))

    method, huge = METHODS["delta_fl"], 0.0 if what == "loss" else 1.0
    for value, (a, b), rejected in (
        (np.nan, (0.5, -2.0), 1.0),
        (np.inf, (300.0, 2.0), 1.0),
        (1.34, (0.5, 0.735), 0.0),
        (1e38, (87.498, 2.0), huge),
    ):
        run = eh.simulate(method, DATA, rounds=1, attack=send(a, b))
        assert run.per_round["rejected"].tolist() == [rejected], value
        assert np.isfinite(flat(run.params)).all()


# --- coalitions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregator", ["mean", "krum"])
def test_a_little_is_enough_for_a_coalition_to_do_harm(aggregator: str) -> None:
    """ALIE hides within the honest uploads' deviation: Krum, which survives uploads far away, chooses it."""
    reduce = {"mean": eh.aggregators.mean(), "krum": eh.aggregators.krum(9)}[aggregator]
    x, y = load_digits(return_X_y=True)
    data = eh.data.from_arrays((x / 16).astype(np.float32), y, np.arange(len(y)) % 20, seed=0)
    work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, steps=5, batch_size=1)
    method = eh.algorithms.fedavg(work, aggregator=reduce, sampling=eh.sampling.uniform(weighted=False))
    attack = eh.attacks.by_clients(eh.attacks.alie(0.45), tuple(range(0, 18, 2)))
    settings: dict[str, Any] = {"rounds": 40, "seed": 1, "eval_every": 40}
    honest, attacked = (eh.simulate(method, data, attack=each, **settings) for each in (None, attack))
    loss = [float(run.history["train_loss"][-1]) for run in (honest, attacked)]
    assert loss[1] > {"mean": 1.25, "krum": 1.6}[aggregator] * loss[0], loss
    assert attacked.per_round["rejected"].sum() == 0, "each upload looks like an honest one"
    if aggregator == "krum":
        far = attack._replace(
            collude=lambda uploads, malicious, present, key: tree.scale(-1e3, uploads.delta)
        )
        survived = eh.simulate(method, data, attack=far, **settings)
        assert float(survived.history["train_loss"][-1]) < 1.2 * loss[0]


def test_a_coalition_sees_all_uploads_and_replaces_its_own_only() -> None:
    """It sends the sum of what honest clients sent; engine and twin agree, on one device and on two."""
    note = Stack(
        lambda like, clients: jax.tree.map(lambda leaf: jnp.zeros((4, *leaf.shape)), like),
        lambda uploads, present, state, key: (
            jax.tree.map(lambda leaf: 0 * leaf[0], uploads.delta),
            uploads.delta,
        ),
    )

    def collude(uploads: Any, malicious: Any, present: Any, key: Any) -> Any:
        honest = (present & ~malicious).astype(jnp.float32)
        return jax.tree.map(
            lambda leaf: jnp.broadcast_to(jnp.tensordot(honest, leaf, axes=1), leaf.shape), uploads.delta
        )

    method = eh.algorithms.fedavg(WORK, aggregator=note)
    for devices in (1, 2):
        settings: dict[str, Any] = {"rounds": 1, "cohort": 4, "seed": 3, "devices": devices}
        honest = eh.simulate(method, DATA, **settings).state.aggregators[0]
        ids = rounds.cohort(method, None, jnp.asarray(DATA.train.sizes, jnp.int32), 4, keys_of(3), 0, 0).ids
        attack = Attack(clients=(int(ids[1]),), collude=collude)
        sent = eh.simulate(method, DATA, attack=attack, **settings).state.aggregators[0]
        for a, b in zip(jax.tree.leaves(honest), jax.tree.leaves(sent), strict=True):
            np.testing.assert_allclose(b[np.array([0, 2, 3])], a[np.array([0, 2, 3])], rtol=1e-6)
            np.testing.assert_allclose(b[1], a[np.array([0, 2, 3])].sum(axis=0), rtol=1e-5, atol=1e-6)
            assert np.abs(b[1] - a[1]).max() > 1e-3


def test_an_attack_begins_and_ends_when_it_should_and_names_its_clients() -> None:
    method = METHODS["fedavg"]
    spoil = Attack(clients=(0, 3), upload=lambda delta, key: tree.scale(jnp.nan, delta), first=2, last=3)
    run = eh.simulate(method, DATA, rounds=5, attack=spoil)
    assert run.per_round["rejected"].tolist() == [0.0, 2.0, 2.0, 0.0, 0.0]
    assert np.flatnonzero(run.malicious).tolist() == [0, 3]
    later = eh.simulate(method, DATA, rounds=3, attack=spoil._replace(last=None))
    assert later.per_round["rejected"].tolist() == [0.0, 2.0, 2.0]
    boast = Attack(clients=(0,), report=lambda report, key: report._replace(weight=jnp.float32(-1)), first=3)
    assert eh.simulate(method, DATA, rounds=4, attack=boast).per_round["rejected"].tolist() == [0, 0, 1, 1]
    for wrong, words in (
        (spoil._replace(fraction=0.2), "both fraction= and clients="),
        (spoil._replace(clients=(CLIENTS,)), "clients"),
        (spoil._replace(first=0), "first"),
        (spoil._replace(last=1), "last"),
    ):
        with pytest.raises(eh.EvenhandError, match=words):
            eh.simulate(method, DATA, rounds=1, attack=wrong)


def test_a_summary_may_leave_malicious_clients_out() -> None:
    attack = Attack(clients=(0, 3), upload=lambda delta, key: tree.scale(-1.0, delta))
    run = eh.simulate(METHODS["fedavg"], DATA, rounds=2, attack=attack)
    loss = run.client_metrics("train")["loss"]
    groups: dict[Any, Any] = {"all": loss, "honest": np.delete(loss, [0, 3]), "malicious": loss[[0, 3]]}
    for who, chosen in groups.items():
        assert run.summary("train", "loss", who=who)["mean"] == pytest.approx(chosen.mean())
    assert run.summary("train", "loss", who="honest")["mean"] != pytest.approx(loss.mean(), rel=1e-6)
    with pytest.raises(eh.EvenhandError, match="who='attackers'"):
        run.summary("train", who="attackers")  # pyright: ignore[reportArgumentType]
    with pytest.raises(eh.EvenhandError, match="none of the evaluated clients is malicious"):
        eh.simulate(METHODS["fedavg"], DATA, rounds=0).summary("train", who="malicious")


@pytest.mark.parametrize("name", ["persistent_outliers", "gaussian", "random_model", "alie", "label_flip"])
def test_engine_and_twin_agree_under_attack(name: str) -> None:
    make = {
        "persistent_outliers": lambda: eh.attacks.persistent_outliers(
            0.5, examples=0.6, pixels=0.5, high=3.0
        ),
        "gaussian": lambda: eh.attacks.gaussian(0.5),
        "random_model": lambda: eh.attacks.random_model(0.5),
        "alie": lambda: eh.attacks.alie(0.5, z=2.0),
        "label_flip": lambda: eh.attacks.label_flip(0.5, classes=3),
    }
    method, attack = METHODS["fedavg"], make[name]()
    eh.testing.check_algorithm(method, attack=attack, lanes=(1, 3), devices=(1, 2), rounds=2)
    honest, attacked, late = (
        flat(eh.simulate(method, DATA, rounds=2, attack=each).params)
        for each in (None, attack, eh.attacks.during(attack, first=3))
    )
    assert np.abs(honest - attacked).max() > 1e-3
    assert np.allclose(honest, late, atol=1e-6) == (attack.rows is None), "poisoned before the run"


def test_outliers_differ_from_round_to_round_and_from_client_to_client() -> None:
    """The work sends the sum of its features, and a client keeps those of each round."""
    method = METHODS["fedavg"]
    (phase,) = method.phases

    def work(message: Any, own: Any, data: Any, key: Any) -> Any:
        mine = jnp.arange(data.capacity) < data.size
        seen = jnp.sum(jnp.where(mine[:, None], rounds.own_rows(data).x, 0.0))
        return jax.tree.map(jnp.zeros_like, MODEL.init(key)), jnp.concatenate([own[1:], seen[None]])

    spy = method._replace(
        phases=(phase._replace(work=work),), init_client=lambda params: jnp.zeros(3), personal_params=None
    )
    attack = eh.attacks.persistent_outliers(1.0, examples=1.0, pixels=1.0, low=1.0, high=2.0)
    hit = eh.simulate(spy, DATA, rounds=3, attack=eh.attacks.during(attack, last=2)).state.clients
    clean = np.asarray(eh.simulate(spy, DATA, rounds=3).state.clients)
    sizes = np.asarray(DATA.train.sizes) * DATA.train.x.shape[1]
    means = np.asarray(hit)[:, :2] / sizes[:, None]
    assert ((means > 1) & (means < 2)).all() and len(np.unique(means)) == means.size
    np.testing.assert_allclose(np.asarray(hit)[:, 2], clean[:, 2], rtol=1e-5)


# --- several passes ----------------------------------------------------------------------------------------------


def test_a_median_of_three_passes_is_one_in_a_stream_a_stack_and_on_two_devices() -> None:
    """The twin reduces stacked uploads; the engine folds them group by group, on one device and on two."""
    method = METHODS["geometric median"]
    eh.testing.check_algorithm(method, lanes=(1, 3), devices=(1, 2), rounds=2)
    three, one = (
        eh.simulate(
            eh.algorithms.fedavg(WORK, aggregator=eh.aggregators.geometric_median(passes, start="mean")),
            DATA,
            rounds=1,
        )
        for passes in (3, 1)
    )
    mean = eh.simulate(METHODS["fedavg"], DATA, rounds=1)
    np.testing.assert_allclose(flat(one.params), flat(mean.params), atol=1e-6)
    assert np.abs(flat(three.params) - flat(one.params)).max() > 1e-3


def test_traffic_is_what_is_published_and_lifted_in_each_pass() -> None:
    """The model has p numbers.  A pass of the median: p and a counter down, p and a weight up."""
    p = flat(MODEL.init(jax.random.key(0))).size
    for name, down, up in (
        ("fedavg", p, p + 1),
        ("geometric median", p + 3 * (p + 1), 3 * (p + 1)),
        ("delta_fl", p + 1, p + 1 + 2),
        ("krum", p, p + 1),
        ("feddane", p + 2 * p + 1, 2 * (p + 1)),
        ("scaffold", 2 * p, 2 * p + 1),
    ):
        run = eh.simulate(METHODS[name], DATA, rounds=0)
        assert run.info["floats"] == {"down": down, "up": up}, name


def test_a_sampling_that_draws_bare_ids_is_told_what_to_return() -> None:
    bare = eh.sampling.uniform()._replace(draw=lambda key, sizes, m: jnp.arange(m))
    with pytest.raises(eh.EvenhandError, match=r"Sampling\.draw.*Cohort\.of"):
        eh.simulate(eh.algorithms.fedavg(WORK, sampling=bare), DATA, rounds=1)


def test_methods_side_by_side_step_without_anybody_where_all_of_them_ask_for_it() -> None:
    noisy = _private(NOBODY)
    quiet = noisy._replace(phases=(noisy.phases[0]._replace(steps_if_empty=False),))
    both = eh.simulate(eh.algorithms.side_by_side({"a": noisy, "b": noisy}), DATA, rounds=2, seed=3)
    start = eh.simulate(noisy, DATA, rounds=0, seed=3)
    assert all(not np.array_equal(flat(params), flat(start.params)) for params in both.params)
    with pytest.raises(eh.EvenhandError, match="cannot share their rounds"):
        eh.algorithms.side_by_side({"a": noisy, "b": quiet})


def test_noise_steps_too_where_stragglers_leave_no_slot() -> None:
    """Dropping all stragglers leaves a cohort without slots, dropouts one of empty slots: both are nobody."""
    everybody = _private(1.0)
    start = eh.simulate(everybody, DATA, rounds=0, seed=3)
    runs = [
        eh.simulate(everybody, DATA, rounds=2, seed=3, systems=systems)
        for systems in (eh.systems.stragglers(1.0), eh.systems.dropouts(1.0))
    ]
    assert np.array_equal(flat(runs[0].params), flat(runs[1].params))
    assert not np.array_equal(flat(runs[0].params), flat(start.params))
    assert runs[0].per_round["reported"].tolist() == [0.0, 0.0]
    assert not any("never changed" in finding.sentence for run in runs for finding in run.findings)


def test_feddane_without_an_answer_to_its_first_exchange_is_fedprox() -> None:
    """A gradient of zeros would cancel each client's own, and one of an earlier round is of another model."""
    method = eh.algorithms.feddane(WORK, mu=0.1)
    first, last = method.phases
    silent = first._replace(
        report=lambda message, state, data: first.report(message, state, data)._replace(
            weight=jnp.float32(-1.0)
        )
    )
    settings: dict[str, Any] = {"rounds": 3, "seed": 2}
    mute = eh.simulate(method._replace(phases=(silent, last)), DATA, **settings)
    prox = eh.simulate(eh.algorithms.fedprox(WORK, mu=0.1), DATA, **settings)
    np.testing.assert_allclose(flat(mute.params), flat(prox.params), atol=1e-6)
    heard = eh.simulate(method, DATA, **settings)
    assert np.abs(flat(heard.params) - flat(prox.params)).max() > 1e-3


def test_a_state_that_somebody_holds_outlives_the_training() -> None:
    method = eh.algorithms.scaffold(WORK)
    for devices in (1, 2):
        states = [
            run.state
            for run in eh.simulation.iterate(method, DATA, rounds=2, cohort=3, eval_every=1, devices=devices)
        ]
        sums = [
            float(sum(jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(each.clients))) for each in states
        ]
        assert sums[0] == 0.0 < sums[1] != sums[2]


def test_the_largest_clients_weight_is_the_most_that_is_accepted() -> None:
    largest = rounds.largest_weight(METHODS["fedavg"], int(DATA.train.sizes.max()))
    for factor, accepted in ((1.0, True), (1.01, False)):
        report = Report(largest * factor, jnp.float32(jnp.nan))
        assert bool(rounds.accepts_report(eh.aggregators.mean(), report, largest)) is accepted
