"""Every method of the command line is the library's method, with the hyper-parameters that were given."""

from __future__ import annotations

import functools
import inspect
import io
import itertools
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand import aggregators, algorithms, expressions, personalization, risks, server_opt
from evenhand.aggregators import reduce_uploads
from evenhand.cli import main
from evenhand.cli._arguments import options_of
from evenhand.cli._main import parse
from evenhand.cli._methods import COMPOSED, METHODS, _argument_entries, plain
from evenhand.cli._options import LocalOptions
from evenhand.cli._run import RunCommand
from evenhand.expressions import KINDS, factories
from evenhand.expressions.kinds import BESIDE, alternatives, kind_for, parameters
from evenhand.expressions.kinds import example as simplest
from evenhand.local import Work
from evenhand.rounds import weighed
from evenhand.types import Algorithm, ClientData, Cohort, Key, Model, Params, Phase, Report, Upload

MODEL = eh.models.linear_regression(features=2)
# The loss differs between the two labels, so that tilts over classes and over examples show.
LABELS = eh.models.from_functions(
    init=lambda key: jnp.zeros(2),
    apply=lambda params, x: x @ params,
    losses=lambda outputs, y: jnp.square(outputs - y.astype(jnp.float32)),
)
EXAMPLES = ClientData(
    jnp.array([[1.0, 2.0], [3.0, 4.0], [0.5, -1.0], [-1.0, 0.0]]),
    jnp.array([1.0, 5.0, 5.0, 1.0]),
    jnp.int32(0),
    jnp.int32(4),
    jnp.float32(1.0),
    4,
)


def two_steps(
    params: Params, data: ClientData, key: Key, correction: optax.GradientTransformation
) -> tuple[Params, optax.OptState]:
    """Two steps of size 1 along a constant gradient, so that a correction shows."""
    state = correction.init(params)
    anchor = params
    for _ in range(2):
        gradient = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.3), anchor)
        update, state = correction.update(gradient, state, params)
        params = jax.tree.map(jnp.subtract, params, update)
    return params, state


work = Work(MODEL, two_steps)


SOFTMAX = eh.models.softmax_regression(features=2, classes=6)
STEPPED = SOFTMAX._replace(losses=lambda outputs, y: SOFTMAX.losses(outputs, y.astype(jnp.int32)))
STEPPING = re.compile(
    r"apfl|ditto .*implicit|ewc|fedalt|fedbabu|fedsim|finetune .*personal|mapper|per_fedavg|pfedme|skl"
)
"""Methods that take their steps themselves, with the parts of mini-batch descent; the solver above has none."""
steps = LocalOptions(lr=0.01, batch_size=2).work(STEPPED)


class Local(LocalOptions):
    """Options whose work is the solver above, except for a method that changes the loss of the work, or its steps."""

    def work(self, model: Model) -> Work:
        return Work(model, two_steps, step_size=self.lr) if model is MODEL else super().work(model)


def _client(phase: Phase) -> Callable[[Any, Any], Any]:
    @jax.jit
    def client(message: Any, state: Any) -> Any:
        return phase.report(message, state, EXAMPLES), phase.work(message, state, EXAMPLES, jax.random.key(1))

    return client


