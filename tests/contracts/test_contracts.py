"""Every method and aggregator of the package obeys the published contract, and broken ones are found out."""

from functools import lru_cache

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import evenhand as eh
from evenhand import tree
from evenhand.expressions import factories, parse
from evenhand.expressions.kinds import parameters
from evenhand.testing._uploads import check_slots
from evenhand.types import Algorithm, Radial, Release, Stack, Sum, Upload

MODEL = eh.testing.toy_model()
WORK = eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=4)

METHODS = {
    "fedavg": eh.algorithms.fedavg(WORK),
    "fedavg, full batches": eh.algorithms.fedavg(eh.local.sgd(MODEL, optax.sgd(0.1, momentum=0.9), epochs=2)),
    "fedavg, scheme A, FedYogi": eh.algorithms.fedavg(
        WORK, sampling=eh.sampling.proportional(), server_opt=eh.server_opt.fedyogi(0.1)
    ),
    "fedprox": eh.algorithms.fedprox(eh.local.sgd(MODEL, 0.1, steps=7, batch_size=4), mu=0.5),
    "fedprox_adaptive": eh.algorithms.fedprox_adaptive(WORK, mu0=0.5),
    "qfedavg": eh.algorithms.qfedavg(WORK, q=1.0, lipschitz=10.0),
    "scaffold": eh.algorithms.scaffold(WORK),
    "feddane": eh.algorithms.feddane(WORK, mu=0.1),
}
FAIR = {
    "delta_fl": eh.algorithms.delta_fl(WORK, theta=0.5, nu=0.1),
    "averaged": eh.algorithms.averaged(eh.algorithms.scaffold(WORK)),
    "term, running": eh.algorithms.term(WORK, t=1.0, running=0.5, summed=True),
    "qfedsgd": eh.algorithms.qfedsgd(MODEL, q=2.0, step_size=0.05),
    "afl": eh.algorithms.afl(MODEL, gamma_w=0.1, gamma_lambda=0.1),
    "fedmgda": eh.algorithms.fedmgda(WORK, epsilon=0.2),
    "qmaml": eh.algorithms.qmaml(MODEL, q=1.0, step_size=0.1),
    "fedtilt": eh.algorithms.fedtilt(WORK, classes=3, tilt_class=2.0, tilt_sample=-1.0, tilt_server=0.5),
}
SLOW = {
    "fedavg": METHODS["fedavg"],
    "fedprox": METHODS["fedprox"],
    "scaffold": METHODS["scaffold"],
    "feddane": METHODS["feddane"],
}
_MEDIAN = eh.aggregators.geometric_median(3, start="mean")
AROUND = {
    "qfedavg": METHODS["qfedavg"],
    "scaffold": METHODS["scaffold"],
    "feddane, a median in passes": eh.algorithms.feddane(WORK, mu=0.1, aggregator=_MEDIAN),
    "fedavg, krum": eh.algorithms.fedavg(WORK, aggregator=eh.aggregators.krum(1)),
}


LAWS = [check.name for check in eh.testing.algorithm_checks(METHODS["fedavg"])]
every_law = pytest.mark.parametrize("law", LAWS)
"""Above the names of methods, so that all laws of one method come before those of the next."""


SIMULATED = [law for law in LAWS if law != "a network gives the same numbers"]
"""A network has no simulated systems."""


def check(law, checks, laws=LAWS):
    """One law, of checks that share their programs with those before and after it.

    Methods with secure sums have one more, which tests/engine/test_engine_masks.py calls.
    """
    names = [each.name for each in checks if each.name != "masks change no number"]
    assert names == laws
    next(each for each in checks if each.name == law)()


@lru_cache(maxsize=1)  # what the checks of a method share is let go with the last of them
def plain(name):
    return eh.testing.algorithm_checks(METHODS[name], lanes=(3,))


@every_law
@pytest.mark.parametrize("name", METHODS)
def test_methods_obey_the_contract(name, law):
    """Numbers of lanes are checked in tests/engine."""
    check(law, plain(name))


@lru_cache(maxsize=1)
def fair(name):
    return eh.testing.algorithm_checks(FAIR[name], lanes=(2,), rounds=2)


@every_law
@pytest.mark.parametrize("name", FAIR)
def test_fair_methods_obey_the_contract(name, law):
    """They share the engine's handling of lanes with the methods above, so that one number of lanes is enough."""
    check(law, fair(name))


