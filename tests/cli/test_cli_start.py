"""What a process has loaded when it starts: little for ``import evenhand``, and no JAX for the first page of help."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import evenhand as eh
from evenhand.cli import _main, main
from evenhand_command import overview

SOURCE = Path(eh.__file__).parents[1]
COMMAND = ["-c", "import sys; from evenhand_command import main; sys.exit(main())"]
MODULE = ["-m", "evenhand"]
HEAVY = {"absl", "flax", "matplotlib", "optax", "orbax", "rich", "scipy", "sklearn", "tyro"}
"""Packages that take a tenth of a second or more."""


def loaded(code: str) -> set[str]:
    """The modules of a fresh process that has run this code."""
    done = start("-c", f"{code}\nimport sys\nprint(*sys.modules)")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def imported(*words: str) -> set[str]:
    """The modules that statements in a fresh process import, as ``python -X importtime`` lists them."""
    done = start("-X", "importtime", *words)
    assert done.returncode == 0, done.stderr[-500:]
    return set(re.findall(r"(?m)^import time: .*\| +(\S+)$", done.stderr))


def start(*words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs Python, with what is in the folder ``path`` in front of what is installed."""
    folders = [str(folder) for folder in (path, SOURCE) if folder is not None]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "COLUMNS": "80"}
    environment = {name: value for name, value in environment.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=False
    )


# --- import evenhand ------------------------------------------------------------------------------------------


def test_the_import_alone_loads_jax_and_next_to_nothing_else() -> None:
    modules = loaded("import evenhand")
    assert "jax" in modules, "its settings have to be made before anything starts it"
    assert not HEAVY & modules
    own = {name for name in modules if name.split(".")[0].startswith("evenhand")}
    assert own == {"evenhand", "evenhand._platform", "evenhand._version", "evenhand.errors"}


def test_a_first_run_loads_only_what_it_uses() -> None:
    modules = loaded(FIRST_RUN)
    assert {"evenhand.algorithms.fedavg", "evenhand.simulation.engine", "optax"} <= modules
    assert not {"matplotlib", "orbax", "scipy", "sklearn", "tyro", "flax.nnx"} & modules
    packages = {name.split(".")[1] for name in modules if name.startswith("evenhand.")}
    assert not {"centralized", "cli", "network", "studies", "testing", "theory"} & packages


FIRST_RUN = """
import evenhand as eh
data = eh.data.synthetic(alpha=1.0, beta=1.0, clients=4, seed=0)
model = eh.models.softmax_regression(features=60, classes=10)
method = eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1, batch_size=10))
eh.simulate(method, data, rounds=5)
"""


def test_all_public_names_together_load_no_package_that_few_programs_need() -> None:
    modules = loaded("from evenhand import *; simulate, studies.study, network.local, testing.check_risk")
    assert "evenhand.testing" in modules
    assert not {"matplotlib", "orbax", "scipy", "sklearn", "tyro", "flax.nnx"} & modules


@pytest.mark.parametrize("name", [*eh.__all__, "sklearn"])
def test_each_public_name_is_there(name: str) -> None:
    value = eh.__getattr__(name) if name not in ("__version__", "EvenhandError") else vars(eh)[name]
    assert value is vars(eh)[name], "it is computed once"
    assert name in dir(eh)
    if isinstance(value, ModuleType):
        assert value is import_module(f"evenhand.{name}")


def test_names_come_from_their_packages() -> None:
    assert eh.simulate is import_module("evenhand.simulation").simulate
    assert eh.load_study is import_module("evenhand.studies").load
    assert eh.study is import_module("evenhand.studies").study
    assert eh.Algorithm is import_module("evenhand.types").Algorithm


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'evenhand' has no attribute 'algoritms'$"):
        eh.algoritms  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(eh, "__wrapped__")
    with pytest.raises(ImportError, match="algoritms"):
        exec("from evenhand import algoritms")


def test_a_pickle_is_read_where_nothing_is_imported_yet() -> None:
    code = "import pickle; print(pickle.loads(b'cevenhand\\nsimulate\\n.').__module__)"
    assert start("-c", code).stdout == "evenhand.simulation._simulate\n"


# --- evenhand --help and evenhand --version -------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], [], ["--version"]], ids=" ".join)
def test_the_first_page_and_the_version_import_neither_jax_nor_numpy(words: list[str]) -> None:
    modules = imported(*COMMAND, *words)
    assert "evenhand_command.overview" in modules
    assert not {"evenhand", "jax", "numpy", "rich"} & modules
    modules = imported(*MODULE, *words)
    assert not {"evenhand._platform", "jax", "numpy", "rich"} & modules


@pytest.mark.parametrize("columns", [50, 80, 140])
@pytest.mark.parametrize("words", [["--help"], ["-h", "run"], ["help"], ["help", "--help"], []], ids=" ".join)
def test_the_first_page_is_that_of_the_whole_command_line(
    words: list[str], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))

    def printed(answer: Callable[[list[str]], object]) -> str:
        with pytest.raises(SystemExit) as left:
            answer(words)
        assert not left.value.code
        return capsys.readouterr().out

    quick = printed(overview.answer)
    assert quick == printed(main)
    assert (overview.COMMANDS["predict"] in quick) == (columns == 140), "it is as wide as the terminal"
    assert quick.endswith(f"\n{overview.EXAMPLES}\n")


def test_the_table_of_commands_is_that_of_the_whole_command_line() -> None:
    about = {name: kind.__doc__ for name, kind in _main._COMMANDS.items() if " " not in name}
    assert about == {name: text for name, text in overview.COMMANDS.items() if name != "deploy"}
    assert list(about) == list(overview.COMMANDS)[:-1]


@pytest.mark.parametrize(
    "words",
    [["run", "--help"], ["help", "run"], ["list"], ["--version", "x"], ["deploy"], ["helps"]],
    ids=" ".join,
)
def test_other_words_are_left_to_the_whole_command_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    overview.answer(words)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("command", [COMMAND, MODULE], ids=["evenhand", "python -m evenhand"])
def test_the_version_is_that_of_the_package(command: list[str]) -> None:
    done = start(*command, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"evenhand {eh.__version__}\n", "")


def test_a_terminal_that_cannot_show_all_characters_gets_them_escaped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = start(*COMMAND, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u2022 run" in done.stdout


def test_a_reader_that_goes_away_causes_no_complaint() -> None:
    process = subprocess.Popen(
        [sys.executable, *COMMAND, "--help"],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert (process.stderr.read(), process.wait(timeout=60)) == ("", 1)
    process.stderr.close()


def test_a_missing_package_is_named_where_the_help_needs_it(tmp_path: Path) -> None:
    (tmp_path / "tyro.py").write_text("raise ImportError('no tyro today')")
    done = start(*COMMAND, "--help", path=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "evenhand: ImportError: no tyro today: `evenhand doctor` shows what is missing.\n"
    assert start(*COMMAND, "--version", path=tmp_path).returncode == 0
