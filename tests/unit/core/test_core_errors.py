"""Error messages about values in the wrong place, and suggestions for misspelt names."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand.errors import EvenhandError, expect, nearest, perhaps, real_number, truth_value, whole_number

METHODS = ["fedavg", "fedprox", "feddane", "delta-fl", "qfedavg", "afl", "term"]
MODEL = eh.models.softmax_regression(3, classes=2)
SGD = optax.sgd(0.1)


class Module:
    """Stands in for a class of torch, which is recognised by the name of its module."""

    __module__ = "torch.nn.modules.module"


class Net(Module):
    """A user's subclass, in a module of another name."""


class Linen(nn.Module):
    """A flax module."""


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("FedAvg", "fedavg"),
        ("fed-avg", "fedavg"),
        ("fed_prox", "fedprox"),
        ("fedporx", "fedprox"),
        ("deltafl", "delta-fl"),
        ("Delta FL", "delta-fl"),
        ("fedavgg", "fedavg"),
        ("tern", "term"),
        ("krum", None),
        ("fed", None),
        ("sgd", None),
        ("a", None),
        ("", None),
        ("averaging", None),
    ],
)
def test_the_nearest_name_is_suggested(word: str, meant: str | None) -> None:
    assert nearest(word, METHODS) == meant
    assert perhaps(word, METHODS) == ("" if meant is None else f" (perhaps you meant {meant})")


def test_nothing_is_suggested_from_no_names() -> None:
    assert nearest("fedavg", []) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.1, "part=0.1: give a value such as 3."),
        ("x" * 100, "part='" + "x" * 59 + ": give"),
        (Module(), "part= got an instance of torch's Module: "),
        (Net(), "part= got an instance of torch's Net: "),
        (Net, "part= got torch's class Net itself: "),
        (Linen(), "part= got an instance of flax's Linen: "),
        (np.ones(3), "part= got an instance of numpy's ndarray: "),
        (jnp.ones(3), "part= got an instance of jax"),
        (MODEL, "part= got an instance of evenhand's Model: "),
        (dict, "part= got the class dict itself: "),
        (optax.sgd, "part= got the function sgd itself, not what it returns: "),
        (None, "part=None: "),
    ],
)
def test_the_message_describes_a_part_of_the_wrong_kind(value: object, message: str) -> None:
    expect("part", 3, int, "3")
    with pytest.raises(eh.EvenhandError) as error:
        expect("part", value, int, "3")
    assert str(error.value).startswith(message)
    assert str(error.value).endswith(": give a value such as 3.")


A, C = eh.algorithms, eh.centralized
DESCENT = eh.local.sgd(MODEL, 0.1, epochs=1)
FACTORIES = {
    "fedavg": lambda model, opt: A.fedavg(eh.local.sgd(model, opt, epochs=1)),
    "fedprox": lambda model, opt: A.fedprox(eh.local.sgd(model, opt, epochs=1), mu=1.0),
    "fedprox_adaptive": lambda model, opt: A.fedprox_adaptive(eh.local.sgd(model, opt, epochs=1), mu0=0.0),
    "feddane": lambda model, opt: A.feddane(eh.local.sgd(model, opt, epochs=1), mu=1.0),
    "scaffold": lambda model, opt: A.scaffold(eh.local.sgd(model, opt, epochs=1)),
    "qfedavg": lambda model, opt: A.qfedavg(eh.local.sgd(model, opt, epochs=1), q=1.0, lipschitz=1.0),
    "qfedsgd": lambda model, opt: A.qfedsgd(model, q=1.0, lipschitz=1.0),
    "afl": lambda model, opt: A.afl(model, gamma_w=0.1, gamma_lambda=0.1),
    "term": lambda model, opt: A.term(eh.local.sgd(model, opt, epochs=1), t=1.0),
    "delta_fl": lambda model, opt: A.delta_fl(eh.local.sgd(model, opt, epochs=1), theta=0.5),
    "fedtilt": lambda model, opt: A.fedtilt(eh.local.sgd(model, opt, epochs=1), tilt_class=1.0),
    "fedmgda": lambda model, opt: A.fedmgda(eh.local.sgd(model, opt, epochs=1), epsilon=0.1),
    "qmaml": lambda model, opt: A.qmaml(model, q=1.0, step_size=0.1),
    "batch": lambda model, opt: C.batch(model, eh.risks.mean(), optimiser=opt),
    "stochastic": lambda model, opt: C.stochastic(model, t=1.0, rate=0.5, batch_size=2, optimiser=opt),
    "grouped": lambda model, opt: C.grouped(
        model, groups=[0, 1], t=1.0, tau=0.0, rate=0.5, batch_size=2, optimiser=opt
    ),
}
ONE_STEP = {"qfedsgd", "afl", "qmaml"}
CENTRALIZED = {"batch", "stochastic", "grouped"}


