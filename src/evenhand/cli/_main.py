"""From arguments to an exit code."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, TypeAlias

from tyro.conf import Positional, subcommand

from evenhand._version import __version__
from evenhand.cli._arguments import HELP, METHODS, Composed, named, options_of, ordered, read
from evenhand.cli._restored import Predict, Resume, continued, recorded, with_method
from evenhand.cli._run import Run
from evenhand.cli._show import Compare, Figures, List, Report
from evenhand.cli._study import Study, planned
from evenhand.cli._terminal import remark
from evenhand.errors import Argument, EvenhandError, EvenhandWarning

__all__ = ["main", "parse"]

_DESCRIPTION = "Federated learning over many unlike clients: train, compare, report."

_EXAMPLES = {
    "": """\
  evenhand run fedavg --data digits --rounds 50 --cohort 10 --out runs/a
  evenhand run fedprox --mu 0.1 --config runs/a --out runs/b
  evenhand study fedavg 'fedprox(mu={0.1, 1})' --lr 0.03,0.1 --out studies/a
  evenhand resume runs/a                           continues where it stopped
  evenhand compare runs/a runs/b --out compare.html
  evenhand predict runs/a --data new.csv --out predictions.csv
  evenhand list methods
  evenhand help run                                as `evenhand run --help`
  evenhand --version""",
    "run": """\
  evenhand run fedavg                              digits, 50 rounds
  evenhand run fedprox --mu 0.1 --cohort 10 --epochs 5 --stragglers 0.9
  evenhand run scaffold --data my.csv --client-column city --label-column sold
  evenhand run fedavg --server-opt 'fedadam(0.1)' --data leaf/femnist --lr 0.03
  evenhand run 'averaged(fedprox(mu=0.1, server_opt=fedadam(0.1)))' --epochs 5
  evenhand run --config runs/a --out runs/b        the same run again
  evenhand run fedavg --config runs/a --out runs/c the same with another method""",
    "study": """\
  evenhand study fedavg 'fedprox(mu={0.01, 0.1, 1})' --lr 0.03,0.1,0.3 --out studies/a
  evenhand study fedavg 'qfedavg(q={0.1, 1})' --select valid:worst10 --data my.csv
  evenhand study --plan plan.toml --dry-run        how many runs, and about how long""",
    "resume": """\
  evenhand resume runs/a
  evenhand resume runs/a --rounds 200              trains further""",
    "compare": """\
  evenhand compare runs/a runs/b
  evenhand compare runs/* --out compare.html --clients 20
  evenhand compare studies/a                       at the chosen settings""",
    "predict": """\
  evenhand predict runs/a --data new.csv --out predictions.csv
  evenhand predict runs/a --data new.npz           prints them""",
    "report": """\
  evenhand report runs/a
  evenhand report studies/a""",
    "figures": """\
  evenhand figures studies/a                       PDF, for a column of a paper
  evenhand figures runs/a runs/b --format png --width 6.8 --out figures""",
    "list": """\
  evenhand list
  evenhand list models""",
    "completion": """\
  source <(evenhand completion bash)               in ~/.bashrc: <Tab> completes
  evenhand completion zsh > ~/.zfunc/_evenhand     where ~/.zfunc is in $fpath""",
}
"""The end of each command's help."""


@dataclass(frozen=True)
class Completion:
    """Print a script that lets a shell complete the commands and options of evenhand."""

    shell: Positional[Literal["bash", "zsh"]]
    """the shell that reads it"""

    def execute(self) -> int:
        """Prints the script and returns the exit code."""
        with suppress(SystemExit):
            _read(["--tyro-print-completion", self.shell])
        return 0


_COMMANDS = {
    "run": Run,
    "study": Study,
    "resume": Resume,
    "compare": Compare,
    "predict": Predict,
    "report": Report,
    "figures": Figures,
    "list": List,
    "completion": Completion,
}

_Command: TypeAlias = (
    Annotated[Run, subcommand("run")]
    | Annotated[Study, subcommand("study")]
    | Annotated[Resume, subcommand("resume")]
    | Annotated[Compare, subcommand("compare")]
    | Annotated[Predict, subcommand("predict")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Figures, subcommand("figures")]
    | Annotated[List, subcommand("list")]
    | Annotated[Completion, subcommand("completion")]
)

_Made: TypeAlias = Run | Study | Resume | Compare | Predict | Report | Figures | List | Completion

_RENAMED = {"client": "client-column", "label": "label-column", "weight": "weight-column"}
"""Arguments of the library whose options have other names."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      arguments: what follows ``evenhand``; None: what the process was started with.

    Returns:
      0 if all went well, 2 for bad input (one sentence about it is on stderr), 130 after Ctrl-C, 143 after SIGTERM,
      which also ends a run in order.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    _hush_the_store()
    terminated: list[int] = []
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what it cannot encode is escaped, as on stderr
    try:
        if words == ["--version"]:
            print(f"evenhand {__version__}")
            return 0
        with _terminable(terminated), _warnings_as_sentences():
            code = parse(words).execute()
            return 143 if terminated else code
    except EvenhandError as error:
        remark("".join(map(_spelled, error.parts)))
        return 2
    except BrokenPipeError:
        # The reader went away (`| head`); without this, Python would complain once more while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        remark(f"{error.filename or 'A file'}: {error.strerror or error}.")
        return 2
    except KeyboardInterrupt:
        return 143 if terminated else 130


def _hush_the_store() -> None:
    """Silences orbax's log and threads: where it fails, it also raises, and that becomes a sentence."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    sys.excepthook = _report_crash  # for good, as its threads may end at any time
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _report_unraisable


def _report_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not _is_closed_loop(error):
        sys.__excepthook__(kind, error, trace)


def _report_unraisable(about: sys.UnraisableHookArgs) -> None:
    if not _is_closed_loop(about.exc_value):
        sys.__unraisablehook__(about)


def _is_closed_loop(error: BaseException | None) -> bool:
    return isinstance(error, RuntimeError) and str(error) == "Event loop is closed"


@contextmanager
def _terminable(terminated: list[int]) -> Generator[None]:
    """Treats SIGTERM as Ctrl-C, and notes it in ``terminated``."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        terminated.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _warnings_as_sentences() -> Generator[None]:
    """Prints the library's warnings without the line of code that they come from."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", EvenhandWarning)
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if isinstance(message, EvenhandWarning):
                remark("".join(map(_spelled, message.parts)))
            else:
                others(message, category, *where)

        warnings.showwarning = show
        yield


def parse(words: Sequence[str]) -> _Made:
    """The command that ``words`` spell.

    Raises:
      SystemExit: they ask for help.
      EvenhandError: they do not spell one, or they name a configuration that cannot be read.
    """
    words = list(words) or ["help"]
    if words[0] == "help":
        words = [*words[1:], "--help"]
    try:
        return _read(words) if words[0] in HELP else _run_or_other(words)
    except SystemExit:
        name = words[0] if words[0] in _EXAMPLES else ""
        print(f"examples:\n{_EXAMPLES[name]}")
        raise


def _run_or_other(words: Sequence[str]) -> _Made:
    """The command that ``words`` spell, checked; what a ``run`` leaves out is as in the configuration that it names."""
    if words[0] == "study":
        words = planned(words)
    words = ordered(words, _COMMANDS)
    path = _config_among(words)
    before = None if path is None else recorded(path)
    if before is not None and words[1] not in METHODS:
        words = ordered(with_method(words, before), _COMMANDS)
    command = _read(words)
    if isinstance(command, Study):
        command.check()
    if not isinstance(command, Run):
        return command
    given = named(words)
    command = replace(command, method=Composed(command.method.text(given, before.method if before else "")))
    command = command if before is None else continued(command, given, before)
    command.check(before)
    return command


def _config_among(words: Sequence[str]) -> Path | None:
    """What the option ``--config`` of a run names; the last one counts."""
    found = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if words[0] == "run" and name == "--config":
            found = Path(value if equals else following)
    return found


def _read(words: Sequence[str]) -> _Made:
    return read(_Command, words, prog="evenhand", description=_DESCRIPTION)


def _spelled(part: str | Argument) -> str:
    """A part of a sentence; an argument is shown as the option of the command line."""
    if isinstance(part, str):
        return part
    name = _RENAMED.get(part.name, part.name.replace("_", "-"))
    takes = {**options_of(Study), **options_of(Run)}.get(f"--{name}")
    if takes is None:
        return str(part)
    return f"--{name} {part.option or part.value}" if takes.kinds else f"--{name}"
