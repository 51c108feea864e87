"""Methods that promise privacy to clients: what they compute, what they refuse, and what they say they have spent."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand.errors import EvenhandWarning
from evenhand.privacy import account, dp_fedadam, dp_fedavg, noisy_mean, private
from evenhand.privacy.client_level import cohort_line
from evenhand.rounds import cohort, roots
from evenhand.sampling import poisson
from evenhand.simulation import Checkpoint
from evenhand.streams import keys_of
from evenhand.types import Privacy

MODEL = eh.testing.toy_model()
WORK = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4)
DATA = eh.testing.toy_data()
NOISY = noisy_mean(0.5, noise_multiplier=1.0, rate=0.5)
METHOD = dp_fedavg(WORK, clip=0.5, noise_multiplier=1.0, rate=0.5)
PRIVATE_WORK = eh.privacy.dp_sgd(MODEL, 0.1, clip=1.0, noise_multiplier=1.0, rate=0.5, steps=1)


def promised(method) -> Privacy:
    assert method.privacy is not None
    return method.privacy


def flat(params):
    return np.concatenate([np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(params)])


def run(method, rounds=4, **how):
    return eh.simulate(method, DATA, rounds=rounds, eval_every=max(rounds, 1), **how)


def test_without_noise_and_clipping_it_is_averaging_of_all_clients_alike():
    batches = eh.local.sgd(MODEL, 0.1, epochs=1)  # whole batches: private methods draw others
    plain, found, weighted = (
        flat(run(method).params)
        for method in (
            eh.algorithms.fedavg(batches, sampling=eh.sampling.uniform(weighted=False)),
            dp_fedavg(batches, clip=1e6, noise_multiplier=0.0, rate=1.0),
            eh.algorithms.fedavg(batches),
        )
    )
    np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-6)
    assert np.abs(found - weighted).max() > 1e-4


def test_a_small_clip_shortens_the_step():
    batches = eh.local.sgd(MODEL, 0.1, epochs=1)
    start = flat(run(dp_fedavg(batches, clip=1.0, noise_multiplier=0.0, rate=1.0), rounds=0).params)
    far, near = (
        flat(run(dp_fedavg(batches, clip=clip, noise_multiplier=0.0, rate=1.0), rounds=1).params) - start
        for clip in (1e6, 1e-3)
    )
    assert np.linalg.norm(near) <= 1e-3 * (1 + 1e-5) < np.linalg.norm(far)


def test_a_client_whose_update_is_not_finite_sends_zeros_and_keeps_its_state():
    """Left out, it would be missing in the number of those that answer, and so would the noise that it adds."""

    def solve(params, data, key, correction):
        after, drawn = WORK.solve(params, data, key, correction)
        return jax.tree.map(lambda leaf: jnp.where(data.size == 17, jnp.inf, leaf), after), drawn

    broken, total = WORK._replace(solve=solve), eh.sampling.fixed(1.0)
    assert DATA.train.sizes.tolist().count(17) == 1
    noisy = eh.privacy.discrete_mean(0.5, noise_multiplier=0.5, rate=1.0, fewest=6)
    found = run(private(eh.algorithms.fedavg(broken, aggregator=noisy, sampling=total)), rounds=2)
    assert (found.per_round["rejected"].tolist(), found.per_round["reported"].tolist()) == ([0, 0], [6, 6])
    assert found.per_round["update_norm"].min() > 0.01

    method = private(eh.algorithms.scaffold(broken, aggregator=noisy, sampling=total))
    params, rows = MODEL.init(jax.random.key(0)), DATA.train
    state, phase = method.init_client(params), method.phases[0]
    message = phase.broadcast(method.init(params, 6), jnp.int32(0))
    for k, size in enumerate(rows.sizes.tolist()):
        window = map(jnp.asarray, (rows.x, rows.y, rows.offsets[k], size, 1.0))
        data = eh.types.ClientData(*window, capacity=17, round=jnp.int32(0))
        delta, after = phase.work(message, state, data, jax.random.key(0))
        assert np.isfinite(flat(delta)).all() and np.isfinite(flat(after)).all()
        assert flat(delta).any() == flat(after).any() == (size != 17)


def test_a_round_without_clients_steps_along_noise_alone():
    rare = run(dp_fedavg(WORK, clip=1e-6, noise_multiplier=1.0, rate=1e-6), rounds=2)
    assert rare.per_round["reported"].tolist() == [0.0, 0.0]
    assert (rare.per_round["update_norm"] > 0).all()
    with pytest.warns(EvenhandWarning, match="never changed"):
        quiet = run(dp_fedavg(WORK, clip=1e-6, noise_multiplier=0.0, rate=1e-6), rounds=2)
    assert (quiet.per_round["update_norm"] == 0).all()


def test_noise_is_new_in_each_round_and_with_each_seed():
    rare = dp_fedavg(WORK, clip=1e-6, noise_multiplier=1.0, rate=1e-6)
    models = [flat(each.params) for each in eh.simulation.iterate(rare, DATA, rounds=3, eval_every=1)]
    steps = np.diff(models, axis=0)
    other = flat(eh.simulate(rare, DATA, rounds=1, seed=1).params) - models[0]
    for a, b in ((steps[0], steps[1]), (steps[1], steps[2]), (steps[0], other)):
        assert np.abs(a - b).max() > 1e-3 and abs(np.corrcoef(a, b)[0, 1]) < 0.9


def test_the_server_never_learns_how_many_took_part():
    """SCAFFOLD's server asks for that number; it gets the expected one, so that equal sums give equal states."""
    method = private(eh.algorithms.scaffold(WORK, aggregator=NOISY, sampling=poisson(0.5)))
    (phase,) = method.phases
    state = method.init(MODEL.init(jax.random.key(0)), 20)
    direction = jax.tree.map(
        jnp.ones_like,
        phase.work(
            phase.broadcast(state, jnp.int32(0)),
            method.init_client(MODEL.init(jax.random.key(0))),
            _data(),
            jax.random.key(0),
        )[0],
    )
    few, many = (phase.server(state, direction, jnp.int32(count), jax.random.key(0))[0] for count in (1, 20))
    assert all(map(np.array_equal, jax.tree.leaves(few), jax.tree.leaves(many)))
    inner = eh.algorithms.scaffold(WORK).phases[0].server
    few, many = (inner(state.inner, direction, jnp.int32(count), jax.random.key(0))[0] for count in (1, 20))
    assert not all(map(np.array_equal, jax.tree.leaves(few), jax.tree.leaves(many)))


