"""Mistakes in what clients report, keep and send, and in who takes part, which no run shows, are found out."""

from functools import partial

import jax
import jax.numpy as jnp
import optax
import pytest

import evenhand as eh
from evenhand import tree

MODEL = eh.testing.toy_model()
WORK = eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=4)
FEDAVG = eh.algorithms.fedavg(WORK)
SCAFFOLD = eh.algorithms.scaffold(WORK)


def _forgetful_methods():
    """Each with words in the name of the law that it breaks, and words of the message."""
    base, proximal = FEDAVG, eh.algorithms.fedprox(WORK, mu=0.5)
    (phase,) = base.phases

    def with_states(work, begin=tree.zeros_like):
        report = phase._replace(report=lambda message, own, data: phase.report(message, (), data), work=work)
        return base._replace(phases=(report,), init_client=begin)

    def resets(message, momentum, data, key):
        delta, _ = phase.work(message, (), data, key)
        return tree.add(delta, tree.scale(0.5, momentum)), tree.zeros_like(momentum)

    def counts(message, count, data, key):
        return phase.work(message, (), data, key)[0], count.astype(jnp.float32) + 1.0

    def alike(message, client_state, data):
        return eh.types.Report(jnp.float32(1.0), jnp.float32(jnp.nan))

    def unbiased(message, client_state, data, key):
        delta, client_state = phase.work(message, client_state, data, key)
        size = data.size.astype(jnp.float32)
        return tree.scale(jnp.sqrt(size / (size - 1.0)), delta), client_state

    def finishes(work):
        method = eh.algorithms.fedprox(work, mu=0.5)
        (partial,) = method.phases

        def whole(message, client_state, data, key):
            return partial.work(message, client_state, data._replace(progress=jnp.float32(1.0)), key)

        return method._replace(phases=(partial._replace(work=whole),))

    def stands(state, direction, reported, key):
        _, info = phase.server(state, direction, reported, key)
        return state, info

    yield "change models and states", "changes a client's state", with_states(resets)
    yield "keep the form", "int32 of shape", with_states(counts, lambda params: jnp.int32(0))
    yield "weights are those", "not the one of the", base._replace(phases=(phase._replace(report=alike),))
    yield (
        "weights are those",
        "not the one of the",
        base._replace(sampling=eh.sampling.uniform(weighted=False)),
    )
    yield (
        "uploads are finite",
        "1 training example is",
        base._replace(phases=(phase._replace(work=unbiased),)),
    )
    for epochs, batch_size in ((1, 1), (2, 1), (2, 4)):  # as many steps as examples, twice as many, and ten
        work = eh.local.sgd(MODEL, 0.1, epochs=epochs, batch_size=batch_size)
        yield "do a part of the work", "does all of the work", finishes(work)
    yield "change models", "changes a model", base._replace(phases=(phase._replace(server=stands),))
    adapt = partial(_adapted, jax.random.key(0))
    yield "randomness", "adapts its model with a key", proximal._replace(adapt=adapt)


def _adapted(always, params, data, key):
    return WORK.solve(params, data, always, optax.identity())[0]


def _law(words, method, **options):
    checks = eh.testing.algorithm_checks(method, lanes=(1,), rounds=2, **options)
    (law,) = (each for each in checks if words in each.name)
    return law


@pytest.mark.parametrize(
    ("law", "words", "method"), [*_forgetful_methods()], ids=lambda value: str(value)[:24]
)
def test_what_no_run_shows_is_found_out(law, words, method):
    with pytest.raises(AssertionError, match=words):
        _law(law, method)()


def test_a_weight_may_depend_on_more_than_the_size():
    """Clients are weighed by their labels of one class, which their size does not say."""
    (phase,) = FEDAVG.phases

    def rare(message, client_state, data):
        rows, inside = eh.rounds.own_rows(data), jnp.arange(data.capacity) < data.size
        count = jnp.sum(jnp.where(inside & (rows.y == 0), 1.0, 0.0))
        return eh.types.Report(count, jnp.float32(jnp.nan))

    _law("weights are those", FEDAVG._replace(phases=(phase._replace(report=rare),)))()


def _own_copy(personal, received, data, key):
    return WORK.solve(received, data, key, optax.identity())[0]


