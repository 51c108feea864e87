"""Methods as expressions: the command line composes what Python composes, and evaluates nothing."""

from __future__ import annotations

import inspect
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand.cli import main
from evenhand.expressions import KINDS, ExpressionError, Kind, factories, parse, signature
from evenhand.expressions.kinds import alternatives, kind_for, parameters
from evenhand.local import Work
from evenhand.models.losses import focal
from evenhand.types import Algorithm, Model

pytestmark = pytest.mark.usefixtures("shared_programs")

MODEL, DATA = eh.testing.toy_model(), eh.testing.toy_data()
WORK = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4)
STEPS = eh.local.sgd(MODEL, 0.3, steps=2)
_ROOM = {room.noun: room for room in KINDS}
_WRAPPERS = {"averaged", "ditto", "dynamic_ditto", "ewc", "finetune", "skl"}
_PERSONAL = tuple(eh.personalization.__all__)
_PARTIAL = (
    "fedalt",
    "fedsim",
    "fedbabu",
)  # of whose models clients receive a part, which ditto() around them cannot use


def read(text: str) -> Algorithm:
    return parse(text, Algorithm, MODEL, lambda: WORK)


# --- random compositions -----------------------------------------------------------------------------------------

# Each value is legal together with every other in this table.
_NUMBERS: dict[str, tuple[str, ...]] = {
    "theta": ("0.3", "0.5", "1.0"),
    "mu0": ("0.0", "0.5"),
    "epsilon": ("0.1", "1"),
    "growth": ("1.0", "1.25"),
    "rate": ("0.5", "1.0"),
    "running": ("0.5", "None"),
    "classes": ("3", "None"),
    "support": ("0.5",),
    "b1": ("0.0", "0.9"),
    "b2": ("0.99",),
    "momentum": ("0.0", "0.9"),
    "t": ("1.0", "-2", "0.5"),
    "k": ("1", "2"),
    "tilt": ("0.5", "-1"),
    "steps": ("1", "2"),
    "server_steps": ("1", "2"),
    "finetune_steps": ("0", "1"),
    "floor": ("0.0", "-1.0"),
    "fraction": ("0.1", "0.3"),
    "ratio": ("1", "2.5"),
    "bits": ("64",),
    "largest": ("1000.0",),
    "cohort": ("100",),
    "personal": ("'b'", "'w'"),
    "head": ("'b'", "'w'"),
    "p": ("0.2", "0.5"),
    "alpha": ("0.0", "0.1"),
    "inner_step": ("0.05",),
    "inner_steps": ("1", "2"),
    "few": ("0", "5"),
    "held_out": ("0.1", "0.3"),
}
_NEVER = {"reference", "filtered", "strict", "nu", "tied"}
_NEVER |= {"step_size", "lipschitz", "keep_partial", "replace"}
"""Arguments that exclude others, or that a method with a state at each client cannot take."""
_SUMS = {"mean", "geometric_median", "centered_clipping"}
_AFTER = {"mean", "geometric_median", "krum", "trimmed_mean", "centered_clipping", "bucketing", "clip"}
"""Aggregators that may come after one that changes the uploads."""


_ELSEWHERE = {"alone", "cyclic", "fit", "fixed", "poisson", "stratified", *eh.privacy.__all__}
_ELSEWHERE |= {"mocha", "delta_fl_levels", "fedprox_measured", "fedbn", "quantized", "top_k"}
"""What few others may be around or inside: test_cli_privacy.py, test_cli_fit.py and test_cli_levels.py compose it."""