@pytest.mark.parametrize(("rate", "expected"), [(0.5, 10), (0.26, 5), (0.29, 6), (0.001, 1)])
def test_the_server_gets_the_expected_number_which_is_never_0(rate, expected):
    noisy = noisy_mean(0.5, noise_multiplier=1.0, rate=rate)
    method = private(eh.algorithms.scaffold(WORK, aggregator=noisy, sampling=poisson(rate)))
    assert int(method.init(MODEL.init(jax.random.key(0)), 20).expected) == expected


def _data():
    rows = DATA.train
    return eh.types.ClientData(
        jnp.asarray(rows.x),
        jnp.asarray(rows.y),
        jnp.int32(0),
        jnp.int32(rows.sizes[0]),
        jnp.float32(1),
        int(rows.sizes.max()),
    )


DRAWN: dict[str, Any] = {"sampling": poisson(0.5)}
REFUSED = {
    "must see every upload": lambda: eh.algorithms.fedavg(WORK, aggregator=eh.aggregators.krum(1), **DRAWN),
    "weighs clients by what they report": lambda: eh.algorithms.term(WORK, t=1.0, **DRAWN),
    "no bounded effect": lambda: eh.algorithms.fedavg(WORK, **DRAWN),
    "draws.*|fixed size": lambda: eh.algorithms.fedavg(WORK, aggregator=NOISY),
    "same rate": lambda: eh.algorithms.fedavg(WORK, aggregator=NOISY, sampling=poisson(0.25)),
    "for 1e-10: give both the same rate": lambda: eh.algorithms.fedavg(
        WORK, aggregator=noisy_mean(0.5, noise_multiplier=1.0, rate=1e-10), sampling=poisson(1e-9)
    ),
    "personal models": lambda: eh.personalization.ditto(METHOD._replace(privacy=None), WORK),
    "personal models|finetuned": lambda: eh.personalization.finetune(
        eh.algorithms.fedavg(WORK, aggregator=NOISY, **DRAWN), WORK, lam=0.5
    ),
    "weighs clients|in the clear": lambda: eh.algorithms.fedavg(
        WORK, aggregator=NOISY._replace(weigh=lambda reports, cohort, state: (reports.weight, state)), **DRAWN
    ),
    "weighs clients|their loss": lambda: eh.algorithms.fedavg(
        WORK, aggregator=NOISY._replace(needs_loss=True), **DRAWN
    ),
    "observes the training loss": lambda: eh.algorithms.fedprox_adaptive(WORK, mu0=0.5)._replace(
        sampling=poisson(0.5)
    ),
    "already guarantees privacy": lambda: METHOD,
}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: eh.algorithms.qfedavg(WORK, q=1.0), r"weighs clients by what they report.*dp_term"),
        (lambda: eh.algorithms.fedavg(WORK, aggregator=eh.aggregators.caf(2)), "must see every upload"),
        (lambda: METHOD._replace(sampling=eh.sampling.uniform()), "already guarantees privacy"),
        (lambda: eh.algorithms.fedavg(WORK), r"fixed size.*adds no noise.*poisson\(rate\).*noisy_mean\("),
        (
            lambda: eh.algorithms.fedavg(WORK, aggregator=NOISY),
            r"fixed size[^,]*,[^,]*: give.*poisson\(0\.5\)",
        ),
        (
            lambda: eh.algorithms.fedavg(
                WORK, aggregator=noisy_mean(0.5, noise_multiplier=1.0, rate=0.25, sampling="fixed")
            ),
            r"fixed size.*sampling\.fixed\(0\.25\)",
        ),
    ],
)
def test_what_needs_another_method_is_said_before_what_an_argument_mends(make, said):
    with pytest.raises(eh.EvenhandError, match=said) as error:
        private(make())
    assert ("fixed size" in said) == ("fixed size" in str(error.value))