@pytest.mark.parametrize("name", FACTORIES)
def test_every_factory_refuses_models_and_optimisers_of_another_kind(name: str) -> None:
    FACTORIES[name](MODEL, SGD)
    for model in (Net(), Net, Linen(), eh.models.mlp, "mlp"):
        with pytest.raises(eh.EvenhandError, match=r"^model=.*: give a value such as eh\.models\."):
            FACTORIES[name](model, SGD)
    numbers = (0.1,) if name in CENTRALIZED else ()
    for opt in (Net(), Module, optax.sgd, "sgd", *numbers) if name not in ONE_STEP else ():
        with pytest.raises(
            eh.EvenhandError,
            match=r"^(client_opt=.*: give a value such as 0\.1|optimiser=.*: give a value such as optax\.sgd\()",
        ):
            FACTORIES[name](MODEL, opt)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: A.fedavg(DESCENT, server_opt=0.1),
            "server_opt=0.1: give a value such as optax.sgd",
        ),
        (
            lambda: A.fedavg(DESCENT, sampling=eh.sampling.uniform),
            "sampling= got the function uniform",
        ),
        (lambda: A.fedavg(SGD), "work= got an instance of optax's .* eh.local.sgd"),
        (lambda: A.qfedavg(MODEL, q=1.0), "work= got an instance of evenhand's Model: .* eh.local.sgd"),
        (lambda: A.fedtilt(DESCENT, tilt_class=1.0, personal=0.1), "personal=0.1: .* eh.local.sgd"),
        (
            lambda: A.fedtilt(DESCENT, prox_mu=math.inf, personal=MODEL),
            "personal= got an instance of evenhand's Model",
        ),
        (
            lambda: A.fedtilt(DESCENT, prox_mu=math.inf, personal=DESCENT),
            r"personal=\.\.\., prox_mu=inf.*: no client could leave the global model",
        ),
        (
            lambda: A.fedtilt(DESCENT, personal=eh.local.sgd(eh.models.mlp(3, classes=2), 0.1, epochs=1)),
            "work= and personal= with different models",
        ),
        (
            lambda: A.fedtilt(eh.local.sgd(MODEL, 0.1, epochs=1, risk=eh.risks.tilted(1.0)), tilt_class=1.0),
            "work whose loss cannot be tilted",
        ),
        (lambda: A.fedavg(eh.local.Work(MODEL, None)), "work=Work.*: its solve is not a function"),  # pyright: ignore[reportArgumentType]
        (lambda: A.fedavg(eh.local.Work(MODEL, DESCENT)), "work=Work.*: its solve is not a function"),  # pyright: ignore[reportArgumentType]
        (
            lambda: A.scaffold(DESCENT._replace(effort=eh.local.batches(epochs=1))),
            "work=Work.*: its effort is not a function",
        ),
        (
            lambda: A.fedtilt(eh.local.Work(MODEL, DESCENT.solve), tilt_class=1.0),
            "work whose loss cannot be tilted",
        ),
        (
            lambda: A.qfedavg(eh.local.sgd(MODEL, SGD, epochs=1), q=1.0),
            r"needs lipschitz=, .* eh.local.sgd\(model, 0.1",
        ),
        (lambda: A.averaged(MODEL), "method= got an instance of evenhand's Model: .* eh.algorithms.fedavg"),
        (lambda: A.side_by_side({"a": A.fedavg}), "method= got the function fedavg itself"),
        (
            lambda: C.fit(Net(), [[1.0]], [0]),
            "model= got an instance of torch's Net: .* eh.models.softmax_regression",
        ),
        (lambda: eh.simulate(A.fedavg, (1, 2), rounds=1), "algorithm= got the function fedavg itself"),  # pyright: ignore[reportArgumentType]
        (lambda: eh.simulate(Net(), (1, 2), rounds=1), "algorithm= got an instance of torch's Net"),  # pyright: ignore[reportArgumentType]
        (
            lambda: eh.simulate(A.fedavg(DESCENT), (1, 2), rounds=1),  # pyright: ignore[reportArgumentType]
            r"data=\(1, 2\): .* eh.data.from_arrays",
        ),
        (
            lambda: eh.simulate(A.fedavg(DESCENT), Net(), rounds=1),  # pyright: ignore[reportArgumentType]
            "data= got an instance of torch's Net",
        ),
        (
            lambda: eh.models.from_flax(Linen, loss="hinge", sample=jnp.ones((1, 2))),  # pyright: ignore[reportArgumentType]
            r"an instance, Linen\(...\)",
        ),
        (
            lambda: eh.models.from_flax(Linen(), loss="CrossEntropy", sample=jnp.ones((1, 2))),  # pyright: ignore[reportArgumentType]
            r'"CrossEntropy" \(perhaps you meant cross_entropy\)',
        ),
    ],
)
def test_values_in_the_wrong_place_get_the_right_call(make, words: str) -> None:
    with pytest.raises(eh.EvenhandError, match=words):
        make()