def composition(room: Kind, draw: random.Random, depth: int = 0, *, after: str = "") -> str:
    """A legal call, with some of its optional arguments; ``after``: which function it is the ``then`` of."""
    known = {name: factory for name, factory in factories(room).items() if depth < 2 or name not in _WRAPPERS}
    known = {name: factory for name, factory in known.items() if name not in _ELSEWHERE}
    known.pop("fedprox_adaptive" if depth else "", None)  # it cannot be averaged
    known.pop("kth_smallest", None)  # its k may not exceed the size of the cohort
    if after == "secure":
        known = {name: known[name] for name in _SUMS}
    elif after:
        known = {name: known[name] for name in _AFTER if depth < 4 or "then" not in parameters(known[name])}
    elif room.noun == "aggregator" and draw.random() < 0.6:  # so that risks are drawn often enough
        known = {"risk_weighted": known["risk_weighted"]}
    name, factory = draw.choice(sorted(known.items()))
    either = draw.choice(("q", "aggregator"))  # of which qmaml takes one, and fedtilt the latter or a tilt
    hints, arguments = get_type_hints(factory), list[str]()
    for parameter in inspect.signature(factory).parameters.values():
        must = parameter.default is parameter.empty
        if name == "qmaml" and parameter.name in ("q", "aggregator"):
            if parameter.name != either:
                continue
            must = True
        tilts = ("tilt_server", "server_steps") if either == "aggregator" else ("aggregator",)
        if name == "fedtilt" and parameter.name in tilts:
            continue
        if {Model, Work} & set(alternatives(hints[parameter.name])):
            continue
        if must or (parameter.name not in _NEVER and draw.random() < 0.5):
            value = argument(parameter.name, hints[parameter.name], draw, depth, name)
            if value is not None:
                named = parameter.kind is parameter.KEYWORD_ONLY or (not must and draw.random() < 0.5)
                named = named or any("=" in one for one in arguments)
                arguments.append(f"{parameter.name}={value}" if named else value)
    return f"{name}({', '.join(arguments)})"


def argument(name: str, hint: Any, draw: random.Random, depth: int, of: str) -> str | None:
    """A value for an argument of ``of``; None for local work, which is filled in, and for what only Python can give."""
    kinds = list(alternatives(hint))
    room = kind_for(kinds)
    if room is not None:
        return (
            None
            if room.noun == "local work"
            else composition(room, draw, depth + 1, after=of if name == "then" else "")
        )
    if name in _NUMBERS:
        return draw.choice(_NUMBERS[name])
    words = [repr(word) for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    values = {bool: ["True", "False"], float: ["0.1", "0.5", "1"], int: ["1", "2"], str: ["'text'"]}
    known = [values[kind] for kind in kinds if kind in values] + ([words] if words else [])
    return draw.choice(known[0]) if known else None


_COVERED = {
    name
    for what in ("method", "aggregator", "risk", "server optimiser", "sampling")
    for name in factories(_ROOM[what])
    if name != "kth_smallest" and name not in _ELSEWHERE
}


def called(texts: list[str]) -> set[str]:
    return {name for text in texts for name in re.findall(r"(\w+)\(", text)}


def _legal() -> list[str]:
    """Two hundred compositions, and some more for the factories that those leave out."""
    draw = random.Random(11)
    found: list[str] = []
    left = set(_COVERED)
    for _ in range(5000):
        text = composition(_ROOM["method"], draw)
        if len(found) >= 200 and not called([text]) & left:
            if not left:
                break
            continue
        if "ditto(" in text and any(f"{name}(" in text for name in _PARTIAL):  # which is refused
            continue
        if not text.startswith(("qfedsgd(", "qfedavg(")) or "lipschitz" in text or "q=" in text:
            text = text.replace("qfedsgd(", "qfedsgd(lipschitz=10.0, ")
            for theta in ("1.0", "theta=1.0"):  # which would leave all clients out
                text = text.replace(f"inverse_superquantile({theta}", "inverse_superquantile(0.5")
            # They keep a state at each client, so that none may be drawn twice.
            if any(f"{name}(" in text for name in ("scaffold", *_PERSONAL)):
                text = text.replace("proportional(", "proportional(replace=False, ")
            found.append(text)
            left -= called([text])
    return found


LEGAL = _legal()


def test_two_hundred_compositions_are_read() -> None:
    methods = [read(text) for text in LEGAL]
    assert len({method.name for method in methods}) > 60
    assert not _COVERED - called(LEGAL)


@pytest.mark.filterwarnings("ignore:Training diverged")  # as it may with step sizes drawn at random
@pytest.mark.filterwarnings(r"ignore:.* needs \d+ uploads")  # as it may with numbers drawn at random
@pytest.mark.parametrize("first", range(0, len(LEGAL), 20))
def test_compositions_train(first: int, thorough: bool) -> None:
    """Each compiles another program, so that all of them take minutes: one in twenty, or all with ``--thorough``."""
    for text in LEGAL[first : first + (20 if thorough else 1)]:
        run = eh.simulate(read(text), DATA, rounds=2, cohort=4, eval_every=2)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.params)), text


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("fedprox(mu=0.3)", lambda: eh.algorithms.fedprox(WORK, mu=0.3)),
        (
            "fedavg(sgd(0.3, steps=2), server_opt=fedadam(0.1, b1=0.5))",
            lambda: eh.algorithms.fedavg(
                eh.local.sgd(MODEL, 0.3, steps=2), server_opt=eh.server_opt.fedadam(0.1, b1=0.5)
            ),
        ),
        (
            "averaged(fedprox(mu=1, aggregator=risk_weighted(superquantile(0.5))), growth=1.5, initial=False)",
            lambda: eh.algorithms.averaged(
                eh.algorithms.fedprox(
                    WORK, mu=1.0, aggregator=eh.aggregators.risk_weighted(eh.risks.superquantile(0.5))
                ),
                growth=1.5,
                initial=False,
            ),
        ),
        (
            "fedtilt(personal=sgd(0.5, epochs=1), tilt_sample=-1, prox_mu=0.5)",
            lambda: eh.algorithms.fedtilt(
                WORK, personal=eh.local.sgd(MODEL, 0.5, epochs=1), tilt_sample=-1.0, prox_mu=0.5
            ),
        ),
        ("fedprox(work=sgd(0.3, steps=2), mu=1)", lambda: eh.algorithms.fedprox(STEPS, mu=1.0)),
        (
            "averaged(method=fedprox(mu=1))",
            lambda: eh.algorithms.averaged(eh.algorithms.fedprox(WORK, mu=1.0)),
        ),
        ("afl(gamma_w=.1, gamma_lambda=.2)", lambda: eh.algorithms.afl(MODEL, gamma_w=0.1, gamma_lambda=0.2)),
    ],
)
def test_an_expression_is_what_python_makes_of_it(text: str, made: Callable[[], Algorithm]) -> None:
    one, other = (eh.simulate(each, DATA, rounds=2, cohort=4) for each in (read(text), made()))
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
        assert np.array_equal(a, b)