def two_rounds(algorithm: Algorithm) -> np.ndarray:
    """The global and the personal parameters after two rounds with three clients, whose uploads differ."""
    params = algorithm.model.init(jax.random.key(0))
    state, client = algorithm.init(params, 3), algorithm.init_client(params)
    if algorithm.pooled is not None:
        client = algorithm.pooled(params, EXAMPLES.x, EXAMPLES.y)
    memories: dict[int, object] = {}
    clients = [_client(phase) for phase in algorithm.phases]
    for loss in (1.0, 2.0):
        if algorithm.observe is not None:
            state = algorithm.observe(state, jnp.float32(loss))
        for index, phase in enumerate(algorithm.phases):
            message = phase.broadcast(state, jnp.int32(0))
            reported, (delta, client) = clients[index](message, client)
            deltas = jax.tree.map(lambda d: jnp.stack([d, 0.5 * d + 0.1, 0.2 - d]), delta)
            losses = (
                reported.loss * jnp.array([1.0, 0.5, 0.1]) if phase.aggregator.needs_loss else jnp.ones(3)
            )
            memory = memories.get(index, phase.aggregator.init(delta, 3))
            report = Report(jnp.full(3, reported.weight), losses)
            cohort = Cohort.of(jnp.arange(3))
            weights, memory, _ = weighed(phase.aggregator, report, cohort, memory)
            uploads = Upload(deltas, weights, losses)
            keys = jax.random.key(3), jax.random.split(jax.random.key(4), 3)
            direction, memories[index] = reduce_uploads(
                phase.aggregator, uploads, cohort.present, memory, *keys
            )
            state, _ = phase.server(state, direction, jnp.int32(3), jax.random.key(2))
    served = algorithm.personal_params
    personal = () if served is None else served(state, client)
    params = algorithm.global_params(state)
    adapt = algorithm.adapt
    adapted = () if adapt is None else adapt(params, EXAMPLES, jax.random.key(5))
    leaves = jax.tree.leaves((params, personal, adapted))
    return np.concatenate([np.ravel(leaf) for leaf in leaves])


def _fedtilt(
    lr: float = 0.1, steps: int | None = None, batch_size: int | None = 10, **more: float
) -> Algorithm:
    given: dict[str, Any] = {"tilt_class": 1.0, "tilt_sample": 0.0, **more}
    epochs = 1 if steps is None else None
    work = eh.local.sgd(LABELS, lr, epochs=epochs, steps=steps, batch_size=batch_size)
    return algorithms.fedtilt(work, classes=6, **given)


