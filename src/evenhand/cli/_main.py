"""From arguments to an exit code."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Annotated, Any, TypeAlias

import tyro
from tyro.conf import subcommand

from evenhand._version import __version__
from evenhand.cli._compare import Compare
from evenhand.cli._config import with_config
from evenhand.cli._list import List
from evenhand.cli._report import Report
from evenhand.cli._resume import Resume
from evenhand.cli._run import Run
from evenhand.cli._words import STYLE, in_one_sentence
from evenhand.errors import EvenhandError, EvenhandWarning

__all__ = ["main", "parse"]

_DESCRIPTION = "Federated learning over many unlike clients: train, compare, report."

_EXAMPLES = {
    "": """\
  evenhand run fedavg --data digits --rounds 50 --cohort 10 --out runs/a
  evenhand run fedprox --mu 0.1 --config runs/a --out runs/b
  evenhand resume runs/a                           continues where it stopped
  evenhand compare runs/a runs/b --out compare.html
  evenhand list methods""",
    "run": """\
  evenhand run fedavg                              digits, 50 rounds, everybody
  evenhand run fedprox --mu 0.1 --cohort 10 --epochs 5 --stragglers 0.9
  evenhand run scaffold --data my.csv --client-column city --label-column sold
  evenhand run fedadam --data leaf/femnist --model cnn_femnist --lr 0.03
  evenhand run --config runs/a --out runs/b        the same run again
  evenhand run fedavg --config runs/a --out runs/c another method, else the same""",
    "resume": """\
  evenhand resume runs/a
  evenhand resume runs/a --rounds 200              trains further""",
    "compare": """\
  evenhand compare runs/a runs/b
  evenhand compare runs/* --out compare.html --clients 20""",
    "report": """\
  evenhand report runs/a""",
    "list": """\
  evenhand list
  evenhand list models""",
}
"""What stands at the end of each command's help."""

_OPTIONS = {
    "regression=True": "--regression",
    "client=NAME": "--client-column NAME",
    "label=NAME": "--label-column NAME",
    "clients=N": "--clients N",
    "features=NAMES": "features=NAMES in Python",
}
"""Arguments that the library's sentences advise, as they are spelled here."""

_Command: TypeAlias = (
    Annotated[Run, subcommand("run")]
    | Annotated[Resume, subcommand("resume")]
    | Annotated[Compare, subcommand("compare")]
    | Annotated[Report, subcommand("report")]
    | Annotated[List, subcommand("list")]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      arguments: what stands after ``evenhand``; None: what the process was started with.

    Returns:
      0 if all went well, 2 for bad input (one sentence about it is on stderr), 130 after Ctrl-C, 143 after SIGTERM,
      which ends a run just as orderly.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    _hush_the_store()
    terminated: list[int] = []
    try:
        if words == ["--version"]:
            print(f"evenhand {__version__}")
            return 0
        with _terminable(terminated), _warnings_as_sentences():
            code = parse(words).execute()
            return 143 if terminated else code
    except EvenhandError as error:
        return _complain(str(error))
    except BrokenPipeError:
        # The reader went away (`| head`); without this, Python would complain once more while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _complain(f"{error.filename or 'A file'}: {error.strerror or error}.")
    except KeyboardInterrupt:
        return 143 if terminated else 130


def _hush_the_store() -> None:
    """Where orbax fails, it raises, which becomes a sentence; its log and its threads need not add to it."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    sys.excepthook = _report_crash  # for good, as its threads end when they like


def _report_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not (kind is RuntimeError and str(error) == "Event loop is closed"):
        sys.__excepthook__(kind, error, trace)


@contextmanager
def _terminable(terminated: list[int]) -> Generator[None]:
    """SIGTERM is Ctrl-C, but is noted in ``terminated``."""
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
    """The library's warnings, without the line of code that they are about."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", EvenhandWarning)
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, EvenhandWarning):
                print(f"evenhand: {message}", file=sys.stderr)
            else:
                others(message, category, *where)

        warnings.showwarning = show
        yield


def parse(words: Sequence[str]) -> Run | Resume | Compare | Report | List:
    """The command that ``words`` spell.

    Raises:
      SystemExit: they ask for help.
      EvenhandError: they spell none, or name a configuration that cannot be read.
    """
    try:
        with in_one_sentence():
            return tyro.cli(
                _Command, prog="evenhand", description=_DESCRIPTION, args=with_config(words), config=STYLE
            )
    except SystemExit:
        name = words[0] if words and words[0] in _EXAMPLES else ""
        print(f"examples:\n{_EXAMPLES[name]}")
        raise


def _complain(sentence: str) -> int:
    for argument, option in _OPTIONS.items():
        sentence = sentence.replace(argument, option)
    print(f"evenhand: {sentence}", file=sys.stderr)
    return 2
