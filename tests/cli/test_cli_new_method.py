"""A method that somebody else wrote, as docs/extending.md describes: the command line reads it off its signature."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import evenhand
from evenhand.cli._methods import argument_lines
from evenhand.expressions import KINDS, factories
from evenhand.expressions.kinds import parameters

METHOD = '''
import contextlib, io, json, sys
from typing import Literal

from evenhand import algorithms
from evenhand.local import Work
from evenhand.types import Algorithm


def mine(
    work: Work,
    *,
    alpha: float,
    mode: Literal["fast", "slow"] = "fast",
    label: str = "plain",
    scale: float | Literal["auto"] = "auto",
    levels: tuple[float, ...] = (),
    seed: int = 0,
    name: str = "mine",
) -> Algorithm:
    """The method of somebody else.

    Args:
      work: local work, as in ``fedavg``.
      alpha: how much of it.
      mode: how fast.
    """
    assert isinstance(alpha, float)
    return algorithms.fedavg(work)


def yours(work: Work, *, mode: Literal["fast", "slow"] = "fast", label: str = "plain", levels: int = 1) -> Algorithm:
    """Another."""
    assert mode in ("fast", "slow")
    return algorithms.fedavg(work)


for made in (mine, yours):
    vars(algorithms)[made.__name__] = made
    algorithms.__all__.append(made.__name__)

from evenhand.cli._main import main, parse


def answer(words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            made = parse(words)
            return [made.method, made.data.alpha, made.training.seed]
        except SystemExit:
            return out.getvalue()
        except ValueError as error:
            return str(error)


print(json.dumps([answer(words) for words in json.loads(sys.argv[1])]))
'''


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Words -> the method, ``--alpha`` and ``--seed`` that they stand for, or the sentence that refuses them."""
    folder = tmp_path_factory.mktemp("new")
    (folder / "new.py").write_text(METHOD)
    asked = [
        "run yours --mode slow --label text",
        "run yours --mode slw",
        "run yours(mode='slw')",
        "run yours(mode='slow',label='text')",
        "run mine --help",
        "run mine",
        "run mine --mode slow",
        "run mine --alpha 0.3",
        "run mine(alpha=1) --alpha 0.3 --seed 4",
        "run mine(alpha=1,scale='auto',levels=(1,0.5))",
        "run mine --scale 0.5 --label 0.5 --config config.json",
        "run mine --seed 4 --config config.json",
    ]
    recorded = {"method": "mine(alpha=0.5, seed=7)", "options": {"alpha": 2.0, "seed": 3}}
    (folder / "config.json").write_text(json.dumps(recorded))
    environment = {**os.environ, "PYTHONPATH": str(Path(evenhand.__file__).parents[1]), "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "new.py", json.dumps([words.split() for words in asked])],
        cwd=folder,
        env={**environment, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(asked, json.loads(done.stdout), strict=True))


def test_words_and_text_need_no_quotes_as_options(answers: dict[str, object]) -> None:
    assert answers["run yours --mode slow --label text"] == ["yours(mode='slow', label='text')", 0.5, 0]
    assert answers["run yours --mode slow --label text"] == answers["run yours(mode='slow',label='text')"]
    refused = (
        "--mode takes one of fast, slow, not 'slw' (perhaps you meant slow): see `evenhand run yours --help`."
    )
    assert answers["run yours --mode slw"] == refused
    assert "column 12: mode takes 'fast' or 'slow'." in str(answers["run yours(mode='slw')"])


def test_an_argument_with_the_name_of_an_option_of_run_is_given_by_an_expression(
    answers: dict[str, object],
) -> None:
    """And never by that option, whose meaning stays."""
    assert answers["run mine(alpha=1) --alpha 0.3 --seed 4"] == ["mine(alpha=1)", 0.3, 4]
    needed = "mine needs alpha=, which only an expression can give: `evenhand run 'mine(alpha=...)'`."
    assert answers["run mine"] == answers["run mine --mode slow"] == needed
    assert str(answers["run mine --alpha 0.3"]).startswith(
        "--alpha is ambiguous, because run and mine both have it: write 'mine(alpha=...)' in place of mine, and"
    )
    assert "--seed is ambiguous" in str(answers["run mine --seed 4 --config config.json"])
    assert answers["run mine(alpha=1,scale='auto',levels=(1,0.5))"] == [
        "mine(alpha=1, scale='auto', levels=(1, 0.5))",
        0.5,
        0,
    ]


def test_the_other_arguments_of_such_a_method_join_those_of_a_configuration(
    answers: dict[str, object],
) -> None:
    joined = "mine(alpha=0.5, seed=7, label='0.5', scale=0.5)"
    assert answers["run mine --scale 0.5 --label 0.5 --config config.json"] == [joined, 2.0, 3]


def test_help_shows_what_is_set_in_an_expression(answers: dict[str, object]) -> None:
    shown = " ".join(str(answers["run mine --help"]).split())
    assert "Set alpha, levels, seed in an expression: 'mine(alpha=...)'." in shown
    assert "--mode {fast,slow} how fast (default: fast)" in shown.replace("│", "").replace("  ", " ")
    assert shown.count("--alpha ") == 1 and "Dirichlet" in shown


@pytest.mark.parametrize("what", [room.noun for room in KINDS])
def test_every_argument_of_every_factory_has_a_sentence(what: str) -> None:
    """Which the help shows; a method of the package without one would have an option without help."""
    known = next(factories(room) for room in KINDS if room.noun == what)
    for name, factory in known.items():
        told = argument_lines(name, known)
        assert not [argument for argument in parameters(factory) if not told.get(argument)], name