GIVEN = {
    "fedavg --server-opt sgd(0.7)": algorithms.fedavg(work, server_opt=optax.sgd(0.7)),
    "fedavg --server-opt fedadam(0.2,b1=0.5,b2=0.6,tau=0.3)": algorithms.fedavg(
        work, server_opt=server_opt.fedadam(0.2, b1=0.5, b2=0.6, tau=0.3)
    ),
    "fedavg --aggregator risk_weighted(superquantile(0.5))": algorithms.fedavg(
        work, aggregator=aggregators.risk_weighted(risks.superquantile(0.5))
    ),
    "averaged --method fedprox(mu=1) --growth 1.5 --no-initial": algorithms.averaged(
        algorithms.fedprox(work, mu=1.0), growth=1.5, initial=False
    ),
    "fedprox --mu 0.4": algorithms.fedprox(work, mu=0.4),
    "fedprox --mu 0 --server-opt fedavgm(0.2,momentum=0.5)": algorithms.fedprox(
        work, mu=0.0, server_opt=server_opt.fedavgm(0.2, momentum=0.5)
    ),
    "fedprox-adaptive --mu0 0.3": algorithms.fedprox_adaptive(work, mu0=0.3),
    "fedprox_adaptive --mu0 0.5": algorithms.fedprox_adaptive(work, mu0=0.5),
    "feddane --mu 0.4": algorithms.feddane(work, mu=0.4),
    "scaffold --server-opt fedyogi(0.2)": algorithms.scaffold(work, server_opt=server_opt.fedyogi(0.2)),
    "qfedavg --q 0.5": algorithms.qfedavg(work, q=0.5, lipschitz=10.0),
    "qfedavg --q 1 --lr 0.2": algorithms.qfedavg(work, q=1.0, lipschitz=5.0),
    "qfedavg --q 1 --lipschitz 3": algorithms.qfedavg(work, q=1.0, lipschitz=3.0),
    "qfedsgd --q 0.5 --step-size 0.2": algorithms.qfedsgd(MODEL, q=0.5, step_size=0.2),
    "afl --gamma-lambda 0.3 --gamma-w 0.2": algorithms.afl(MODEL, gamma_w=0.2, gamma_lambda=0.3),
    "term --t 0.5": algorithms.term(work, t=0.5),
    "term --t -2": algorithms.term(work, t=-2.0),
    "term --t 1 --running 0.5": algorithms.term(work, t=1.0, running=0.5),
    "delta-fl --theta 0.8": algorithms.delta_fl(work, theta=0.8),
    "delta-fl --theta 0.4 --nu 0.5": algorithms.delta_fl(work, theta=0.4, nu=0.5),
    "delta-fl --theta 0.3 --filtered": algorithms.delta_fl(work, theta=0.3, filtered=True),
    "delta-fl --theta 0.34 --filtered --no-strict": algorithms.delta_fl(
        work, theta=0.34, filtered=True, strict=False
    ),
    "fedmgda(epsilon=0.5)": algorithms.fedmgda(work, epsilon=0.5),  # --epsilon is a budget of privacy
    "fedmgda --server-opt sgd(0.5)": algorithms.fedmgda(work, epsilon=0.1, server_opt=optax.sgd(0.5)),
    "qmaml --q 2 --step-size 0.2 --finetune-steps 2": algorithms.qmaml(
        MODEL, q=2.0, step_size=0.2, finetune_steps=2
    ),
    "fedtilt --tilt-class 2 --tilt-sample -1 --lr 0.2 --classes 6": _fedtilt(
        tilt_class=2.0, tilt_sample=-1.0, lr=0.2
    ),
    "fedtilt --tilt-class 1 --tilt-server 0.5 --classes 6": _fedtilt(tilt_server=0.5),
    "fedtilt --tilt-class 1 --prox-mu 2 --steps 3 --batch-size all --classes 6": _fedtilt(
        prox_mu=2.0, steps=3, batch_size=None
    ),
    "fedtilt --tilt-class 1 --prox-mu inf --classes 6": _fedtilt(prox_mu=float("inf")),
    "ditto --method fedavg() --lam 0.5": personalization.ditto(algorithms.fedavg(work), work, lam=0.5),
    "ditto --method scaffold()": personalization.ditto(algorithms.scaffold(work), work),
    "ditto --method scaffold() --lam inf": personalization.ditto(
        algorithms.scaffold(work), work, lam=float("inf")
    ),
    "ditto --method fedavg() --lam 0.5 --same-batches": personalization.ditto(
        algorithms.fedavg(work), work, lam=0.5, same_batches=True
    ),
    "ditto --method fedavg() --lam 2 --implicit --lr 0.01 --batch-size 2": personalization.ditto(
        algorithms.fedavg(steps), steps, lam=2.0, implicit=True
    ),
    "dynamic-ditto --method fedavg() --per-run --few 0 --held-out 0.5": personalization.dynamic_ditto(
        algorithms.fedavg(work), work, few=0, held_out=0.5, per_run=True
    ),
    "dynamic-ditto --method fedavg() --per-run --few 0 --held-out 0.5 --strong-attack": personalization.dynamic_ditto(
        algorithms.fedavg(work), work, few=0, held_out=0.5, strong_attack=True, per_run=True
    ),
    "dynamic-ditto --method fedavg() --per-run --few-lam 0.7": personalization.dynamic_ditto(
        algorithms.fedavg(work), work, few_lam=0.7, per_run=True
    ),
    "finetune --method fedavg()": personalization.finetune(algorithms.fedavg(work), work),
    "finetune --method fedavg() --lam 0.5": personalization.finetune(algorithms.fedavg(work), work, lam=0.5),
    "finetune --method fedavg() --personal bias --lr 0.01 --batch-size 2": personalization.finetune(
        algorithms.fedavg(steps), steps, personal="bias"
    ),
    "ewc --method fedavg() --lam 0.5 --lr 0.01 --batch-size 2": personalization.ewc(
        algorithms.fedavg(steps), steps, lam=0.5
    ),
    "ewc --method fedavg() --lam 0.5 --batches 1 --lr 0.01 --batch-size 2": personalization.ewc(
        algorithms.fedavg(steps), steps, lam=0.5, batches=1
    ),
    "skl --method fedavg() --lam 0.5 --lr 0.01 --batch-size 2": personalization.skl(
        algorithms.fedavg(steps), steps, lam=0.5
    ),
    "fedalt --personal bias --lr 0.01 --batch-size 2": personalization.fedalt(steps, personal="bias"),
    "fedalt --personal bias --ridge 0.5 --lr 0.01 --batch-size 2": personalization.fedalt(
        steps, personal="bias", ridge=0.5
    ),
    "fedalt --personal bias --no-stateful --lr 0.01 --batch-size 2": personalization.fedalt(
        steps, personal="bias", stateful=False
    ),
    "fedsim --personal bias --lr 0.01 --batch-size 2": personalization.fedsim(steps, personal="bias"),
    "fedsim --personal bias --ridge 0.5 --lr 0.01 --batch-size 2": personalization.fedsim(
        steps, personal="bias", ridge=0.5
    ),
    "fedsim --personal bias --no-stateful --lr 0.01 --batch-size 2": personalization.fedsim(
        steps, personal="bias", stateful=False
    ),
    "fedalt --personal bias --personal-work sgd(0.02,steps=3) --lr 0.01 --batch-size 2": personalization.fedalt(
        steps, personal="bias", personal_work=eh.local.sgd(STEPPED, 0.02, steps=3)
    ),
    "fedbabu --head bias --lr 0.01 --batch-size 2": personalization.fedbabu(steps, head="bias"),
    "apfl --lr 0.01 --batch-size 2": personalization.apfl(steps),
    "apfl(alpha=0.3) --lr 0.01 --batch-size 2": personalization.apfl(steps, alpha=0.3),
    "apfl(alpha=0.3,alpha_step=0.05) --lr 0.01 --batch-size 2": personalization.apfl(
        steps, alpha=0.3, alpha_step=0.05
    ),
    "l2gd --lam 0.5 --p 0.3 --step-size 0.1": personalization.l2gd(MODEL, lam=0.5, p=0.3, step_size=0.1),
    "l2gd --lam 0.5 --p 0.6 --step-size 0.05": personalization.l2gd(MODEL, lam=0.5, p=0.6, step_size=0.05),
    "l2sgd --lam 0.5": personalization.l2sgd(work, lam=0.5),
    "l2sgd --lam 0.5 --no-exact": personalization.l2sgd(work, lam=0.5, exact=False),
    "local-only": personalization.local_only(work),
    "mapper --lr 0.01 --batch-size 2": personalization.mapper(steps),
    "per_fedavg(alpha=0.02) --lr 0.01 --batch-size 2": personalization.per_fedavg(steps, alpha=0.02),
    "per_fedavg(alpha=0.02,first_order=True) --lr 0.01 --batch-size 2": personalization.per_fedavg(
        steps, alpha=0.02, first_order=True
    ),
    "per_fedavg(alpha=0.02,delta=0.5) --lr 0.01 --batch-size 2": personalization.per_fedavg(
        steps, alpha=0.02, delta=0.5
    ),
    "pfedme --lam 2 --inner-step 0.01 --lr 0.01 --batch-size 2": personalization.pfedme(
        steps, lam=2.0, inner_step=0.01
    ),
    "pfedme --lam 2 --inner-step 0.01 --inner-steps 2 --lr 0.01 --batch-size 2": personalization.pfedme(
        steps, lam=2.0, inner_step=0.01, inner_steps=2
    ),
}
"""Words -> what they must make."""