# --- what is wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fedporx(mu=1)", "column 1: there is no method 'fedporx' (perhaps you meant fedprox)"),
        # Names that papers have, found in the first lines of docstrings.
        ("q_ffl(q=1)", "there is no method 'q_ffl' (perhaps you meant qfedavg)"),
        ("simplicial_fl()", "(perhaps you meant delta_fl)"),
        ("rfa()", "there is no method 'rfa' (perhaps you meant geometric_median, an aggregator)"),
        ("dpsgd()", "(perhaps you meant dp_sgd, local work)"),
        ("fedavg(aggregator=risk_weighted(cvar(0.1)))", "no risk 'cvar' (perhaps you meant superquantile)"),
        ("model()", "there is no method 'model' among"),
        ("fedprox()", "column 1: fedprox needs mu="),
        ("fedprox(mu='a')", "column 12: mu takes a number"),
        ("fedprox(mu=True)", "column 12: mu takes a number"),
        ("fedprox(0.1)", "column 9: fedprox takes this by name only: fedprox(mu="),
        (
            "fedprox(mu=0.1, aggregtor=mean())",
            "column 17: fedprox has no 'aggregtor' (perhaps you meant aggregator)",
        ),
        ("fedavg(aggregator=mean)", "column 19: mean is a function: call it, mean()"),
        (
            "fedavg(aggregator=superquantile(0.5))",
            "column 19: there is no aggregator 'superquantile': superquantile is a risk, and an aggregator is one of",
        ),
        ("fedavg(aggregator=0.5)", "aggregator takes an aggregator such as mean()"),
        ("fedavg(keep_partial=1)", "keep_partial takes True or False"),
        ("fedavg(sgd(0.1, epochs=1.5))", "epochs takes a whole number or None"),
        ("fedprox(mu=0.1", "is not an expression"),
        ("averaged()", "averaged needs method="),
        ("fedprox(mu=-1)", "fedprox(mu=-1.0): the proximal weight must be"),
        ("fedprox(mu=0.1, **more)", "fedprox has no '**'"),
        ("averaged(*[1])", "column 10"),
        ("averaged(fedprox(mu=1), method=fedprox(mu=1))", "averaged gets method twice"),
        ("fedprox(mu=-'a')", "mu takes a number"),
        ("fedprox(mu=1" + "0" * 400 + ")", "mu takes a number"),
        ("ä(mu=1)", "column 1: there is no method 'ä'"),
        ("averaged(ä())", "column 10: there is no method 'ä'"),
        ("x" * 20_000, "20,000 characters"),
        ("-" * 9000 + "1", "an expression"),
        ("(" * 5000, "is not an expression"),
        ("", "is not an expression"),
        ("fedavg() if x else fedavg()", "column 1: a method belongs here"),
        (
            "fedprox(0.1), fedprox(1)",
            "one method belongs here, and these are 2: several values of an argument go in braces, and "
            "`evenhand study` tries each of them, as in fedprox({0.1, 1})",
        ),
        (
            "fedavg(aggregator=(krum(1), mean()))",
            "one aggregator belongs here, and these are 2: several values",
        ),
        (
            "side_by_side({})",
            "side_by_side needs methods, which an expression cannot give: call it from Python.",
        ),
        (
            "fedex_lora()",
            "fedex_lora needs a model of eh.models.lora, which an expression cannot give: call it from Python.",
        ),
        ("fedavg(aggregator=in_parts((1,)))", "column 19: in_parts needs parts, which an expression cannot"),
        (
            "fedavg(aggregator=risk_weighted(hierarchical(mean(), mean(), 1, 2)))",
            "column 33: hierarchical needs groups, which an expression cannot give: call it from Python.",
        ),
        (f"averaged(growht=2, {'growth=1, ' * 30})", "'averaged(growht=2, growth=1, growth=1, "),
        (f"averaged(fedavg(), {'growth=1, ' * 30}growth=+)", "growth=1, growth=+)' is not an expression at "),
    ],
)
def test_faults_get_one_sentence_with_the_place_and_the_remedy(text: str, words: str) -> None:
    with pytest.raises(ExpressionError) as error:
        read(text)
    assert words in str(error.value)
    assert len(str(error.value)) < 560