@lru_cache(maxsize=1)
def slow(name):
    systems = eh.systems.stragglers(0.5)
    return eh.testing.algorithm_checks(SLOW[name], systems=systems, lanes=(3,), rounds=2)


@pytest.mark.parametrize("law", SIMULATED)
@pytest.mark.parametrize("name", SLOW)
def test_methods_obey_the_contract_under_stragglers(name, law):
    check(law, slow(name), SIMULATED)


@lru_cache(maxsize=1)
def around(name):
    method = eh.personalization.ditto(AROUND[name], WORK, lam=0.5)
    return eh.testing.algorithm_checks(method, lanes=(2,), rounds=2)


@every_law
@pytest.mark.parametrize("name", AROUND)
def test_ditto_obeys_the_contract_around_methods_that_differ_most(name, law):
    """They weigh by losses, keep states at clients, have two exchanges of several passes each, and need all uploads."""
    check(law, around(name))


class _Normalised(nn.Module):
    """The model of the toy data with a layer that measures running statistics."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = nn.Dense(4)(x)
        return nn.Dense(3)(nn.BatchNorm(use_running_average=not train, momentum=0.8)(x))


def _measuring(state):
    sample = eh.testing.toy_data().train.x[:1]
    model = eh.models.from_flax(_Normalised(), loss="cross_entropy", sample=sample, state=state)
    return eh.local.sgd(model, 0.1, epochs=2, batch_size=4)


AVERAGE, STAY = _measuring("average"), _measuring("local")
STATISTICS = {
    "fedavg, averaged": eh.algorithms.fedavg(AVERAGE, server_opt=eh.server_opt.fedyogi(0.1)),
    "scaffold, averaged": eh.algorithms.scaffold(AVERAGE),
    "ditto, averaged": eh.personalization.ditto(eh.algorithms.fedavg(AVERAGE), AVERAGE, lam=0.5),
    "fedprox, local": eh.algorithms.fedprox(STAY, mu=0.5),
    "qfedavg, local": eh.algorithms.qfedavg(STAY, q=1.0, lipschitz=10.0),
    "fedbn": eh.personalization.fedbn(STAY),
}
"""Methods on models with running statistics, which are sent or stay."""


@lru_cache(maxsize=1)
def measuring(name):
    return eh.testing.algorithm_checks(STATISTICS[name], lanes=(2,), rounds=2)


@every_law
@pytest.mark.parametrize("name", STATISTICS)
def test_methods_on_running_statistics_obey_the_contract(name, law):
    check(law, measuring(name))


NOISY = "fedavg(aggregator=noisy_mean(0.5, noise_multiplier=0.5, rate=0.5), sampling=poisson(0.5))"


def one_client(data):
    """All examples in one place."""
    parts = (data.train, data.valid, data.test)
    train, valid, test = (part._replace(offsets=part.offsets[[0, -1]]) for part in parts)
    return eh.data.FederatedDataset(train, valid, test, ("all",))


_LISTED = {name.partition(",")[0] for name in (*METHODS, *FAIR, *SLOW, *STATISTICS)}
_OTHERS = [name for name in factories(Algorithm) if name not in _LISTED]


@lru_cache(maxsize=1)
def unlisted(name):
    """With 0.5 for each number that the method needs."""
    needed = [p for p in parameters(factories(Algorithm)[name]).values() if p.default is p.empty]
    data = eh.testing.toy_data()
    texts = {
        "method": "fedavg()",
        "personal": "'b'",
        "head": "'b'",
        "cohort": "2",
        "clients": str(data.num_clients),
        "clips": "(0.5, 2.0)",
        "step_sizes": "(1.0, 0.1)",
        "delay": "1",
    }
    texts |= {"method": NOISY} if name == "private" else {}
    if name == "fit":  # on all examples in each step, it draws nothing
        return eh.testing.algorithm_checks(
            parse("fit(batch_size=4)", Algorithm, MODEL, lambda: WORK), data, rounds=2, lanes=(2,)
        )
    arguments = ", ".join(f"{p.name}={texts.get(p.name, '0.5')}" for p in needed)
    scales = {"divided_by": jax.tree.map(lambda leaf: 2.0 + 0 * leaf, MODEL.init(jax.random.key(0)))}
    method = parse(f"{name}({arguments})", Algorithm, MODEL, lambda: WORK, scales)
    of = one_client(data) if name == "alone" else data
    cohort = 2 if name == "dp_ftrl" else 4
    return eh.testing.algorithm_checks(method, of, cohort=cohort, lanes=(2,), rounds=2)


@every_law
@pytest.mark.parametrize("name", [*_OTHERS, "term"])  # at least one, so that the test itself is tested
def test_methods_that_no_list_names_obey_the_contract(name, law):
    """A new method is checked from the day that it is exported."""
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam mixes types inside
        check(law, unlisted(name))


MEAN = eh.aggregators.mean()
VALUES = {
    "malicious": 1,
    "then": MEAN,
    "radius": 1.0,
    "size": 2,
    "ratio": 2.0,
    "longest": 100.0,
    "risk": eh.risks.superquantile(0.3),
    "fraction": 0.2,
    "fewest": 2,
}


@pytest.mark.parametrize("name", factories(Sum))
def test_empty_slots_have_no_vote_in_any_aggregator(name):
    """Also in a new one, from the day that it is exported; with 0.5 for each number that it needs.

    The whole contract is checked in tests/unit, beside what each aggregator is.
    """
    make = factories(Sum)[name]
    needed = [p.name for p in parameters(make).values() if p.default is p.empty]
    aggregator = make(**{name: VALUES.get(name, 0.5) for name in needed})
    rng = np.random.default_rng(3)
    deltas = {"w": rng.normal(size=(8, 3, 2)), "b": (rng.normal(size=8),)}
    uploads = Upload(deltas, jnp.asarray(rng.integers(1, 9, 8)), jnp.asarray(rng.uniform(0.1, 3.0, 8)))
    uploads = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), uploads)
    state = aggregator.init(jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), uploads.delta), 8)
    check_slots(aggregator, uploads, range(8), state, 1e-4)


def test_only_an_aggregator_that_says_so_counts_empty_slots():
    deltas, weights = jnp.arange(8.0), jnp.ones(8)
    uploads = Upload(deltas, weights, jnp.asarray([3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0, 5.0]))
    counting = eh.aggregators.risk_weighted(eh.risks.superquantile(0.5), of_slots=True)
    check_slots(counting, uploads, range(8), (), 1e-4)
    with pytest.raises(AssertionError, match="An empty slot counts"):
        check_slots(counting._replace(of_slots=False), uploads, range(8), (), 1e-4)


@pytest.mark.parametrize("check", eh.testing.aggregator_checks(MEAN), ids=lambda check: check.name)
def test_the_mean_obeys_the_contract(check):
    check()


def test_an_aggregator_is_checked_on_uploads_of_its_own_form():
    def lift(upload, public, key):
        parts = {name: upload.delta[name] for name in ("change", "length")}
        return MEAN.lift(upload._replace(delta=parts), public, key)

    own = MEAN._replace(lift=lift)
    like = {"change": np.zeros((3, 2)), "length": jax.ShapeDtypeStruct((), jnp.float32)}
    eh.testing.check_aggregator(own, like=like)
    with pytest.raises(AssertionError, match=r"cannot read uploads .*KeyError.'change'.*give like="):
        eh.testing.check_aggregator(own)
    with pytest.raises(KeyError):
        eh.testing.check_aggregator(own, like={"change": np.zeros(3)})


def _median_over_slots(uploads, present, state, key):
    return jax.tree.map(lambda leaf: jnp.median(leaf, axis=0), uploads.delta), state


def _mean_over_slots(uploads, present, state, key):
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), uploads.delta), state


def _broken_methods():
    """Methods that break one law each, and words that the contract's message must contain."""
    base = METHODS["fedavg"]
    (phase,) = base.phases

    def peeks(message, client_state, data, key):
        delta, client_state = phase.work(message, client_state, data, key)
        return tree.scale(jnp.sum(data.x), delta), client_state

    def reads_labels(message, client_state, data, key):
        delta, client_state = phase.work(message, client_state, data, key)
        return tree.scale(jnp.mean(data.y), delta), client_state

    def forgets_the_mask(message, client_state, data, key):
        delta, client_state = phase.work(message, client_state, data, key)
        window = lax.dynamic_slice_in_dim(data.x, data.start, data.capacity)
        return tree.scale(jnp.sum(window), delta), client_state

    def grows(state, direction, reported, key):
        state, info = phase.server(state, direction, reported, key)
        return state._replace(extra=(state.extra, jnp.float32(0.0))), info

    def same(message, client_state, data, key):
        return tree.zeros_like(message.params), client_state

    def whole(message, client_state, data, key):
        delta, client_state = phase.work(message, client_state, data, key)
        return tree.add(message.params, delta), client_state

    def to_the_mean(state, direction, reported, key):
        return phase.server(state, tree.subtract(direction, state.params), reported, key)

    def reducing(apply):
        return base._replace(phases=(phase._replace(aggregator=Stack(lambda like, clients: (), apply)),))

    # FedAvg, where all clients answer; and then an attack, a clip or an empty slot pulls the model to zero.
    yield "sends parameters", base._replace(phases=(phase._replace(work=whole, server=to_the_mean),))
    yield "empty slot counts", reducing(_median_over_slots)
    yield "empty slot counts", reducing(_mean_over_slots)
    for works in (peeks, reads_labels, forgets_the_mask):
        yield "depends on other clients' rows", base._replace(phases=(phase._replace(work=works),))
    yield "structure, shapes or dtypes", base._replace(phases=(phase._replace(server=grows),))
    yield "global_params", base._replace(global_params=lambda state: state.params["w"])
    yield "personal_params", base._replace(personal_params=lambda server, state: server.params["b"])
    yield "adapt differ from", base._replace(adapt=lambda params, data, key: params["w"])
    yield (
        "other clients' rows",
        base._replace(adapt=lambda params, data, key: tree.scale(jnp.sum(data.x), params)),
    )
    yield "Another seed gave the same numbers", base._replace(phases=(phase._replace(work=same),))