FACTORIES = factories(Algorithm)
ONLY_IN_EXPRESSIONS = {
    "fedmgda": {"epsilon"},
    "apfl": {"alpha"},  # --alpha is Dirichlet's
    "per-fedavg": {"alpha", "delta"},
    "mapper": {"gammas"},
    "dynamic-ditto": {"lams"},
}
PAIRS: list[tuple[str, str]] = list(itertools.pairwise(GIVEN))
"""Each must differ from the next, so that no option is ignored."""

OTHERS = {name for name in METHODS if name != COMPOSED} - {
    words.split()[0].partition("(")[0].replace("_", "-") for words in GIVEN
}
"""Methods that are newer than the table above."""


@functools.cache
def expected(words: str) -> np.ndarray:
    return two_rounds(GIVEN[words])


def made(words: str) -> Algorithm:
    """The method that ``evenhand run`` makes of these words."""
    command = parse(["run", *words.split()])
    assert isinstance(command, RunCommand)
    model = LABELS if words.startswith("fedtilt") else STEPPED if STEPPING.match(words) else MODEL
    return expressions.parse(
        command.method, Algorithm, model, lambda: Local(**vars(command.local)).work(model)
    )


@pytest.mark.parametrize("words", GIVEN)
def test_hyper_parameters_arrive(words: str) -> None:
    np.testing.assert_array_equal(two_rounds(made(words)), expected(words))


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_no_option_is_ignored(one: str, other: str) -> None:
    assert not np.array_equal(expected(one), expected(other))


