"""``eh.expressions``: what a script can do with the expressions that the command line takes."""

from __future__ import annotations

import pytest

import evenhand as eh

MODEL = eh.testing.toy_model()
WORK = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4)


def test_an_expression_is_the_value_that_python_would_make() -> None:
    method = eh.expressions.parse("fedprox(mu=0.5)", eh.Algorithm, MODEL, WORK)
    here = eh.algorithms.fedprox(WORK, mu=0.5)
    data = eh.testing.toy_data()
    read, made = (eh.simulate(value, data, rounds=2).history["train_loss"] for value in (method, here))
    assert list(read) == list(made)


def test_local_work_may_be_made_on_demand() -> None:
    calls: list[str] = []

    def work() -> eh.local.Work:
        calls.append("made")
        return WORK

    eh.expressions.parse("sign_flip(0.2)", eh.types.Attack, MODEL, work)
    eh.expressions.parse("fedavg(sgd(0.1, epochs=2))", eh.Algorithm, MODEL, work)
    assert not calls
    eh.expressions.parse("fedavg()", eh.Algorithm, MODEL, work)
    assert calls == ["made"]


def test_factories_are_given_by_the_type_of_their_values() -> None:
    methods = eh.expressions.factories(eh.Algorithm)
    assert methods["ditto"] is eh.personalization.ditto and "side_by_side" not in methods
    kinds = {kind.noun: kind for kind in eh.expressions.KINDS}
    assert eh.expressions.factories(kinds["method"]) == methods
    assert eh.expressions.signature("fedprox", methods["fedprox"]).startswith("fedprox(mu=, server_opt=")
    assert [kinds[noun].with_article for noun in ("attack", "method", "systems")] == [
        "an attack",
        "a method",
        "systems",
    ]
    with pytest.raises(
        eh.EvenhandError, match="kind=<class 'int'>: expressions make values of the types Algorithm, "
    ):
        eh.expressions.parse("1", int, MODEL, WORK)


def test_texts_of_one_method_are_one_text_and_noise_is_filled_in() -> None:
    assert eh.expressions.canonical(" fedprox( mu = 1.0 )") == "fedprox(mu=1)"
    with_noise = eh.expressions.with_noise
    assert with_noise("dp_fedavg(clip=1)", 2.0) == "dp_fedavg(clip=1, noise_multiplier=2)"
    assert with_noise("dp_fedavg(clip=1, noise_multiplier=3)", 2.0) == "dp_fedavg(clip=1, noise_multiplier=3)"
    assert with_noise("fedavg()", 2.0) == "fedavg()"
    with pytest.raises(eh.expressions.ExpressionError, match="is not an expression"):
        with_noise("fedavg(", 2.0)


@pytest.mark.parametrize("values", ["{[1]}", "{{1: 2}}"])
def test_braces_in_braces_are_refused_whatever_is_in_them(values: str) -> None:
    with pytest.raises(eh.expressions.ExpressionError, match="braces hold the values of one argument"):
        eh.expressions.braced(f"fedprox(mu={{{values}}})")