def _careless_methods():
    """As above: methods that make keys of their own, count padding, or do not do what they say they do."""
    base, proximal = METHODS["fedavg"], METHODS["fedprox"]
    (phase,), (partial,), (by_loss,) = base.phases, proximal.phases, METHODS["qfedavg"].phases
    always = jax.random.key(0)

    def draws_alone(message, client_state, data, key):
        return phase.work(message, client_state, data, always)

    def draws_there(message, client_state, data, key):
        return phase.work(message, client_state, data, jax.random.key(0))

    def divides_by_capacity(message, client_state, data, key):
        rows = eh.rounds.own_rows(data)
        inside = jnp.arange(data.capacity) < data.size

        def loss(params):
            losses = jnp.where(inside, MODEL.losses(MODEL.apply(params, rows.x), rows.y), 0.0)
            return jnp.sum(losses) / data.capacity

        return tree.scale(-0.1, jax.grad(loss)(message.params)), client_state

    def reports_by_capacity(message, client_state, data):
        report = by_loss.report(message, client_state, data)
        return report._replace(loss=report.loss * data.size.astype(jnp.float32) / jnp.float32(data.capacity))

    def constant_noise(state, direction, reported, key):
        noise = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(1), leaf.shape), direction)
        return phase.server(state, tree.add(direction, noise), reported, key)

    def finishes(message, client_state, data, key):
        return partial.work(message, client_state, data._replace(progress=jnp.float32(1.0)), key)

    noisy = eh.privacy.noisy_mean(1.0, noise_multiplier=1.0, rate=0.5)
    same_noise = noisy._replace(lower=lambda total, state, key: noisy.lower(total, state, always))
    for works in (draws_alone, draws_there):
        yield "work draws from a key of its own", base._replace(phases=(phase._replace(work=works),))
    yield "Padding counts", base._replace(phases=(phase._replace(work=divides_by_capacity),))
    yield (
        "Padding counts",
        METHODS["qfedavg"]._replace(phases=(by_loss._replace(report=reports_by_capacity),)),
    )
    yield "server draws from a key", base._replace(phases=(phase._replace(server=constant_noise),))
    yield (
        "gives the same noise",
        eh.algorithms.fedavg(WORK, aggregator=same_noise, sampling=eh.sampling.poisson(0.5)),
    )
    yield "does all of the work", proximal._replace(phases=(partial._replace(work=finishes),))
    yield "not finite", base._replace(adapt=lambda params, data, key: tree.scale(jnp.nan, params))