def test_a_client_continues_only_where_that_is_asked_for():
    """Personal models may also be trained anew in each round, and a state may be a record that nothing reads."""
    anew = eh.build.beside(FEDAVG, train=_own_copy, effort=WORK.effort, name="own copies")
    (phase,) = SCAFFOLD.phases

    def records(message, own, data, key):
        delta, variate = phase.work(message, own["variate"], data, key)
        return delta, {"variate": variate, "norm": tree.norm(variate)}

    recording = SCAFFOLD._replace(
        phases=(
            phase._replace(
                report=lambda message, own, data: phase.report(message, own["variate"], data), work=records
            ),
        ),
        init_client=lambda params: {"variate": tree.zeros_like(params), "norm": jnp.float32(0.0)},
    )
    for method, words in ((anew, "starts anew"), (recording, "Nothing reads 'norm'")):
        names = [each.name for each in eh.testing.algorithm_checks(method)]
        assert "clients continue from their state" not in names
        _law("change models", method)()
        with pytest.raises(AssertionError, match=words):
            _law("continue", method, continues=True)()


@pytest.mark.parametrize(
    "method",
    [
        SCAFFOLD,
        eh.personalization.ditto(FEDAVG, WORK, lam=0.5),
        eh.personalization.apfl(WORK, alpha=0.5),
        eh.personalization.mapper(WORK),
        eh.personalization.local_only(WORK),
    ],
    ids=lambda method: method.name,
)
def test_methods_with_states_continue_from_them(method):
    _law("continue", method, continues=True)()


def _cohort_of(ids, present=None):
    return eh.types.Cohort.of(jnp.asarray(ids), present)


UNIFORM = eh.sampling.uniform()
SAMPLINGS = {
    "does not exist": {"draw": lambda key, sizes, m: _cohort_of(UNIFORM.draw(key, sizes, m).ids + 3)},
    "falls with the size": {"weight": lambda size: 1.0 / jnp.maximum(size.astype(jnp.float32), 1.0)},
    "a client twice": {"draw": lambda key, sizes, m: _cohort_of(jnp.zeros(m, jnp.int32))},
    "an id \\(int32\\)": {"draw": lambda key, sizes, m: _cohort_of(jnp.arange(float(m)))},
    "client that is absent": {"among": lambda key, sizes, present, m: UNIFORM.draw(key, sizes, m)},
    "another cohort": {
        "among": lambda key, sizes, present, m: _cohort_of(jnp.zeros(1, jnp.int32), present[:1])
    },
}


@pytest.mark.parametrize("words", SAMPLINGS)
def test_a_broken_sampling_is_found_out(words):
    method = eh.algorithms.fedavg(WORK, sampling=UNIFORM._replace(**SAMPLINGS[words]))
    with pytest.raises(AssertionError, match=words):
        _law("cohorts", method)()


def _systems(draw=lambda key, cohort, keep_partial: cohort, **options):
    return eh.systems.Systems(draw, **options)


SYSTEMS = {
    "not in the cohort": _systems(lambda key, cohort, partial: cohort._replace(ids=(cohort.ids + 1) % 6)),
    "progress below 0": _systems(lambda key, cohort, partial: cohort._replace(progress=-cohort.progress)),
    "or NaN: it is": _systems(
        lambda key, cohort, partial: cohort._replace(progress=jnp.nan * cohort.progress)
    ),
    "one bool for each client": _systems(present=lambda key, round, clients: jnp.ones(clients)),
    "number of seconds": _systems(pace=eh.systems.Pace(lambda ids: -jnp.ones(ids.shape))),
}


@pytest.mark.parametrize("words", SYSTEMS)
def test_broken_systems_are_found_out(words):
    with pytest.raises(AssertionError, match=words):
        _law("cohorts", eh.algorithms.fedprox(WORK, mu=0.5), systems=SYSTEMS[words])()


@pytest.mark.parametrize(
    "systems", [eh.systems.dropouts(0.5), eh.systems.diurnal(3, groups=3), eh.systems.speeds(0.5)]
)
@pytest.mark.parametrize(
    "sampling", [eh.sampling.proportional(), eh.sampling.poisson(0.5), eh.sampling.cyclic(4)]
)
def test_cohorts_of_the_package_hold_clients_that_may_take_part(sampling, systems):
    _law("cohorts", eh.algorithms.fedavg(WORK, sampling=sampling), systems=systems)()