def needed(factory: Callable[..., Any]) -> dict[str, tuple[str, Any]]:
    """A value for each argument that a factory needs, as text and in Python."""
    hints, found = get_type_hints(factory), dict[str, tuple[str, Any]]()
    for argument, parameter in parameters(factory).items():
        if parameter.default is parameter.empty:
            kinds = list(alternatives(hints[argument]))
            room = kind_for(kinds)
            if room is None or float in kinds:
                words = [get_args(kind)[0] for kind in kinds if get_origin(kind) is Literal]
                values = {float: 0.5, int: 2, bool: True, str: "text"}
                value = [*words, *(value for kind, value in values.items() if kind in kinds)][0]
                found[argument] = repr(value), value
            else:
                name = simplest(room).partition("(")[0]
                part = factories(room)[name]
                found[argument] = f"{name}()", part(work) if Algorithm in kinds else part()
    return found


TRIED_ELSEWHERE = {
    "dp-fedadam": "optax's Adam mixes types: tests/contracts",
    "alone": "it is for one client: tests/unit/privacy/test_private_work.py",
    "dp-ftrl": "it must be told the number of clients: tests/unit/privacy/test_dp_ftrl.py",
    "private": "it needs a noisy method: tests/cli/test_cli_privacy.py",
    "dp-fed2": "it takes pairs of numbers: tests/unit/privacy/test_dp_fed2.py, tests/contracts",
    "fedprox-measured": "its work needs a step size: tests/identities/test_identities_measured_mu.py",
    "adadps-fl": "its scales come from a file: tests/cli/test_cli_beside.py",
    "mocha": "it keeps a number for each example, and needs classes: tests/unit/test_mocha_method.py",
    "fedbn": "its model must measure statistics: tests/unit/models/test_running_statistics.py, tests/contracts",
    "delta-fl-levels": "its reports have an entry for each level: tests/identities/test_identities_side_by_side.py",
}
"""Methods that do not run with any value of the right type, and where they are tested."""


@pytest.mark.parametrize(
    "name", [*sorted(set(OTHERS) - set(TRIED_ELSEWHERE)), "term", "averaged", "afl"]
)  # these try the test itself
def test_methods_that_no_table_names_get_the_arguments_that_they_need(name: str) -> None:
    """A new method is checked from the day that it is exported, as an expression and by its name and options."""
    factory = FACTORIES[name.replace("-", "_")]
    arguments = needed(factory)
    hints = get_type_hints(factory)
    values = {argument: value for argument, (_, value) in arguments.items()}
    values |= {each: {Work: work, Model: MODEL}[hints[each]] for each in {"work", "model"} & set(hints)}
    made_here = two_rounds(factory(**values))
    call = f"{factory.__name__}({','.join(f'{each}={text}' for each, (text, _) in arguments.items())})"
    np.testing.assert_array_equal(two_rounds(made(call)), made_here)
    if not set(arguments) & set(METHODS[name].others):
        options = [
            f"--{each.replace('_', '-')} {text.strip(chr(39))}" for each, (text, _) in arguments.items()
        ]
        np.testing.assert_array_equal(two_rounds(made(" ".join([name, *options]))), made_here)