def test_a_method_with_a_step_of_its_own_is_not_broken():
    """It takes half of the server's step: what the broken methods change is not what is found out."""
    (phase,) = METHODS["fedavg"].phases

    def halves(state, direction, reported, key):
        return phase.server(state, tree.scale(0.5, direction), reported, key)

    half = METHODS["fedavg"]._replace(phases=(phase._replace(server=halves),))
    eh.testing.check_algorithm(half, lanes=(1,))


BROKEN_LAWS = {
    "sends parameters": "uploads are differences",
    "empty slot counts": "empty slots have no vote",
    "depends on other clients' rows": "clients know their own rows only",
    "other clients' rows": "clients know their own rows only",
    "structure, shapes or dtypes": "rounds keep the form of the state",
    "global_params": "parameters have the form of the model",
    "personal_params": "parameters have the form of the model",
    "adapt differ from": "parameters have the form of the model",
    "Another seed gave the same numbers": "another seed gives other numbers",
    "work draws from a key of its own": "randomness comes from the keys",
    "server draws from a key": "randomness comes from the keys",
    "gives the same noise": "randomness comes from the keys",
    "Padding counts": "padding changes nothing",
    "does all of the work": "stragglers do a part of the work",
    "not finite": "adapted parameters are finite",
}


BROKEN = [*_broken_methods(), *_careless_methods()]