def _slow_devices(key, cohort, keep_partial):
    """The same clients are slow in each round; a fast one could do twice its work."""
    slow = jax.vmap(lambda k: jax.random.bernoulli(jax.random.fold_in(jax.random.key(42), k)))(cohort.ids)
    return cohort._replace(progress=jnp.where(slow, 0.5, 2.0))


def test_lasting_properties_of_devices_are_no_fault():
    _law("cohorts", eh.algorithms.fedprox(WORK, mu=0.5), systems=_systems(_slow_devices))()


def test_weights_that_nobody_reads_and_votes_of_a_second_phase_are_free():
    (phase,) = FEDAVG.phases

    def vote(message, client_state, data):
        return eh.types.Report(jnp.float32(1.0), jnp.float32(jnp.nan))

    voting = phase._replace(report=vote)
    median = voting._replace(aggregator=eh.aggregators.trimmed_mean(0.2))
    unread = FEDAVG._replace(phases=(median,))
    second = FEDAVG._replace(phases=(phase, voting))
    for method in (unread, second):
        _law("weights", method)()
    with pytest.raises(AssertionError, match="not the one of the method's sampling"):
        _law("weights", FEDAVG._replace(phases=(voting,)))()


def test_a_state_that_is_only_read_is_no_fault():
    """The anchor of a proximal term: each client's first model."""
    (phase,) = FEDAVG.phases

    def work(message, anchor, data, key):
        received = FEDAVG.received(message)
        params, _ = WORK.solve(received, data, key, eh.local.proximal(0.1, anchor))
        return tree.subtract(params, received), anchor

    method = FEDAVG._replace(phases=(phase._replace(work=work),), init_client=lambda params: params)
    _law("change models", method)()
    zeros = FEDAVG._replace(phases=method.phases, init_client=tree.zeros_like)
    with pytest.raises(AssertionError, match="which stays 0"):
        _law("change models", zeros)()


def test_a_coalition_may_multiply_empty_slots_by_0():
    """The upload of the client with a single example is NaN, and its slot holds zeros."""
    (phase,) = FEDAVG.phases

    def broken(message, client_state, data, key):
        delta, client_state = phase.work(message, client_state, data, key)
        return tree.scale(jnp.where(data.size > 1, 1.0, jnp.nan), delta), client_state

    def collude(uploads, malicious, present, key):
        honest = (present & ~malicious).astype(jnp.float32)
        mean = jax.tree.map(lambda leaf: jnp.tensordot(honest, leaf, axes=1), uploads.delta)
        return jax.tree.map(lambda leaf, m: jnp.broadcast_to(-m, leaf.shape), uploads.delta, mean)

    attack = eh.types.Attack(clients=(5,), collude=collude)
    eh.testing.check_attack(attack)
    method = FEDAVG._replace(phases=(phase._replace(work=broken),))
    with pytest.warns(eh.errors.EvenhandWarning, match="rejected"):
        run = eh.simulate(method, eh.testing.toy_data(), rounds=2, attack=attack)
    assert run.per_round["rejected"].tolist() == [1.0, 1.0]
    assert jnp.isfinite(tree.norm(run.params))


def _regression(params, x):
    return x @ params["w"] + params["b"]


REGRESSION = eh.Model(
    lambda key: {"w": 0.3 * jax.random.normal(key, (4,)), "b": jnp.zeros(())},
    _regression,
    lambda outputs, y: 0.5 * (outputs - y.astype(jnp.float32)) ** 2,
    {},
)
"""Gradients of its bias grow as much as the bias, and those of its weights even more."""


def _sending(upload, method=FEDAVG):
    """FedAvg with other uploads, made of the trained model, how it changed, and the number of examples."""
    (phase,) = method.phases

    def work(message, client_state, data, key):
        delta, client_state = phase.work(message, client_state, data, key)
        size = data.size.astype(jnp.float32)
        return upload(tree.add(message.params, delta), delta, size), client_state

    def server(state, direction, reported, key):
        return state, {}

    return method._replace(phases=(phase._replace(work=work, server=server),))


def _with_ridge(lam):
    """What a client uploads with a ridge that is added to its change, as docs/extending.md describes."""
    return lambda trained, delta, size: tree.add(delta, tree.scale(lam, tree.subtract(trained, delta)))


REGRESSING = eh.local.sgd(REGRESSION, 0.1, epochs=1, batch_size=4)


