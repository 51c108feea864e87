"""What ``evenhand --help`` and ``evenhand --version`` print.

It is outside the package ``evenhand``, because whoever asks what there is should not wait until JAX is imported.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import make_dataclass
from importlib.util import find_spec
from io import StringIO, TextIOWrapper
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any, TextIO, Union

__all__ = ["COMMANDS", "DESCRIPTION", "EXAMPLES", "HELP", "answer", "fitted", "show_help", "united"]

DESCRIPTION = "Federated learning over heterogeneous clients: train, compare, report."

COMMANDS = {
    "run": "Train METHOD on data spread over clients; `run METHOD --help` shows all options.",
    "study": (
        "Train METHODS with every combination of hyper-parameters over several seeds, and compare their best settings."
    ),
    "fit": "Train one central model on the examples of all clients, with a RISK such as 'tilted(t=50)'.",
    "resume": "Continue a run that was stopped or killed; the results are the same as without the interruption.",
    "compare": "Compare saved runs: how well, and how evenly, each serves its clients.",
    "predict": (
        "Apply a trained model to new rows: the client's personal model if the run kept one, else the global model."
    ),
    "report": "Rewrite the report page of a saved run or study, and print its path.",
    "figures": "Save the figures of runs or of a study as files, and print their paths.",
    "list": "List the available methods, aggregators, local work, losses, systems, attacks, data sets and models.",
    "doctor": "Check the installation (packages, devices, compilation cache), and suggest repairs.",
    "completion": "Print a shell completion script for the commands and options of evenhand.",
    "deploy": "Run a federation on real machines: create its files, start its server and its clients.",
}
"""The commands, each with the first sentence of its own help, which a test compares."""

EXAMPLES = """\
  evenhand run fedavg --data digits --rounds 50 --cohort 10 --out runs/a
  evenhand run fedprox --mu 0.1 --config runs/a --out runs/b
  evenhand study fedavg 'fedprox(mu={0.1, 1})' --lr 0.03,0.1 --out studies/a
  evenhand fit 'tilted(t=50)' --data t.csv         one model, without clients
  evenhand resume runs/a                           continues where it stopped
  evenhand compare runs/a runs/b --out compare.html
  evenhand predict runs/a --data new.csv --out predictions.csv
  evenhand list methods
  evenhand help run                                as `evenhand run --help`
  evenhand --version"""

HELP = {"-h", "--help"}


def answer(words: Sequence[str]) -> None:
    """Prints the help or the version, if ``words`` ask for nothing else, and does nothing if they do.

    Raises:
      SystemExit: it has printed them.
    """
    words = list(words) or ["help"]
    asks_for_help = words[0] in HELP or (words[0] == "help" and (not words[1:] or words[1] in HELP))
    if not asks_for_help and words != ["--version"]:
        return
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what it cannot encode is escaped, as on stderr
    try:
        if asks_for_help:
            named = {
                name: make_dataclass(name, [], namespace={"__doc__": about})
                for name, about in COMMANDS.items()
            }
            with suppress(SystemExit):
                show_help(united(named), ["--help"])
            print(f"examples:\n{EXAMPLES}")
        else:
            print(f"evenhand {_version()}")
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader went away (`| head`); without this, Python would complain once more while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    raise SystemExit(0)


def united(commands: Mapping[str, Any]) -> Any:
    """Commands, such as dataclasses, as the one type in which tyro reads them all."""
    from tyro.conf import subcommand

    return Union[tuple(Annotated[kind, subcommand(name)] for name, kind in commands.items())]  # noqa: UP007  (| takes no tuple)


def show_help(commands: Any, words: Iterable[str]) -> None:
    """Prints what tyro makes of the commands' docstrings, or a script that completes their words.

    Raises:
      SystemExit: always, with 0.
    """
    import tyro  # here, as `evenhand --version` needs none
    from tyro.conf import CascadeSubcommandArgs, OmitArgPrefixes, OmitSubcommandPrefixes

    style = (CascadeSubcommandArgs, OmitArgPrefixes, OmitSubcommandPrefixes)
    words, shown = list(words), _Shown(sys.stdout)
    try:
        with redirect_stdout(shown):
            tyro.cli(commands, prog="evenhand", description=DESCRIPTION, args=words, config=style)
    finally:
        text = shown.getvalue()
        if _CODE.sub("", text).startswith("usage:"):
            text = fitted(text, get_terminal_size().columns, "METHOD" if words[0] == "run" else "COMMAND")
        sys.stdout.write(text)


class _Shown(StringIO):
    """What is printed, kept; boxes and colours are as in the stream behind it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def isatty(self) -> bool:
        return self._stream.isatty()


_CODE = re.compile(r"\x1b\[[\d;]*m")
_CHOICES = re.compile(r"\{[\w-]+(?:,[\w-]+){5,}\}")


def fitted(page: str, width: int, choices: str) -> str:
    """A page of tyro whose lines outside of its boxes are no wider than the terminal: tyro leaves them as they are.

    Args:
      page: the page.
      width: of the terminal.
      choices: what stands for many commands in braces, which are listed below.

    Example:
      >>> print(fitted("usage: evenhand [-h] {a,b,c,d,e,f}", 30, "COMMAND"))
      usage: evenhand [-h] COMMAND
    """
    lines: list[str] = []
    for line in page.split("\n"):
        is_usage = _CODE.sub("", line).startswith("usage:")
        line = _CHOICES.sub(choices, line) if is_usage else line
        words, indent = line.split(" "), ""
        if is_usage and _length(words) > width:  # an option stays with what it takes
            words, indent = re.findall(r"\[[^\]]*\]|\S+", _CODE.sub("", line)), "  "
        # A line of a box is as wide as the terminal, or less.
        while len(words) > 1 and _length(words) > width:
            count = max(1, next(n for n in range(len(words), -1, -1) if _length(words[:n]) <= width))
            lines.append(" ".join(words[:count]))
            words = [f"{indent}{words[count]}", *words[count + 1 :]] if count < len(words) else []
        lines.append(" ".join(words))
    return "\n".join(lines)


def _length(words: Sequence[str]) -> int:
    """Characters of a line of words, without the codes of colours."""
    return len(_CODE.sub("", " ".join(words)))


def _version() -> str:
    """The version, read from its file: importing it would import the package, and JAX with it."""
    package = find_spec("evenhand")
    assert package is not None and package.origin is not None
    return runpy.run_path(str(Path(package.origin).with_name("_version.py")))["__version__"]