def test_of_a_long_expression_the_part_around_the_fault_is_shown() -> None:
    for before in range(0, 200, 3):
        text = f"averaged(fedprox(mu={'0' * before}.5, aggregtor=mean()), growth={'1' * (200 - before)})"
        with pytest.raises(ExpressionError) as error:
            read(text)
        shown, _, rest = str(error.value).partition(", column ")
        assert "aggregtor=mean()" in shown and len(shown) < 90
        assert rest.startswith(f"{text.index('aggregtor') + 1}: fedprox has no 'aggregtor'")


def test_two_hundred_broken_compositions_get_a_sentence_each() -> None:
    draw = random.Random(5)

    def misspell(text: str) -> str:
        names = list(re.finditer(r"[a-z_]{3,}(?=[(=])", text))
        at = draw.choice(names)
        return text[: at.start()] + draw.choice("qxz") + text[at.start() :]

    breaks: list[Callable[[str], str]] = [
        misspell,
        lambda text: text[:-1],
        lambda text: text[:-1] + ", nonsense=1)",
        lambda text: text[:-1] + ", {})",
        lambda text: text.replace("(", "(*", 1) if "()" not in text else text + "()",
        lambda text: text.replace("(", ".apply(", 1),
        lambda text: f"[{text}]",
        lambda text: f"averaged({text}, growth='fast')",
    ]
    for i, text in enumerate(LEGAL):
        broken = breaks[i % len(breaks)](text)
        with pytest.raises(ExpressionError) as error:
            read(broken)
        sentence = str(error.value)
        assert "\n" not in sentence and ("column" in sentence or "expression" in sentence), (broken, sentence)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').mkdir('made')",
        "fedprox(mu=__import__('os').mkdir('made'))",
        "fedprox(mu=open('made', 'w'))",
        "(lambda: open('made', 'w'))()",
        "[open('made', 'w') for _ in 'a']",
        "fedprox(mu=(x := open('made', 'w')))",
        "fedprox.__globals__['math']",
        "fedprox(mu=f\"{open('made', 'w')}\")",
        "eval('1')",
        "fedavg(aggregator=exec('1'))",
    ],
)
def test_nothing_is_evaluated(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExpressionError):
        read(text)
    assert list(tmp_path.iterdir()) == []


# --- on the command line -----------------------------------------------------------------------------------------