@pytest.mark.parametrize(
    "method",
    [
        eh.algorithms.scaffold(REGRESSING),
        eh.algorithms.feddane(REGRESSING, mu=0.1),
        _sending(lambda trained, delta, size: tree.scale(-10.0, delta), eh.algorithms.fedavg(REGRESSING)),
        _sending(lambda trained, delta, size: tree.scale(-size / size, delta)),  # NaN without examples
        _sending(_with_ridge(0.49)),
        eh.personalization.local_only(WORK),  # which sends nothing
    ],
    ids=["scaffold", "feddane", "gradients", "gradients by size", "ridge", "nothing"],
)
def test_gradients_may_grow_with_the_parameters(method):
    _law("uploads are differences", method)()


@pytest.mark.parametrize(
    "upload",
    [
        lambda trained, delta, size: (tree.scale(size, trained), size),  # summands of a weighted mean
        lambda trained, delta, size: tree.scale(
            size / float(eh.testing.toy_data().train.sizes.sum()), trained
        ),
        lambda trained, delta, size: (delta, tree.scale(size / size, trained)),  # NaN without examples
        lambda trained, delta, size: jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(trained)]),
        lambda trained, delta, size: {**delta, "b": trained["b"]},
        _with_ridge(0.51),
    ],
    ids=["times the size", "times the share", "beside a difference", "flat", "in part", "ridge"],
)
def test_parameters_are_found_in_whatever_form_they_are_sent(upload):
    with pytest.raises(AssertionError, match="a client sends parameters"):
        _law("uploads are differences", _sending(upload))()


def _straggling(work, change=lambda delta: delta, least=0.0):
    """FedProx, whose stragglers do at least such a share of the work."""
    method = eh.algorithms.fedprox(work, mu=0.5)
    (phase,) = method.phases

    def done(message, client_state, data, key):
        data = data._replace(progress=jnp.maximum(data.progress, least))
        delta, client_state = phase.work(message, client_state, data, key)
        return change(delta), client_state

    return method._replace(phases=(phase._replace(work=done),))


WARMING = eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=4, schedule=eh.local.warm_up(10))
SIGNS = partial(jax.tree.map, jnp.sign)


def test_stragglers_may_warm_up_or_send_signs():
    """All steps of the first round have length 0; signs are the same after one step and after all."""
    short = eh.local.sgd(MODEL, 1e-3, epochs=4)
    for method in (_straggling(WARMING), _straggling(short, SIGNS)):
        _law("do a part of the work", method)()
    whole = eh.algorithms.fedprox(short, mu=0.5)
    (phase,) = whole.phases

    def finishes(message, client_state, data, key):
        return SIGNS(phase.work(message, client_state, data._replace(progress=jnp.float32(1.0)), key))

    for method in (_straggling(WARMING, least=1.0), whole._replace(phases=(phase._replace(work=finishes),))):
        with pytest.raises(AssertionError, match="does all of the work"):
            _law("do a part of the work", method)()


def test_a_weight_that_depends_on_data_may_be_above_that_of_the_own_size():
    (phase,) = FEDAVG.phases

    def labels(scale, message, client_state, data):
        rows, inside = eh.rounds.own_rows(data), jnp.arange(data.capacity) < data.size
        count = jnp.sum(jnp.where(inside & (rows.y == rows.y[0]), 1.0, 0.0))
        return eh.types.Report(scale * jnp.minimum(count, 2.0), jnp.float32(jnp.nan))

    own = "know their own rows"
    _law(own, FEDAVG._replace(phases=(phase._replace(report=partial(labels, 8.0)),)))()
    with pytest.raises(AssertionError, match="above that of its sampling"):
        _law(own, FEDAVG._replace(phases=(phase._replace(report=partial(labels, 9.0)),)))()


def _in_half_precision(dtype):
    def init(key):
        return jax.tree.map(lambda leaf: leaf.astype(dtype), MODEL.init(key))

    model = MODEL._replace(init=init, apply=lambda params, x: MODEL.apply(params, x.astype(dtype)))
    return eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=2, batch_size=4))


@pytest.mark.parametrize(("law", "dtype"), [("no vote", jnp.float16), ("readable twin", jnp.bfloat16)])
def test_half_precision_is_no_fault(law, dtype):
    """An upload of norm 1e18 has no place in float16, and sums are rounded more coarsely in bfloat16."""
    with jax.numpy_dtype_promotion("standard"):
        _law(law, _in_half_precision(dtype))()