@pytest.mark.parametrize("words", REFUSED)
def test_what_would_break_the_promise_is_refused_with_what_to_do(words):
    with pytest.raises(eh.EvenhandError, match=words) as found:
        private(REFUSED[words]())
    assert any(word in str(found.value) for word in ("give ", "put ", "take "))


def test_a_secure_sum_which_drops_rounds_of_one_client_is_no_noisy_mean():
    """Such a round gives zeros without noise, which tells that one more client would have been there."""
    rule = eh.aggregators.secure(noisy_mean(0.5, noise_multiplier=1.0, rate=0.5))
    alone = eh.aggregators.aggregate(rule, jnp.ones((1, 3)))
    assert (np.asarray(alone) == 0.0).all()
    with pytest.raises(eh.EvenhandError, match="give the method aggregator="):
        private(eh.algorithms.fedavg(WORK, aggregator=rule, sampling=poisson(0.5)))


@pytest.mark.parametrize(("fresh", "expected"), [(True, [(1.0, 10), (1.0, 10)]), (False, [(0.5**0.5, 10)])])
def test_two_exchanges_give_away_twice_or_once_through_less_noise(fresh, expected):
    """FedDane's two cohorts are two samples; of one cohort, two sums are one sum with noise divided by sqrt(2)."""
    method = private(
        eh.algorithms.feddane(WORK, mu=0.1, aggregator=NOISY, sampling=poisson(0.5), fresh_cohort=fresh)
    )
    found = [(release.noise_multiplier, release.times) for release in promised(method).releases(10)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.isfinite(flat(run(method).params)).all()


@pytest.mark.parametrize("first", [True, False])
def test_several_looks_at_a_cohort_are_gaussian_only_if_the_noise_of_all_is(first):
    method = eh.algorithms.feddane(WORK, mu=0.1, aggregator=NOISY, sampling=poisson(0.5), fresh_cohort=False)
    assert NOISY.release is not None
    other = NOISY._replace(release=NOISY.release._replace(mechanism="concentrated"))
    one, two = method.phases
    phases = (one._replace(aggregator=other), two) if first else (one, two._replace(aggregator=other))
    (release,) = promised(private(method._replace(phases=phases))).releases(10)
    assert release.mechanism == "concentrated"


def test_one_exchange_without_noise_gives_everything_away():
    bare = noisy_mean(0.5, noise_multiplier=0.0, rate=0.5)
    method = private(
        eh.algorithms.feddane(WORK, mu=0.1, aggregator=bare, sampling=poisson(0.5), fresh_cohort=False)
    )
    assert account(promised(method), rounds=1, units=100).epsilon == np.inf


def test_a_run_tells_the_expected_size_of_its_cohorts_and_not_how_many_there_is_room_for():
    assert METHOD.sampling.slots is not None
    assert METHOD.sampling.slots(DATA.num_clients) > DATA.num_clients // 2
    assert run(METHOD, rounds=1).info["cohort"] == round(0.5 * DATA.num_clients)
    assert run(eh.algorithms.fedavg(WORK), rounds=1, cohort=3).info["cohort"] == 3


def test_a_run_says_what_it_has_spent():
    found = run(METHOD, rounds=6).privacy
    assert found is not None
    direct = eh.privacy.epsilon(noise_multiplier=1.0, rate=0.5, steps=6, delta=found.delta)
    assert np.isclose(found.epsilon, direct, rtol=1e-6)
    assert (found.unit, found.rounds) == ("client", 6)
    assert found.delta == 0.1 ** len(str(DATA.num_clients - 1))
    assert "individual uploads, which the server sees" in found.unprotected
    assert run(eh.algorithms.fedavg(WORK), rounds=1).privacy is None
    none = run(METHOD, rounds=0).privacy
    bare = run(dp_fedavg(WORK, clip=0.5, noise_multiplier=0.0, rate=0.5), rounds=1).privacy
    assert none is not None and none.epsilon == 0.0
    assert bare is not None and bare.epsilon == np.inf


@pytest.mark.filterwarnings("ignore:The attack has no malicious client")
@pytest.mark.parametrize(
    ("method", "attack", "listed"),
    [
        (METHOD, eh.attacks.mimic(0.5), True),
        (METHOD, eh.attacks.mimic(0.01), False),  # of six clients, that is none
        (METHOD, eh.attacks.sign_flip(0.5), False),
        (eh.algorithms.fedavg(PRIVATE_WORK), eh.attacks.mimic(0.5), False),
    ],
    ids=["client-level", "nobody", "own upload", "example-level"],
)
def test_a_guarantee_for_clients_does_not_cover_copies_of_their_uploads(method, attack, listed):
    found = run(method, rounds=0, attack=attack).privacy
    assert found is not None
    more = set(found.unprotected) - set(promised(method).unprotected)
    assert [words.partition(":")[0] for words in more] == ["uploads that malicious clients copy"] * listed


@pytest.mark.parametrize(
    ("units", "delta"),
    [(1, 0.1), (2, 0.1), (10, 0.1), (11, 0.01), (100, 0.01), (101, 1e-3), (25_000, 1e-5), (100_000, 1e-5)],
)
def test_the_usual_delta_is_a_power_of_ten_of_at_most_one_in_so_many(units, delta):
    assert eh.privacy.usual_delta(units) == account(promised(METHOD), rounds=1, units=units).delta == delta
    assert delta <= 1 / units and (10 * delta > 1 / units or units == 1)


def test_a_run_with_a_single_client_tells_what_it_has_spent():
    one = eh.data.from_arrays(DATA.train.x[:8], DATA.train.y[:8], client=np.zeros(8))
    found = eh.simulate(dp_fedavg(WORK, clip=0.5, noise_multiplier=1.0, rate=1.0), one, rounds=2).privacy
    assert found is not None and found.delta == 0.1 and 0 < found.epsilon < np.inf


def test_words_tell_how_samples_were_drawn():
    given = (eh.types.Release(2.0, 0.1), eh.types.Release(2.0, 0.1, "fixed"), eh.types.Release(2.0, times=7))
    for release, words in zip(given, ("independently", "without replacement", "all of them"), strict=True):
        promise = promised(METHOD)._replace(releases=lambda rounds, release=release: (release,))
        (told,) = account(promise, rounds=1, units=100).in_words()["releases"]
        assert words in told and f"{release.times} times, noise of 2 times" in told


def test_another_delta_and_accountant():
    promise = promised(METHOD)
    loose, tight = (account(promise, rounds=5, units=100, delta=delta).epsilon for delta in (1e-2, 1e-6))
    assert loose < tight
    exact = account(promise, rounds=5, units=100, delta=1e-2, accountant="pld").epsilon
    assert exact < loose
    wrong: Any = ({"delta": 1.0}, {"delta": "1e-5"}, {"rounds": -1}, {"rounds": 1.5})
    for change in wrong:
        ((name, value),), kind = change.items(), {"rounds": 5, "units": 100} | change
        with pytest.raises(eh.EvenhandError, match=rf"account\({name}=\)={value!r}: give a"):
            account(promise, **kind)


@pytest.mark.filterwarnings("ignore:epsilon=.* smallest order")
def test_losses_beyond_what_their_distribution_can_hold():
    costs = eh.privacy.epsilon
    with pytest.raises(
        eh.EvenhandError, match="accountant='pld' supports at most 10,000,000 steps on samples, but these"
    ):
        costs(noise_multiplier=50.0, rate=0.01, steps=10**9, delta=1e-5, accountant="pld")
    # Where all take part, many steps are one with less noise.
    plain: dict[str, Any] = {"noise_multiplier": 1e5, "rate": 1.0, "steps": 10**9, "delta": 1e-5}
    assert costs(**plain, accountant="pld") == pytest.approx(
        costs(**plain | {"noise_multiplier": 10.0, "steps": 10}, accountant="pld"), rel=1e-3
    )
    # Losses above the logarithm of any float, or below one step, and more of them than the memory holds.
    for sigma, rate, steps in ((1e-3, 0.5, 1), (1e5, 1e-9, 1), (0.5, 0.5, 100_000)):
        plain = {"noise_multiplier": sigma, "rate": rate, "steps": steps, "delta": 1e-5}
        assert 0.97 * costs(**plain) <= costs(**plain, accountant="pld") <= costs(**plain)


def test_a_run_draws_its_cohorts_from_the_secret_root():
    """Those that the seed's public root would give are others."""
    keys, sizes = keys_of(0), jnp.asarray(DATA.train.sizes)
    drawn, known = (
        [int(cohort(METHOD, None, sizes, 0, of, t, 0).present.sum()) for t in range(12)]
        for of in (roots(METHOD, keys), keys)
    )
    assert run(METHOD, rounds=12).per_round["reported"].tolist() == drawn != known


def test_a_run_that_was_stopped_spends_what_an_uninterrupted_one_does(tmp_path):
    whole = run(METHOD, rounds=6)
    place = Checkpoint(tmp_path / "state", seconds=0)
    for part in eh.simulation.iterate(METHOD, DATA, rounds=6, eval_every=2, checkpoint=place):
        if part.info["rounds"] == 4:
            break
    again = eh.simulate(METHOD, DATA, rounds=6, eval_every=2, checkpoint=place)
    assert again.privacy == whole.privacy
    np.testing.assert_array_equal(flat(again.params), flat(whole.params))


def test_less_noise_is_another_run(tmp_path):
    """A checkpoint must not be continued under a weaker promise."""
    place = Checkpoint(tmp_path / "state", seconds=0)
    eh.simulate(METHOD, DATA, rounds=2, checkpoint=place)
    weaker = dp_fedavg(WORK, clip=0.5, noise_multiplier=0.5, rate=0.5)
    with pytest.raises(eh.EvenhandError, match="another run"):
        eh.simulate(weaker, DATA, rounds=4, checkpoint=place)


@pytest.mark.parametrize("around", ["ditto", "finetune"])
def test_personal_models_around_a_private_method_are_named_as_not_covered(around):
    wrap = getattr(eh.personalization, around)
    method = wrap(METHOD, WORK, lam=0.5)
    assert method.privacy is not None and method.privacy.releases(3) == promised(METHOD).releases(3)
    assert any("personal models" in each for each in method.privacy.unprotected)
    np.testing.assert_array_equal(flat(run(method).params), flat(run(METHOD).params))


def test_wrappers_that_only_see_the_models_keep_the_promise():
    assert eh.algorithms.averaged(METHOD).privacy == METHOD.privacy


def test_dp_fedadam_takes_the_steps_of_adam_on_the_noisy_means():
    """Three rounds against NumPy, from the directions that averaging with the same seed would take."""
    adam = dp_fedadam(WORK, clip=1e-6, noise_multiplier=1.0, rate=1e-6, server_lr=0.1)
    rare = dp_fedavg(WORK, clip=1e-6, noise_multiplier=1.0, rate=1e-6)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes types inside
        steps, models = (
            [flat(each.params) for each in eh.simulation.iterate(method, DATA, rounds=3, eval_every=1)]
            for method in (rare, adam)
        )
    w, m, v = models[0], 0.0, 0.0
    for t, u in enumerate(np.diff(np.array(steps, np.float64), axis=0), 1):
        m, v = 0.9 * m + 0.1 * u, 0.999 * v + 0.001 * u**2
        w = w + 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        np.testing.assert_allclose(models[t], w, rtol=2e-4, atol=1e-5)


def test_the_report_says_what_is_promised_and_what_is_not(tmp_path):
    page = run(METHOD, rounds=2).report(tmp_path / "report.html").read_text()
    for words in ("<h2>Privacy</h2>", "Epsilon", "added or removed", "Not covered", "individual uploads"):
        assert words in page
    assert (
        "<h2>Privacy</h2>"
        not in run(eh.algorithms.fedavg(WORK), rounds=1).report(tmp_path / "b.html").read_text()
    )


MOST = noisy_mean(0.5, noise_multiplier=1.0, rate=0.9)
UNWRAPPED = eh.algorithms.fedavg(WORK, aggregator=MOST, sampling=poisson(0.9))


@pytest.mark.parametrize(
    ("method", "kinds"),
    [
        (UNWRAPPED, {"unaccounted"}),
        (eh.personalization.ditto(UNWRAPPED, WORK), {"unaccounted"}),
        (private(UNWRAPPED), set[str]()),
        (eh.algorithms.fedavg(WORK), set[str]()),
        (
            eh.algorithms.fedavg(WORK, aggregator=noisy_mean(0.5, noise_multiplier=0.0, rate=0.5)),
            set[str](),
        ),
        (
            eh.algorithms.fedavg(WORK, aggregator=NOISY, sampling=poisson(0.5)),
            {"unaccounted", "few_expected"},
        ),
        (METHOD, {"few_expected"}),
        (dp_fedavg(WORK, clip=0.5, noise_multiplier=1.0, rate=1.0), set[str]()),
    ],
)
def test_a_run_says_what_its_noise_is_worth(method, kinds):
    """Of 6 clients; noise without a guarantee, and noise that a cohort of fewer than 5 shares, are findings."""
    findings = {finding.kind: finding.sentence for finding in run(method, rounds=1).findings}
    assert kinds == set(findings) & {"unaccounted", "few_expected"}
    if "few_expected" in kinds:
        assert "draws 3 of 6 clients on average" in findings["few_expected"]
    if "unaccounted" in kinds:
        assert "private(...)" in findings["unaccounted"]


@pytest.mark.parametrize(
    ("drawn", "sentence"),
    [
        (poisson(0.13), "A round draws 1.6 of 12 clients on average, each with probability 0.13."),
        (poisson(1.0), "A round draws 12 of 12 clients on average."),
        (eh.sampling.fixed(0.3), "A round draws 3 of 12 clients."),
        (eh.sampling.uniform(), None),
    ],
)
def test_the_expected_cohort_is_a_sentence(drawn, sentence):
    assert cohort_line(eh.algorithms.fedavg(WORK, sampling=drawn), 12) == sentence