def test_every_method_has_an_option_for_each_argument_that_text_can_give() -> None:
    """Those of the package do; see test_cli_new_method.py for arguments that have none."""
    for name, method in METHODS.items():
        if name != COMPOSED:
            known = inspect.signature(FACTORIES[name.replace("-", "_")]).parameters
            options = set(method.types)
            assert options | set(method.others) == set(known) - {"work", "model", *BESIDE}
            assert set(method.others) == ONLY_IN_EXPRESSIONS.get(name, set()) or name in OTHERS
    only_in_python = {name.replace("_", "-") for name in algorithms.__all__} - set(METHODS)
    assert "side-by-side" in only_in_python
    for name in only_in_python:
        with pytest.raises(eh.EvenhandError, match="call it from Python"):
            parse(["run", name])


def test_options_of_methods_are_not_options_of_run() -> None:
    """Otherwise one would hide the other."""
    for method in METHODS.values():
        assert not set(method.options) & set(options_of(RunCommand)), method.name


@functools.cache
def help_of(method: str) -> str:
    shown = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(shown):
        patch.setenv("COLUMNS", "120")
        with pytest.raises(SystemExit):
            main(["run", method, "--help"])
    return " ".join(shown.getvalue().replace("│", " ").split())


def test_help_says_what_the_docstring_says() -> None:
    for method in METHODS:
        shown = help_of(method)
        assert not re.search(r":\w+:`|``|\\[a-z]|frac(?!tion)|[\^_]\w\+", shown), method
        # What only Python understands is not in it.
        assert not re.search(r"\b(None|False|True):|\boptax\.|{None", shown), method
    shown = help_of("qfedavg")
    assert "--q FLOAT" in shown and "0 is FedAvg, larger is fairer" in shown and "(required)" in shown
    assert "for every other q (default: one over the step size of the work, which must be plain" in shown
    # "as in ``fedavg``" is looked up.
    assert "aggregate stragglers' partial work" in shown and "as in fedavg" not in shown
    assert "sgd(1.0) is plain averaging" in shown
    assert "w^(t+1) = w^t - η 1/K Σ_k F_k^q ∇ F_k" in help_of("qfedsgd")


def test_no_command_of_latex_is_left_in_lists_and_help() -> None:
    for factory in (made for room in KINDS for made in factories(room).values()):
        document = inspect.getdoc(factory) or ""
        texts = [document.partition("\n\n")[0], *_argument_entries(factory).values()]
        for formula in (formula for text in texts for formula in re.findall(r":math:`([^`]*)`", text)):
            words = set(re.findall(r"[A-Za-z]+", plain(f":math:`{formula}`")))
            assert not words & set(re.findall(r"\\([A-Za-z]+)", formula)), (factory, formula)
    assert plain(r":math:`\lceil N / m \rceil`, :math:`\bar v`, :math:`\mathcal N(0, \sigma^2 I)`") == (
        "⌈ N / m ⌉, v̄, N(0, σ² I)"
    )


def test_calls_in_the_help_are_calls_that_an_option_accepts() -> None:
    """As hints for what to type: ``sgd(1.0)``, not ``optax.sgd(1.0)``."""
    for method in METHODS:
        for name in re.findall(r"(?<!\w)([a-z][\w.]+)\(", help_of(method)):
            assert any(name in factories(room) for room in KINDS), (method, name)


def test_the_options_of_the_method_come_first_in_its_help() -> None:
    shown = help_of("fedprox")
    assert shown.index("--mu") < shown.index("--no-keep-partial") < shown.index("--rounds")
    assert shown.index("--rounds") < shown.index("--data ") < shown.index("--model ") < shown.index("--lr ")


def test_options_of_local_work_that_a_method_does_without_have_no_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "afl", "--gamma-w", "0.1", "--gamma-lambda", "0.1", "--epochs", "7", "--lr", "0.3"]
    words += ["--clients", "4", "--rounds", "1", "--out", str(tmp_path / "a")]
    assert main(words) == 0
    assert "--lr 0.3 and --epochs 7: no effect, since" in " ".join(capsys.readouterr().err.split())
