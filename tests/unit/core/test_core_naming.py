"""Reprs of values made of functions: a name, or the names of the functions, never an address."""

import pytest

import evenhand as eh

MODEL = eh.models.softmax_regression(4, classes=3)
WORK = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4)
A = eh.algorithms
PROX = A.fedprox(WORK, mu=0.1)

METHODS = {
    "fedavg": A.fedavg(WORK),
    "fedprox(mu=0.1)": PROX,
    "fedprox_adaptive(mu0=1)": A.fedprox_adaptive(WORK, mu0=1.0),
    "scaffold": A.scaffold(WORK),
    "feddane(mu=0.5)": A.feddane(WORK, mu=0.5),
    "qfedavg(q=2, lipschitz=10)": A.qfedavg(WORK, q=2.0, lipschitz=10.0),
    "qfedsgd(q=2, lipschitz=10)": A.qfedsgd(MODEL, q=2.0, lipschitz=10.0),
    "qfedsgd(q=2, step_size=0.1)": A.qfedsgd(MODEL, q=2.0, step_size=0.1),
    "qmaml(q=1, step_size=0.1)": A.qmaml(MODEL, q=1.0, step_size=0.1),
    "delta_fl(theta=0.5)": A.delta_fl(WORK, theta=0.5),
    "delta_fl(theta=0.5, nu=0.1, follow=True)": A.delta_fl(WORK, theta=0.5, nu=0.1, follow=True),
    "delta_fl(theta=0.5, filtered=True)": A.delta_fl(WORK, theta=0.5, filtered=True),
    "delta_fl(theta=0.5, filtered=True, strict=False)": A.delta_fl(
        WORK, theta=0.5, filtered=True, strict=False
    ),
    "delta_fl_levels(theta=0.8, 0.5, 0.3)": A.delta_fl_levels(WORK, theta=(0.3, 0.8, 0.5)),
    "delta_fl_levels(theta=0.8, 0.5, nu=0.1)": A.delta_fl_levels(WORK, theta=(0.8, 0.5), nu=0.1),
    "afl(gamma_w=0.1, gamma_lambda=0.2)": A.afl(MODEL, gamma_w=0.1, gamma_lambda=0.2),
    "fedmgda(epsilon=0.1)": A.fedmgda(WORK),
    "fedtilt(tilts 1, 2, 0; prox_mu=0.01)": A.fedtilt(WORK, tilt_class=1.0, tilt_sample=2.0),
    "fedtilt(tilts 0, 0, 1; prox_mu=0.01, server_steps=2, tied=True)": A.fedtilt(
        WORK, tilt_server=1.0, server_steps=2, tied=True
    ),
    "fedtilt(tilts 0, 0, the aggregator's; prox_mu=0.01)": A.fedtilt(
        WORK, aggregator=eh.aggregators.drift_tilted(2.0)
    ),
    "term(t=1)": A.term(WORK, t=1.0),
    "term(t=1, running=0.5, summed=True)": A.term(WORK, t=1.0, running=0.5, summed=True),
    "term(t=1, reference=True)": A.term(WORK, t=1.0, reference=True),
    "qfedavg(q=2, lipschitz=10, summed=True)": A.qfedavg(WORK, q=2.0, lipschitz=10.0, summed=True),
    "averaged(fedprox(mu=0.1))": A.averaged(PROX),
    "averaged(fedprox(mu=0.1), growth=1.5, initial=False)": A.averaged(PROX, growth=1.5, initial=False),
    "side_by_side(a, b)": A.side_by_side({"a": A.fedavg(WORK), "b": PROX._replace(partial_work=False)}),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_shows_its_name_and_what_sets_it_apart(name):
    assert repr(METHODS[name]) == f"<Algorithm {name}>"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, "lam=0.1"),
        ({"origin": "received", "implicit": True}, "lam=0.1, origin='received', implicit=True"),
        ({"same_batches": True}, "lam=0.1, same_batches=True"),
    ],
)
def test_a_method_around_another_shows_its_options(options, shown):
    assert eh.personalization.ditto(PROX, WORK, lam=0.1, **options).name == f"ditto(fedprox(mu=0.1), {shown})"


@pytest.mark.parametrize("factory", [eh.personalization.fedalt, eh.personalization.fedsim])
def test_a_method_with_a_personal_part_shows_its_options(factory):
    name = factory.__name__
    assert factory(WORK, personal="bias").name == f"{name}(personal='bias')"
    shown = factory(WORK, personal="bias", ridge=0.5, stateful=False).name
    assert shown == f"{name}(personal='bias', ridge=0.5, stateful=False)"


def test_the_table_names_public_methods():
    """A method that it does not name is checked with its options (test_core_method_options.py)."""
    assert {name.split("(")[0] for name in METHODS} <= set(A.__all__)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (MODEL, "<Model softmax_regression(features=4, classes=3)>"),
        (eh.models.linear_regression(4), "<Model linear_regression(features=4, outputs=1)>"),
        (eh.models.svm(4), "<Model svm(features=4, regularization=0.01)>"),
        (eh.models.mlp(4, classes=3, hidden=[5]), "<Model mlp(features=4, classes=3, hidden=(5,))>"),
        (eh.aggregators.mean(), "Sum(init=mean.init, lift=mean.lift, lower=mean.lower)"),
        (eh.aggregators.min_norm(0.1), "Stack(init=min_norm.<lambda>, apply=min_norm.apply)"),
        (eh.risks.tilted(1.0), "Risk(value=tilted.value, weights=tilted.weigh)"),
        (eh.sampling.uniform(), "Sampling(draw=_uniform.draw, weight=_rows, among=_uniform_among.among)"),
        (
            WORK._replace(model=MODEL._replace(name="toy")),
            "Work(model=<Model toy>, solve=descent.solve, effort=batches.effort, step_size=0.1, of_risk=sgd.of_risk, "
            "parts=Parts(schedule=Batches(effort=batches.effort, draw=batches.draw), estimate=batch_gradient.estimate, "
            "client_opt=by_round.optimiser_of), "
            "continued=Continued(init=marked.init, solve=continued.solve, corrected=continued.corrected))",
        ),
        (eh.systems.stragglers(0.5), "Systems(draw=_stragglers.draw)"),
        (eh.types.Attack(0.2, upload=lambda delta, key: delta), "Attack(fraction=0.2, upload=<lambda>)"),
    ],
)
def test_a_part_shows_the_names_of_its_functions(value, text):
    assert repr(value) == text


def test_what_has_no_name_shows_its_parts_on_a_few_lines_and_no_address():
    text = repr(PROX._replace(name="", model=eh.testing.toy_model()))
    assert len(text) < 600
    assert " at 0x" not in text
    assert "init=variant.<lambda>" in text
    assert "metrics={accuracy}" in text


def test_values_still_compare_and_hash_as_tuples():
    assert eh.sampling.uniform() == eh.sampling.uniform()
    assert hash(eh.sampling.uniform()) == hash(eh.sampling.uniform())
    assert eh.sampling.uniform() != eh.sampling.uniform(weighted=False)