def test_a_fault_is_found_in_half_precision():
    method = _in_half_precision(jnp.float16)
    (phase,) = method.phases

    def squared(uploads, present, state, key):
        return jax.tree.map(lambda leaf: jnp.sum(leaf * leaf, axis=0), uploads.delta), state

    stack = eh.types.Stack(lambda like, clients: (), squared)
    with (
        jax.numpy_dtype_promotion("standard"),
        pytest.raises(AssertionError, match="not finite if its norm is 16376"),
    ):
        _law("no vote", method._replace(phases=(phase._replace(aggregator=stack),)))()


def _with_a_key(of_state):
    """FedAvg whose clients keep a key, and split it in each round."""
    (phase,) = FEDAVG.phases

    def work(message, own, data, key):
        delta, _ = phase.work(message, (), data, jax.random.fold_in(key, jax.random.bits(own)))
        return delta, of_state(own)

    return FEDAVG._replace(
        phases=(
            phase._replace(report=lambda message, own, data: phase.report(message, (), data), work=work),
        ),
        init_client=lambda params: jax.random.key(5),
    )


def test_clients_may_keep_keys():
    method = _with_a_key(lambda own: jax.random.split(own)[0])
    for law in ("own rows", "readable twin", "change models", "absent clients"):
        _law(law, method)()


def _sharing_draws(as_seed=lambda key: key, as_key=lambda seed: seed):
    """FedAvg whose clients all draw from one key, which the server draws for them."""
    (phase,) = FEDAVG.phases

    def begin(params, clients):
        return FEDAVG.init(params, clients)._replace(extra=as_seed(jax.random.key(5)))

    def work(message, client_state, data, key):
        return phase.work(message[0], client_state, data, as_key(message[1]))

    def server(state, direction, reported, key):
        state, info = phase.server(state, direction, reported, key)
        return state._replace(extra=as_seed(jax.random.fold_in(key, 100))), info

    shared = phase._replace(
        broadcast=lambda state, client: (phase.broadcast(state, client), state.extra),
        report=lambda message, client_state, data: phase.report(message[0], client_state, data),
        work=work,
        server=server,
    )
    return FEDAVG._replace(init=begin, phases=(shared,), received=lambda message: message[0].params)


@pytest.mark.parametrize(
    "method",
    [_sharing_draws(), _sharing_draws(jax.random.key_data, jax.random.wrap_key_data)],
    ids=["a key", "its numbers"],
)
def test_clients_may_draw_from_a_key_that_the_server_sends(method):
    _law("randomness", method)()


def test_a_key_of_its_own_is_found_inside_a_loop():
    """Beside operands that come from the server's key."""
    (phase,) = FEDAVG.phases
    always = jax.random.key_data(jax.random.key(0))

    def work(message, client_state, data, key):
        def once(i, delta):
            own = jax.random.wrap_key_data(always)
            return tree.add(delta, phase.work(message, client_state, data, own)[0])

        return jax.lax.fori_loop(0, 2, once, tree.zeros_like(message.params)), client_state

    with pytest.raises(AssertionError, match="draws from a key of its own"):
        _law("randomness", FEDAVG._replace(phases=(phase._replace(work=work),)))()


def _in_turns(work):
    """FedAvg with full cohorts in a fixed order."""

    def scheduled(key, round, sizes, m):
        return _cohort_of((jnp.arange(m, dtype=jnp.int32) + round * m) % len(sizes))

    sampling = eh.types.Sampling(lambda key, sizes, m: scheduled(key, 0, sizes, m), UNIFORM.weight)
    return eh.algorithms.fedavg(work, sampling=sampling._replace(scheduled=scheduled))


def test_another_seed_changes_nothing_where_nothing_is_drawn():
    fixed = _in_turns(eh.local.sgd(MODEL, 0.1, epochs=2))
    _law("another seed", fixed)()
    drawing = _in_turns(WORK)
    (phase,) = drawing.phases

    def draws_alone(message, client_state, data, key):
        return phase.work(message, client_state, data, jax.random.key(0))

    with pytest.raises(AssertionError, match="Another seed gave the same"):
        _law("another seed", drawing._replace(phases=(phase._replace(work=draws_alone),)))()