@pytest.mark.parametrize(("words", "method"), BROKEN, ids=lambda value: str(value)[:20])
def test_a_broken_method_is_found_out(words, method):
    """By the check of the law that it breaks, called alone, and by all of them together."""
    errors, checks = (AssertionError, TypeError, eh.EvenhandError), {}
    for each in eh.testing.algorithm_checks(method, lanes=(1,)):
        checks[each.name] = each
    with pytest.raises(errors, match=words):
        checks[BROKEN_LAWS[words]]()
    with pytest.raises(errors, match=words):
        eh.testing.check_algorithm(method, lanes=(1,))


def _in_order(message, client_state, data, key):
    """A step on each example, in the order in which the client has them."""
    step = jax.grad(lambda params, x, y: MODEL.losses(MODEL.apply(params, x[None]), y[None])[0])
    rows = eh.rounds.own_rows(data)

    def one(i, params):
        return tree.subtract(params, tree.scale(0.1, step(params, rows.x[i], rows.y[i])))

    return tree.subtract(lax.fori_loop(0, data.size, one, message.params), message.params), client_state


def _drawn_by_capacity(message, client_state, data, key):
    """A step on some examples, which are others where the largest client has more of them."""
    rows, order = eh.rounds.own_rows(data), jax.random.permutation(key, data.capacity)
    chosen = (order < data.size) & (jnp.cumsum(order < data.size) <= 4)

    def loss(params):
        losses = MODEL.losses(MODEL.apply(params, rows.x[order]), rows.y[order])
        return jnp.sum(jnp.where(chosen, losses, 0.0)) / jnp.sum(chosen.astype(jnp.float32))

    return tree.scale(-0.1, jax.grad(loss)(message.params)), client_state


def _sketched(state, direction, reported, key):
    """A fixed random projection of the direction: nothing comes of nothing."""
    (phase,) = METHODS["fedavg"].phases
    signs = jax.tree.map(
        lambda leaf: jax.random.rademacher(jax.random.key(1), leaf.shape, leaf.dtype), direction
    )
    return phase.server(
        state, jax.tree.map(lambda a, b: a * jnp.vdot(a, b) / a.size, signs, direction), reported, key
    )


@pytest.mark.parametrize("part", [{"work": _in_order}, {"work": _drawn_by_capacity}, {"server": _sketched}])
def test_methods_that_look_careless_obey_the_contract(part):
    """Work that draws nothing though it goes by order, or draws by the capacity; a server with a key for all rounds."""
    (phase,) = METHODS["fedavg"].phases
    eh.testing.check_algorithm(METHODS["fedavg"]._replace(phases=(phase._replace(**part),)), rounds=2)


def _first_only(uploads, present, state, key):
    return tree.take(uploads.delta, jnp.int32(0)), state


def _unnormalised(total, state, key):
    return total[0], state


def _biased(total, state, key):
    direction, state = MEAN.lower(total, state, key)
    return tree.add(direction, tree.scale(1e-3, jax.tree.map(jnp.ones_like, direction))), state


def _partly_unknown(total, state, key):
    direction, state = MEAN.lower(total, state, key)
    return {**direction, "w": jnp.nan * direction["w"]}, state


def _weighted(uploads, weights):
    shares = weights / jnp.maximum(jnp.sum(weights), 1e-9)
    return jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, axes=1), uploads.delta)


