"""From arguments to an exit code."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, make_dataclass
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, NoReturn, Protocol, get_type_hints

from tyro.conf import Positional, arg

from evenhand._version import __version__
from evenhand.cli import _arguments, _methods
from evenhand.cli._arguments import hyphenated, options_of, split, values_of
from evenhand.cli._deploy import (
    AddClientCommand,
    ClientCommand,
    InitCommand,
    RotateCommand,
    ServerCommand,
    SplitCommand,
    StatusCommand,
)
from evenhand.cli._fit import FitCommand
from evenhand.cli._methods import COMPOSED, METHODS, NamedMethod
from evenhand.cli._restored import PredictCommand, ResumeCommand, recorded, recorded_run
from evenhand.cli._run import RunCommand
from evenhand.cli._show import CompareCommand, DoctorCommand, FiguresCommand, ListCommand, ReportCommand
from evenhand.cli._study import StudyCommand, planned
from evenhand.cli._terminal import remark
from evenhand.cli.flower_app import AppCommand
from evenhand.errors import Argument, EvenhandError, EvenhandWarning, nearest, perhaps
from evenhand.expressions import plugins
from evenhand.expressions.reading import outermost
from evenhand_command import overview

_EXAMPLES = {
    "": overview.EXAMPLES,
    "run": """\
  evenhand run fedavg                              digits, 50 rounds
  evenhand run fedprox --mu 0.1 --cohort 10 --epochs 5 --stragglers 0.9
  evenhand run scaffold --data my.csv --client-column city --label-column sold
  evenhand run fedavg --rounds 500 --dry-run       how long, how much memory
  evenhand run fedavg --server-opt 'fedadam(0.1)' --data leaf/femnist --lr 0.03
  evenhand run 'averaged(fedprox(mu=0.1, server_opt=fedadam(0.1)))' --epochs 5
  evenhand run --config runs/a --out runs/b        the same run again
  evenhand run fedavg --config runs/a --out runs/c the same with another method""",
    "study": """\
  evenhand study fedavg 'fedprox(mu={0.1, 1})' --lr 0.03,0.1 --out studies/a
  evenhand study fedavg 'qfedavg(q={0.1, 1})' --select valid:worst10
  evenhand study --plan plan.toml --dry-run        how many runs, how long""",
    "fit": """\
  evenhand fit 'tilted(t=-2)' --data t.csv --label-column y --regression
  evenhand fit 'tilted(t=50)' --data t.csv --label-column y --groups age_band
  evenhand fit 'fit(risk=tilted(t=50), inner=mean())' --data t.csv --seeds 5
  evenhand study 'fit()' 'fit(loss=focal(gamma={1,2}))' --data t.csv""",
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
    "doctor": """\
  evenhand doctor
  evenhand doctor --json                           for a script or a bug report""",
    "deploy": """\
  evenhand deploy init fed --method 'fedavg()' --clients 3 --rounds 20
  evenhand deploy server fed                       until the last round is done
  evenhand deploy client fed/clients/0 --data mine.csv""",
    "deploy init": """\
  evenhand deploy init fed --method 'ditto(fedavg(), lam=1)' --clients 4
  evenhand deploy init fed --method 'fedavg(aggregator=secure(mean()))'
  evenhand deploy init fed --host fed.example.org --signing-request""",
    "deploy server": """\
  evenhand deploy server fed                       run again, it continues""",
    "deploy client": """\
  evenhand deploy client fed/clients/0 --data mine.csv""",
    "deploy add-client": """\
  evenhand deploy add-client fed""",
    "deploy rotate": """\
  evenhand deploy rotate fed                       a new server certificate
  evenhand deploy rotate fed --client 2            new keys of a client""",
    "deploy split": """\
  evenhand deploy split fed --data digits --clients 4 --alpha 0.5""",
    "deploy status": """\
  evenhand deploy status fed""",
    "deploy app": """\
  evenhand deploy app fed                          then `flwr run fed/app`""",
    "completion": """\
  source <(evenhand completion bash)               in ~/.bashrc: <Tab> completes
  evenhand completion zsh > ~/.zfunc/_evenhand     where ~/.zfunc is in $fpath""",
}
"""The end of each command's help."""