TRUTHS = (True, False, np.True_, np.array(True), jnp.array(False))


@pytest.mark.parametrize("value", TRUTHS)
def test_a_truth_value_is_no_number(value) -> None:
    with pytest.raises(eh.EvenhandError, match=r"part=.*: give a whole number"):
        whole_number("part", value, 0)
    assert math.isnan(real_number(value))


def test_zeros_and_ones_are_numbers() -> None:
    for one in (1, np.int8(1), np.uint64(1), jnp.int32(1)):
        assert whole_number("part", one, 0) == 1
    for one in (1, 1.0, np.float16(1), np.array(1.0), jnp.float32(1)):
        assert real_number(one) == 1.0


@pytest.mark.parametrize(
    "value",
    [
        "0.5",
        np.array("0.5"),
        Fraction(1, 2),
        Decimal("0.5"),
        np.array([0.5]),
        jnp.ones(2),
        10**400,
        2j,
        np.complex64(2),
    ],
    ids=str,
)
def test_what_no_array_can_be_multiplied_by_is_no_number(value) -> None:
    assert math.isnan(real_number(value))
    with pytest.raises(eh.EvenhandError, match=r"fedprox\(mu=.*\): "):
        A.fedprox(eh.local.sgd(MODEL, 0.1, epochs=1), mu=value)


def test_truth_values_of_arrays_are_truth_values() -> None:
    for value in TRUTHS:
        assert truth_value("part", value) is bool(value)


FLAGS = {
    "keep_partial": lambda flag: A.fedavg(eh.local.sgd(MODEL, 0.1, epochs=1), keep_partial=flag),
    "summed": lambda flag: A.qfedavg(eh.local.sgd(MODEL, 0.1, epochs=1), q=1.0, summed=flag),
    "once": lambda flag: eh.attacks.persistent_outliers(0.1, std=1.0, once=flag),
    "replace": lambda flag: eh.sampling.uniform(replace=flag),
    "weighted": lambda flag: eh.aggregators.multi_krum(1, weighted=flag),
    "higher_is_better": lambda flag: eh.evaluation.worst([0.5, 1.0], higher_is_better=flag),
    "lower": lambda flag: eh.data.encode_counts(["a"], lower=flag),
    "stochastic": lambda flag: eh.secure.fixed_point(stochastic=flag),
    "stateful": lambda flag: eh.personalization.fedsim(
        eh.local.sgd(MODEL, 0.1, epochs=1), personal="bias", stateful=flag
    ),
    "standardize": lambda flag: eh.data.load("digits", standardize=flag),
}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", ["no", 0, 1.0, None, np.array([True, False])], ids=str)
def test_a_flag_is_true_or_false(name: str, value: object) -> None:
    with pytest.raises(eh.EvenhandError, match=f"^{name}=.*: give True or False"):
        FLAGS[name](value)