def _spread(uploads, present, state, key):
    """The mean, divided by 1 and the variance over the uploads that are accepted."""
    mean = _weighted(uploads, uploads.weight)
    filled = present.astype(jnp.float32)

    def shrunk(leaf, middle):
        squares = jnp.tensordot(filled, jnp.square(leaf - middle[None]), axes=1)
        return middle / (1.0 + 1e-9 * squares / (jnp.sum(filled) - 1.0))

    return jax.tree.map(shrunk, uploads.delta, mean), state


def _by_squares(uploads, present, state, key):
    squares = jax.vmap(lambda delta: jnp.square(tree.norm(delta)))(uploads.delta)
    return _weighted(
        uploads, uploads.weight * jnp.exp(-jnp.square(squares) / jnp.sum(jnp.square(squares)))
    ), state


def _zero_times_nan(uploads, present, state, key):
    return _weighted(uploads, jnp.where(present, uploads.weight, 0.0)), state


def _by_losses(uploads, present, state, key):
    return _weighted(uploads, uploads.weight * uploads.loss), state


def _with_a_count(uploads, present, state, key):
    return _weighted(uploads, uploads.weight), (state, jnp.sum(present))


def _noise(like, key):
    return jax.tree.map(lambda leaf: jax.random.normal(key, leaf.shape), like)


def _shaken(uploads, present, state, key):
    mean = _weighted(uploads, uploads.weight)
    return tree.add(mean, _noise(mean, jax.random.key(0))), state


def _all_alike(upload, public, key):
    noise = _noise(upload.delta, jax.random.key(0))
    return MEAN.lift(upload._replace(delta=tree.add(upload.delta, noise)), public, key)


NOISY_MEAN = eh.privacy.noisy_mean(1.0, noise_multiplier=1.0, rate=0.5)


def _always_the_same(total, state, key):
    return NOISY_MEAN.lower(total, state, jax.random.key(0))


def _half_as_loud(promised):
    loud, soft = (
        eh.privacy.noisy_mean(1.0, noise_multiplier=noise, rate=0.5) for noise in (promised, promised / 2)
    )
    return loud._replace(lower=soft.lower)


def _as_if_alone(distance, weight, public):
    """As in the first pass from the mean, of which a check of that pass alone sees nothing."""
    return weight + 0 * distance


@pytest.mark.parametrize(
    ("words", "aggregator"),
    [
        ("An empty slot is read", Stack(lambda like, clients: (), _zero_times_nan, skips_absent=True)),
        ("only one of a round", Stack(lambda like, clients: (), _spread)),
        ("its norm is 1e18", Stack(lambda like, clients: (), _by_squares)),
        ("depends on losses", Stack(lambda like, clients: (), _by_losses)),
        ("depends on losses", MEAN._replace(lift=lambda upload, public, key: (upload.delta, upload.loss))),
        ("state after a round", Stack(lambda like, clients: (), _with_a_count)),
        ("Uploads of zeros", Stack(lambda like, clients: (), _shaken)),
        ("Uploads of zeros", MEAN._replace(lift=_all_alike)),
        ("gives the same noise", NOISY_MEAN._replace(lower=_always_the_same)),
        ("noise is smaller", NOISY_MEAN._replace(release=Release(2.0))),
        (
            "noise is smaller",
            NOISY_MEAN._replace(lower=eh.privacy.noisy_mean(1.0, noise_multiplier=0.01, rate=0.5).lower),
        ),
        *(("noise is smaller", _half_as_loud(promised)) for promised in (0.2, 0.5, 0.7)),
        ("not finite", MEAN._replace(lower=_partly_unknown)),
        ("order", Stack(lambda like, clients: (), _first_only)),
        ("empty slot counts", Stack(lambda like, clients: (), _median_over_slots)),
        ("empty slot counts", Stack(lambda like, clients: (), _mean_over_slots)),
        ("agree", MEAN._replace(lower=_unnormalised)),
        ("no uploads", MEAN._replace(lower=_biased)),
        ("sensitivity", MEAN._replace(sensitivity=1.0)),
        (
            "times its factor",
            _MEDIAN._replace(radial=Radial(_MEDIAN.lift, lambda public: public.z, _as_if_alone)),
        ),
    ],
)
def test_a_broken_aggregator_is_found_out(words, aggregator):
    keeps_consensus = words not in (
        "no uploads",
        "Uploads of zeros",
        "gives the same noise",
        "noise is smaller",
    )
    with pytest.raises(AssertionError, match=words):
        eh.testing.check_aggregator(aggregator, keeps_consensus=keeps_consensus)