@dataclass(frozen=True)
class CompletionCommand:
    """Print a shell completion script for the commands and options of evenhand."""

    shell: Positional[Literal["bash", "zsh"]]
    """the shell that reads it"""

    def execute(self) -> int:
        """Prints the script and returns the exit code."""
        with suppress(SystemExit):
            overview.show_help(_commands("run"), ["--tyro-print-completion", self.shell])
        return 0


class Command(Protocol):
    """What ``evenhand NAME ...`` runs."""

    def execute(self) -> int:
        """Does what the command is for, and returns the exit code."""
        ...


_COMMANDS: dict[str, type[Command]] = {
    "run": RunCommand,
    "study": StudyCommand,
    "fit": FitCommand,
    "resume": ResumeCommand,
    "compare": CompareCommand,
    "predict": PredictCommand,
    "report": ReportCommand,
    "figures": FiguresCommand,
    "list": ListCommand,
    "doctor": DoctorCommand,
    "deploy init": InitCommand,
    "deploy server": ServerCommand,
    "deploy client": ClientCommand,
    "deploy add-client": AddClientCommand,
    "deploy rotate": RotateCommand,
    "deploy split": SplitCommand,
    "deploy status": StatusCommand,
    "deploy app": AppCommand,
    "completion": CompletionCommand,
}

_DEPLOY = "deploy"
"""The first word of commands of two words."""
_RENAMED = {name: f"{name}-column" for name in ("client", "label", "text", "weight")}
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


def parse(words: Sequence[str]) -> Command:
    """The command that ``words`` spell.

    Raises:
      SystemExit: they ask for help.
      EvenhandError: they do not spell one, or they name a configuration that cannot be read.
    """
    words = list(words) or ["help"]
    if words[0] == "help":
        words = [*words[1:], "--help"]
    if words[0] in overview.HELP:
        _help()
    if words[0] == _DEPLOY:
        words = _of_deployment(words[1:])
    if words[0] not in _COMMANDS:
        raise EvenhandError(_no_command(words[0]))
    command = _COMMANDS[words[0]]
    if command is RunCommand:
        return _run(words)
    options = options_of(command)
    spelled = split(words, options)
    if overview.HELP & spelled.given.keys():
        _help(words[0])
    if command is StudyCommand:
        spelled = planned(spelled)
    # Who deploys is told of options of its commands, and nobody else.
    deploys = words[0].startswith(_DEPLOY)
    others = {
        name: options_of(other) for name, other in _COMMANDS.items() if name.startswith(_DEPLOY) == deploys
    }
    made = _arguments.construct(command, values_of(spelled, options, others, words[0], words[0]))
    if isinstance(made, StudyCommand | FitCommand):
        made.check()
    return made


def _of_deployment(words: Sequence[str]) -> list[str]:
    """The words after ``deploy``, of which the first is part of the command's name.

    Raises:
      SystemExit: they ask for help.
      EvenhandError: they name no such command.
    """
    names = [name.removeprefix(f"{_DEPLOY} ") for name in _COMMANDS if name.startswith(f"{_DEPLOY} ")]
    if not words or words[0] in overview.HELP:
        _help(_DEPLOY)
    if words[0] not in names:
        hint = perhaps(words[0], names) or f" among {', '.join(names)}"
        raise EvenhandError(
            f"There is no command `evenhand deploy {words[0]:.40}`{hint}: see `evenhand deploy --help`."
        )
    return [f"{_DEPLOY} {words[0]}", *words[1:]]