def test_an_expression_stands_in_the_place_of_a_method_and_comes_back_from_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, folder = "fedprox(mu=0.1, server_opt=fedavgm(0.5))", tmp_path / "a"
    words = ["--data", "digits", "--clients", "6", "--rounds", "2", "--lr", "0.2", "--quiet"]
    assert main(["run", text, *words, "--out", str(folder)]) == 0
    assert json.loads((folder / "config.json").read_text())["method"] == text
    assert main(["run", "--config", str(folder), "--out", str(tmp_path / "b"), "--quiet"]) == 0
    params = [dict(np.load(tmp_path / name / "params.npz")) for name in "ab"]
    assert all(np.array_equal(params[0][key], params[1][key]) for key in params[0])
    assert main(["report", str(folder)]) == 0
    assert text in (folder / "report.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(["run", "fedporx(mu=1)", *words, "--out", str(tmp_path / "c")]) == 2
    assert "column 1: there is no method 'fedporx' (perhaps you meant fedprox)." in capsys.readouterr().err


def test_any_method_is_trained_with_the_loss_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is recorded, and a run that is repeated, resumed, loaded or applied has it again."""
    text, (a, b) = "focal(gamma=2, alpha=None)", (tmp_path / "a", tmp_path / "b")
    words = ["--data", "digits", "--clients", "6", "--rounds", "2", "--lr", "0.2", "--quiet"]
    assert main(["run", "fedavg", "--loss", text, *words, "--out", str(a)]) == 0
    assert json.loads((a / "config.json").read_text())["options"]["loss"] == text
    saved, data = eh.load_run(a), eh.data.load("digits", clients=6)
    assert saved.model is not None and saved.model.losses == focal(2.0)
    assert saved.model.name == "softmax_regression(features=64, classes=10, loss=focal(gamma=2))"
    x, y = jnp.asarray(data.test.x), jnp.asarray(data.test.y)
    losses = saved.model.losses(saved.model.apply(saved.params, x), y)
    assert saved.history["test_loss"][-1] == pytest.approx(float(losses.mean()), rel=1e-5)
    # In Python the same run, and with cross-entropy another.
    plain = eh.models.softmax_regression(features=64, classes=10)
    for model, is_same in ((saved.model, True), (plain, False)):
        method = eh.algorithms.fedavg(eh.local.sgd(model, 0.2, epochs=1, batch_size=10))
        kernel = eh.simulate(method, data, rounds=2).params["kernel"]
        assert np.allclose(kernel, saved.params["kernel"], atol=1e-6) == is_same

    assert main(["run", "--config", str(a), "--out", str(b), "--quiet"]) == 0
    assert np.array_equal(eh.load_run(b).params["kernel"], saved.params["kernel"])
    assert main(["resume", str(b), "--rounds", "3", "--quiet"]) == 0
    assert eh.load_run(b).model == saved.model
    assert main(["report", str(a)]) == 0
    assert "focal(gamma=2" in (a / "report.html").read_text(encoding="utf-8")
    np.savez(tmp_path / "new.npz", x=data.test.x, y=data.test.y)
    capsys.readouterr()
    assert (
        main(["predict", str(a), "--data", str(tmp_path / "new.npz"), "--out", str(tmp_path / "p.csv")]) == 0
    )
    assert f"loss {float(losses.mean()):.4g}" in capsys.readouterr().out


def test_parts_are_listed_with_their_signatures(capsys: pytest.CaptureFixture[str]) -> None:
    rooms = {
        "aggregators": "aggregator",
        "losses": "loss",
        "weightings": "weighting",
        "parts": "server optimiser",
        "work": "local work",
    }
    for topic, room in rooms.items():
        assert main(["list", topic]) == 0
        shown = " ".join(capsys.readouterr().out.split())  # long signatures wrap
        for name, factory in factories(_ROOM[room]).items():
            assert signature(name, factory) in shown


def test_what_serves_privacy_is_listed_together_and_only_once_among_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["list", "privacy"]) == 0
    shown = capsys.readouterr().out
    for name in ("dp_fedavg", "private", "noisy_mean", "dp_sgd", "dp2", "adaptive_clip"):
        assert f"  {name}(" in shown
    assert "  fedavg(" not in shown and "  sgd(" not in shown
    assert main(["list"]) == 0
    assert capsys.readouterr().out.count("  dp_sgd(") == 1


def test_the_size_of_a_batch_is_a_whole_number_or_a_share() -> None:
    for text, size in (("10", 10), ("0.5", 0.5), ("1", 1)):
        method = read(f"fedavg(sgd(0.1, epochs=1, batch_size={text}))")
        same = eh.algorithms.fedavg(eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=size))
        ours, theirs = (jax.tree.leaves(eh.simulate(one, DATA, rounds=2).params) for one in (method, same))
        np.testing.assert_array_equal(ours[0], theirs[0])