@pytest.mark.parametrize("name", ["rounds", "seed", "cohort", "eval_every", "lanes", "eval_clients"])
def test_a_run_refuses_truth_values_for_numbers(name: str) -> None:
    method = A.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1))
    with pytest.raises(eh.EvenhandError, match=f"{name}=True: give a whole number"):
        eh.simulate(method, eh.testing.toy_data(), **{"rounds": 1, name: True})


P, S = eh.personalization, eh.systems
NUMBERS = {
    "poisson": eh.sampling.poisson,
    "fixed": eh.sampling.fixed,
    "stragglers": S.stragglers,
    "deadline": lambda x: S.speeds(1.0, x) if x is not None else S.speeds(1.0, spread=x),
    "step factor": lambda x: eh.local.steps(x, every=2),
    "fedprox": lambda x: A.fedprox(DESCENT, mu=x),
    "fedprox_adaptive": lambda x: A.fedprox_adaptive(DESCENT, mu0=x),
    "averaged": lambda x: A.averaged(A.fedavg(DESCENT), growth=x),
    "term": lambda x: A.term(DESCENT, t=x),
    "fedtilt": lambda x: A.fedtilt(DESCENT, tilt_class=x),
    "fedtilt steps": lambda x: A.fedtilt(DESCENT, server_steps=x),
    "delta_fl": lambda x: A.delta_fl(DESCENT, theta=0.5, nu=x),
    "ditto": lambda x: P.ditto(A.fedavg(DESCENT), DESCENT, lam=x),
    "apfl": lambda x: P.apfl(DESCENT, alpha=x),
    "mapper": lambda x: P.mapper(DESCENT, gammas=(0.1, x)),
    "pfedme": lambda x: P.pfedme(DESCENT, lam=x, inner_step=0.1),
    "tilted": eh.risks.tilted,
    "superquantile": eh.risks.superquantile,
    "smoothed": lambda x: eh.risks.smoothed_superquantile(0.5, x),
    "secure": lambda x: eh.aggregators.secure(eh.aggregators.mean(), largest=x),
    "alie": lambda x: eh.attacks.alie(0.2, z=math.nan if x is None else x),
    "negative": lambda x: eh.attacks.negative(0.2, highest=x),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_every_factory_refuses_what_is_no_number(name: str) -> None:
    for value in (None, "0.5", math.nan, True, [0.5, 0.5], 1j):
        with pytest.raises(eh.EvenhandError):
            NUMBERS[name](value)


AGGREGATORS = eh.aggregators
WRAPPERS = {
    "clip": lambda then: AGGREGATORS.clip(1.0, then=then),
    "clip to the median": lambda then: AGGREGATORS.clip(then=then),
    "normalize": lambda then: AGGREGATORS.normalize(then=then),
    "arc": lambda then: AGGREGATORS.arc(1, then),
    "reject": lambda then: AGGREGATORS.reject(1.0, then),
    "bucketing": lambda then: AGGREGATORS.bucketing(2, then),
    "nnm": lambda then: AGGREGATORS.nnm(1, then),
    "bounded_weights": lambda then: AGGREGATORS.bounded_weights(2.0, then),
    "quantized": lambda then: AGGREGATORS.quantized(then=then),
    "top_k": lambda then: AGGREGATORS.top_k(0.5, then=then),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_refuse_what_is_no_aggregator(name: str) -> None:
    for value in ("mean", None, AGGREGATORS.mean, DESCENT):
        with pytest.raises(
            eh.EvenhandError, match=r"\(then=\)=.*: give a value such as eh.aggregators.mean\(\)"
        ):
            WRAPPERS[name](value)


PARTS = {
    "risk_weighted": (lambda: AGGREGATORS.risk_weighted("worst"), "eh.risks.superquantile"),  # pyright: ignore[reportArgumentType]
    "hierarchical": (
        lambda: eh.risks.hierarchical(eh.risks.mean(), eh.risks.tilted, jnp.array([0, 1]), 2),  # pyright: ignore[reportArgumentType]
        r"hierarchical\(inner=\)",
    ),
    "against": (lambda: eh.attacks.inner_product(0.2, against="krum"), r"inner_product\(against=\)"),  # pyright: ignore[reportArgumentType]
    "value": (lambda: eh.attacks.non_finite(0.2, value="zero"), "'nan' or 'inf'"),  # pyright: ignore[reportArgumentType]
    "one client": (lambda: eh.attacks.by_clients(eh.attacks.zero(), "north"), "give several"),  # pyright: ignore[reportArgumentType]
    "a number": (lambda: eh.attacks.by_clients(eh.attacks.zero(), 3), r"by_clients\(clients=\)=3: give"),  # pyright: ignore[reportArgumentType]
    "no attack": (lambda: eh.attacks.during(eh.attacks.zero), "eh.attacks.sign_flip"),  # pyright: ignore[reportArgumentType]
    "features": (lambda: eh.attacks.trigger(0.2, label=1, features=3), r"trigger\(features=\)"),  # pyright: ignore[reportArgumentType]
    "speeds": (lambda: S.speeds(10**400), "give an array of numbers"),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_another_kind_are_refused(name: str) -> None:
    make, words = PARTS[name]
    with pytest.raises(eh.EvenhandError, match=words):
        make()


@pytest.mark.parametrize("size", [2**31, 10**12, 0, -1, 2.5])
def test_impossible_sizes_are_refused_before_memory_is_allocated(size) -> None:
    m = eh.models
    for name, make in [
        ("features", lambda: m.softmax_regression(size, classes=2)),
        ("classes", lambda: m.softmax_regression(3, classes=size)),
        ("features", lambda: m.linear_regression(size)),
        ("outputs", lambda: m.linear_regression(3, outputs=size)),
        ("features", lambda: m.svm(size)),
        ("features", lambda: m.mlp(size, classes=2)),
        ("classes", lambda: m.mlp(3, classes=size)),
        (r"hidden\[1\]", lambda: m.mlp(3, classes=2, hidden=(4, size))),
        ("classes", lambda: m.cnn_femnist(size)),
        *([("hidden", lambda: m.cnn_femnist(hidden=size))] if size else []),  # 0: no hidden layer
        ("classes", lambda: m.cnn_femnist_dropout(size)),
        ("classes", lambda: m.cnn_cifar(size)),
        ("classes", lambda: m.lenet(size)),
        ("classes", lambda: m.resnet20(size)),
        ("groups", lambda: m.resnet32(groups=size)),
        ("features", lambda: m.pca(size, components=1)),
        ("components", lambda: m.pca(3, components=size)),
        ("features", lambda: m.autoencoder(size)),
        (r"widths\[1\]", lambda: m.autoencoder(3, widths=(4, size))),
        ("users", lambda: m.matrix_factorisation(size, 2)),
        ("items", lambda: m.matrix_factorisation(2, size)),
        ("dimension", lambda: m.matrix_factorisation(2, 2, dimension=size)),
        ("vocabulary", lambda: m.lstm(size)),
        ("embedding", lambda: m.lstm(embedding=size)),
        ("hidden", lambda: m.lstm(hidden=size)),
        ("layers", lambda: m.lstm(layers=size)),
    ]:
        with pytest.raises(eh.EvenhandError, match=rf"^{name}={size}: give a whole number"):
            make()


def test_one_number_is_refused_as_the_widths_of_layers() -> None:
    with pytest.raises(eh.EvenhandError, match=r"hidden=\(5,\)"):
        eh.models.mlp(3, classes=2, hidden=5)  # pyright: ignore[reportArgumentType]


def test_a_model_larger_than_the_machine_is_refused_with_its_number_of_parameters() -> None:
    data = eh.data.from_arrays(np.ones((4, 3), np.float32), np.array([0, 1, 0, 1]), [0, 0, 1, 1])
    wide = A.fedavg(eh.local.sgd(eh.models.mlp(3, classes=2, hidden=(10**9, 10**5)), SGD, epochs=1))
    parameters = 4 * 10**9 + 10**14 + 10**5 + 2 * 10**5 + 2
    with pytest.raises(
        eh.EvenhandError,
        match=f"has {parameters:,} parameters, .* at least .* GiB of memory.*: give a smaller one",
    ):
        eh.simulate(wide, data, rounds=0)
    odd = eh.data.from_arrays(np.ones((4, 3), np.float32), np.array([0, 1, 0, 2**31 - 2]), [0, 0, 1, 1])
    assert odd.num_classes is not None
    many = A.fedavg(eh.local.sgd(eh.models.mlp(3, classes=odd.num_classes, hidden=(10**5,)), SGD, epochs=1))
    with pytest.raises(
        eh.EvenhandError, match=r"its 2,147,483,647 classes are .* so number the labels from 0"
    ):
        eh.simulate(many, odd, rounds=0)


def test_traced_numbers_pass_and_have_derivatives():
    losses, shares = jnp.array([1.0, 2.0, 3.0]), jnp.ones(3) / 3

    def risk(q):
        return eh.risks.power(q).value(losses, shares)

    assert float(jax.grad(risk)(0.5)) == pytest.approx(float(risk(0.6) - risk(0.4)) / 0.2, rel=1e-2)
    eh.attacks.trigger(0.2, label=1, features=np.flatnonzero([1, 1, 0]))  # pyright: ignore[reportArgumentType]
    with pytest.raises(EvenhandError, match=r"give positions, such as \(0, -1\)"):
        eh.attacks.trigger(0.2, label=1, features="12")  # pyright: ignore[reportArgumentType]


def test_a_traced_factor_of_an_attack_is_computed_with():
    uploads = eh.types.Upload(jnp.arange(8.0).reshape(4, 2), jnp.ones(4), jnp.ones(4))
    malicious, present = jnp.arange(4) == 0, jnp.ones(4, bool)

    def sent(z):
        collude = eh.attacks.alie(0.25, z=z).collude
        assert collude is not None
        return collude(uploads, malicious, present, jax.random.key(0))[0]

    np.testing.assert_allclose(jax.vmap(sent)(jnp.array([1.0, 2.0])), [sent(1.0), sent(2.0)], rtol=1e-6)


ONE = "give one number for each client"
NOTHING: Any = None
RAGGED: Any = [[1, 2], [3]]
TEXT: Any = "0.2"
ODD: dict[str, tuple[Callable[[], object], str]] = {
    "a tilt in text": (
        lambda: eh.risks.tilted(cast("Any", np.array("0.5"))),
        r"t=.*: the tilt must be a number",
    ),
    "ragged groups": (lambda: eh.sampling.stratified(RAGGED), r"groups=\[\[1, 2\], \[3\]\]\): give"),
    "ragged sizes": (lambda: eh.attacks.by_examples(eh.attacks.zero(), 0.3, RAGGED), "give each client's"),
    "ragged values": (lambda: eh.evaluation.summarize(RAGGED), r"^values=.*: " + ONE),
    "ragged weights": (lambda: eh.evaluation.evenness([1, 2], RAGGED), r"^weights=.*: " + ONE),
    "a share in text": (lambda: eh.evaluation.worst([0.5, 1.0], TEXT), "^fraction='0.2': give a share"),
    "a fraction in text": (
        lambda: eh.data.synthetic(test_fraction=TEXT),
        "^test_fraction must be .* not '0.2'",
    ),
    "a choice of two": (
        lambda: eh.aggregators.drift_tilted(1.0, start=cast("Any", np.array(["zero", "mean"]))),
        "give 'zero' or",
    ),
    "no layers": (lambda: eh.models.mlp(3, hidden=NOTHING, classes=2), "^hidden=None: give the widths"),
    "no state": (lambda: eh.models.cnn_batch_norm(state=NOTHING), "give one of 'refuse'"),
    "no names": (lambda: eh.data.load("digits", drop=NOTHING), "^drop=None: give names of columns"),
    "names of numbers": (
        lambda: eh.data.load("digits", drop=cast("Any", (0.5,))),
        r"^drop=\(0.5,\): give names of columns",
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_values_of_odd_types_are_refused_in_a_sentence(case: str) -> None:
    make, words = ODD[case]
    with pytest.raises(eh.EvenhandError, match=words):
        make()


@pytest.mark.parametrize("number", [np.int64, np.uint8, np.array, jnp.asarray])
def test_whole_numbers_of_arrays_are_whole_numbers(number) -> None:
    assert eh.secure.fixed_point(number(64), cohort=number(200)) == eh.secure.fixed_point(64, cohort=200)
    trigger = eh.attacks.trigger(0.1, label=number(3), patch=number(2)).trigger
    assert trigger is not None and type(trigger.label) is int
    work = eh.local.sgd(MODEL, 0.1, epochs=1)
    method = eh.privacy.dp_ftrl(work, cohort=number(2), clients=number(8), clip=1.0, noise_multiplier=1.0)
    assert method.name
    assert eh.models.mlp(3, hidden=[number(4)], classes=2).name == "mlp(features=3, classes=2, hidden=(4,))"
    assert eh.testing.toy_data().min_examples(number(2)).num_clients


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda wrong: audited(canaries=wrong(20.0)), r"canaries=20.0: give a whole number"),
        (lambda wrong: audited(length=wrong("a")), r"length='a': give the length of a canary"),
        (
            lambda wrong: eh.privacy.discrete_gaussian(jax.random.key(0), sigma=1.0, shape=wrong(3)),
            r"shape=\)=3: give a value such as shape=\(8,\)",
        ),
        (lambda wrong: eh.secure.plan(range(4), order=wrong(3)), r"plan\(order=\)=3: .* range\(4\)"),
        (
            lambda wrong: eh.data.from_arrays(np.zeros((6, 2)), np.zeros(6), client=wrong(3)),
            "client none: give",
        ),
        (lambda wrong: eh.data.encode_counts(wrong(None)), "words=None: give a value such as"),
        (lambda wrong: eh.data.load("digits", na=wrong(None)), r"na=None: give a value such as \['\?'"),
        (
            lambda wrong: eh.centralized.learn_to_reweight(wrong("12"), np.ones(2)),
            "x of type <U2: give an array",
        ),
    ],
)
def test_values_of_other_types_are_refused_in_a_sentence(call: Callable[..., Any], sentence: str) -> None:
    with pytest.raises(EvenhandError, match=sentence):
        call(lambda value: cast(Any, value))


def audited(*, length: float = 1.0, canaries: int = 20) -> None:
    rule = eh.privacy.noisy_mean(1.0, noise_multiplier=2.0, rate=1.0)
    eh.privacy.audit_mean(rule, rounds=1, length=length, delta=1e-5, canaries=canaries)


def test_a_run_is_evaluated_every_so_many_rounds() -> None:
    method = A.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1))
    with pytest.raises(eh.EvenhandError, match=r"^eval_every=None: give a whole number"):
        eh.simulate(method, eh.testing.toy_data(), rounds=1, eval_every=None)  # pyright: ignore[reportArgumentType]


def test_a_method_for_some_classes_has_a_whole_number_of_them() -> None:
    method = A.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1))._replace(classes="3")  # pyright: ignore[reportArgumentType]
    with pytest.raises(eh.EvenhandError, match=r"Algorithm\(classes=\)='3': give a whole number"):
        eh.simulate(method, eh.testing.toy_data(), rounds=1)


def test_an_attack_given_as_text_is_refused_with_the_function_that_makes_it():
    method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
    text: Any = "sign_flip(0.2)"
    with pytest.raises(EvenhandError, match=r"give a value such as eh\.attacks\.sign_flip\(0\.2\)"):
        eh.simulate(method, eh.testing.toy_data(), rounds=1, attack=text)