def _run(words: Sequence[str]) -> RunCommand:
    """A run, checked; what it leaves out is as in the configuration that it names."""
    general, methods, method, extra = options_of(RunCommand), _methods.built_in(), None, dict[str, str]()
    spelled = split(words, _united(methods), METHODS)
    names = [word for word in spelled.loose if hyphenated(word) in METHODS]
    names += [word for word in spelled.loose if "(" in word]
    if names:
        method = METHODS[COMPOSED if "(" in names[0] else hyphenated(names[0])]
        extra = {"expression": names[0]} if "(" in names[0] else {}
        # The options of a plug-in's method are known only now.
        methods |= {method.name: method}
        spelled = split(words, _united(methods), METHODS)
        first = spelled.loose.index(names[0])
        spelled = spelled._replace(loose=spelled.loose[:first] + spelled.loose[first + 1 :])
    elif spelled.loose or not spelled.given.keys() & {*overview.HELP, "--config"}:
        raise _methods.no_method(spelled.loose)
    if overview.HELP & spelled.given.keys():
        _help("run", *([] if method is None else [method.name]))
    others = {name: other.options for name, other in methods.items()}
    if method is None:  # it comes from the configuration, once the words can be trusted to name one
        values_of(spelled, _united(methods), others, "run", "run")
    config = spelled.given.get("--config")
    before = None if not config else recorded(Path(config))
    if method is None:
        assert before is not None
        # A missing package is the reason why its names are unknown.
        plugins.moved(before.path, before.plugins)
        name = hyphenated(outermost(before.method).name)
        method = METHODS[name if name in METHODS else COMPOSED]
        extra = {"expression": before.method} if method.factory is None else {}
    _methods.refuse_ambiguous(general.keys() & spelled.given, method)
    name, page = ("An expression", "run") if method.factory is None else (method.name, f"run {method.name}")
    values = values_of(spelled, {**general, **method.options}, others, name, page) | extra
    arguments = {name: value for name, value in values.items() if name in method.types}
    given = {name: value for name, value in values.items() if name not in method.types}
    text = method.text(arguments, before.method if before else "", has_budget="epsilon" in given)
    if before is None:
        run = _arguments.construct(RunCommand, {**given, "method": text})
    else:
        run = recorded_run(before, text, given)
    run.check(before)
    return run


def _united(methods: Mapping[str, NamedMethod]) -> _arguments.Options:
    """The options of these methods and those of a run."""
    theirs = {name: taken for method in methods.values() for name, taken in method.options.items()}
    return {**theirs, **options_of(RunCommand)}


def _help(*words: str) -> NoReturn:
    with suppress(SystemExit):
        given = [part for word in words for part in word.split()]  # "deploy init" are two words
        overview.show_help(_commands(*words or [""]), [*given, "--help"])
    print(f"examples:\n{_EXAMPLES[words[0] if words else '']}")
    raise SystemExit(0)


def _commands(command: str, *_: str) -> Any:
    """The commands as tyro reads them; only the help of ``run`` and the completion need the options of methods."""
    kinds: dict[str, Any] = {name: kind for name, kind in _COMMANDS.items() if not name.startswith(_DEPLOY)}
    if command == "run":
        hints = get_type_hints(RunCommand, include_extras=True)
        entries = [(entry.name, hints[entry.name], entry) for entry in fields(RunCommand)]
        entries[0] = ("method", Annotated[_methods.method_help(), arg(name="")], field())
        kinds["run"] = make_dataclass("Run", entries, namespace={"__doc__": RunCommand.__doc__})
    parts = {
        name.removeprefix(f"{_DEPLOY} "): kind for name, kind in _COMMANDS.items() if name.startswith(_DEPLOY)
    }
    about = {"__doc__": overview.COMMANDS[_DEPLOY]}
    kinds[_DEPLOY] = make_dataclass(
        "Deploy", [("command", Annotated[overview.united(parts), arg(name="")])], namespace=about
    )
    return overview.united(kinds)


def _no_command(word: str) -> str:
    names = list(dict.fromkeys(name.split()[0] for name in _COMMANDS))
    meant = nearest(word, [*names, "help", "--help", "--version"])
    if meant is None and (method := nearest(word, METHODS)):
        meant = f"run {method}"
    hint = f" among {', '.join(names)}" if meant is None else f" (perhaps you meant `evenhand {meant}`)"
    return f"There is no command {word!r:.40}{hint}: see `evenhand --help`."


def _spelled(part: str | Argument) -> str:
    """A part of a sentence; an argument is shown as the option of the command line."""
    if isinstance(part, str):
        return part
    name = _RENAMED.get(part.name, part.name.replace("_", "-"))
    takes = {**options_of(InitCommand), **options_of(StudyCommand), **options_of(RunCommand)}.get(f"--{name}")
    if takes is None:
        return str(part)
    return f"--{name} {part.option or part.value}" if takes.kinds else f"--{name}"
