"""Commands that only show: saved runs (``compare``, ``report``, ``figures``), what there is to choose (``list``), and
what is installed (``doctor``)."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import optax
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional, arg

from evenhand import centralized, evaluation, privacy, theory
from evenhand.centralized import Weighting
from evenhand.cli._data import SOURCES
from evenhand.cli._folder import PAGE, check_page, load_saved, study_in
from evenhand.cli._methods import first_line
from evenhand.cli._models import MODELS
from evenhand.cli._terminal import client_table, kept_rounds, new_table, remark, say, show_comparison, tally
from evenhand.errors import EvenhandError, whole_number
from evenhand.evaluation.metrics import BUILT_IN
from evenhand.expressions import signature
from evenhand.expressions.kinds import factory_of, ignored_plugins, kind_of, names_of
from evenhand.local import Schedule, Work
from evenhand.models.losses import Loss
from evenhand.privacy import AdaptiveClip
from evenhand.report import compare, figures, write_report
from evenhand.simulation.folder import REPORT
from evenhand.studies import load
from evenhand.systems import Systems
from evenhand.text import quoted, visible
from evenhand.types import Algorithm, Attack, Risk, Sampling, Sum
from evenhand_command import doctor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Folders: TypeAlias = Positional[tuple[Path, ...]]
_HEADLINE = "(default: that of the runs or the study, else accuracy or loss)"

# --- evenhand compare: saved runs side by side, over all clients and client by client -----------------------


@dataclass(frozen=True)
class CompareCommand:
    """Compare saved runs: how well, and how evenly, each serves its clients."""

    runs: Annotated[_Folders, arg(metavar="RUN RUN ...", help_behavior_hint="(required)")] = ()
    """folders written by `evenhand run` or `evenhand study`"""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: no page)")] = None
    """write a page with figures to this file, such as compare.html"""
    clients: int = 10
    """number of worst-off clients to list individually"""
    headline: Annotated[str | None, arg(metavar="METRIC", help_behavior_hint=_HEADLINE)] = None
    """metric to compare by, such as auc, if all runs have measured it"""

    def execute(self) -> int:
        """Prints the tables and returns the exit code."""
        whole_number("clients", self.clients, 0)
        if not self.runs:
            raise EvenhandError(
                "There is nothing to compare: name run folders, e.g. `evenhand compare runs/a runs/b`."
            )
        if self.out is not None:
            check_page(self.out)
        saved = load_saved(self.runs)
        comparison = compare([run.view for run in saved], self.headline)
        console = Console(highlight=False)
        show_comparison(comparison, console, lines=kept_rounds(comparison))
        if stopped := [str(run.folder) for run in saved if run.interrupted]:
            say(console, f"Interrupted before the last round: {', '.join(stopped)}.", style="yellow")
        if self.clients > 0 and comparison.same_clients:
            console.print(client_table(comparison, self.clients))
            is_sound = all(method.is_sound for method in comparison.methods)
            if len(comparison.methods) == 2 and not comparison.obstacles and is_sound:
                say(console, tally(comparison))
        elif self.clients > 0 and any(run.whole is not None for run in comparison.runs):
            say(console, "The honest clients differ between the runs, so they are not listed individually.")
        if self.out is not None:
            path = write_report(self.out, [run.view for run in saved], metric=self.headline)
            say(console, f"Report: {path}")
        return 0


# --- evenhand report: the page of a saved run or study, written again ---------------------------------------


@dataclass(frozen=True)
class ReportCommand:
    """Rewrite the report page of a saved run or study, and print its path."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """a folder written by `evenhand run` or `evenhand study`"""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: in that folder)")] = None
    """file for the page"""
    headline: Annotated[str | None, arg(metavar="METRIC", help_behavior_hint=_HEADLINE)] = None
    """metric that the page of a run is about, such as auc, if the run has measured it"""

    def execute(self) -> int:
        """Writes the page and returns the exit code."""
        is_of_study = study_in(self.run)
        path = self.out or self.run / (PAGE if is_of_study else REPORT)
        if path.resolve() != (self.run / REPORT).resolve():
            check_page(path)
        if is_of_study:
            if self.headline is not None:
                raise EvenhandError(
                    f"--headline has no effect on {self.run}: the page of a study is about the metric by which its "
                    f"settings were chosen; `evenhand compare {quoted(self.run)} --headline {self.headline:.40} "
                    "--out FILE` writes a page about another one."
                )
            load(self.run).report(path)
        else:
            views = [saved.view for saved in load_saved([self.run])]
            write_report(path, views, metric=self.headline)
        print(visible(path))
        return 0


# --- evenhand figures: figures as files for a paper ---------------------------------------------------------


_FIGURES = "(default: figures in the first folder)"


@dataclass(frozen=True)
class FiguresCommand:
    """Save the figures of runs or of a study as files, and print their paths."""

    runs: Annotated[_Folders, arg(metavar="DIR DIR ...", help_behavior_hint="(required)")] = ()
    """a folder written by `evenhand study`, or folders written by `evenhand run`"""
    format: Literal["pdf", "svg", "png"] = "pdf"
    """file format"""
    width: float = 3.3
    """width in inches; 3.3 fits a column of most papers, 6.8 a page"""
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint=_FIGURES)] = None
    """folder for the files"""

    def execute(self) -> int:
        """Writes the files and returns the exit code."""
        if not self.runs:
            raise EvenhandError("There is nothing to draw: name folders, e.g. `evenhand figures studies/a`.")
        out = self.runs[0] / "figures" if self.out is None else self.out
        drawn = self._drawn()
        for figure in drawn.values():
            figures.fit(figure, self.width)
        out.mkdir(parents=True, exist_ok=True)
        for name, figure in drawn.items():
            path = out / f"{name}.{self.format}"
            dated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[self.format]
            figure.savefig(path, dpi=300, metadata=dated)
            print(visible(path))
        return 0

    def _drawn(self) -> dict[str, Figure]:
        """File name without its ending -> figure."""
        if len(self.runs) == 1 and study_in(self.runs[0]):
            study = load(self.runs[0])
            ends = _ends(study.cases)
            return (study.figures.all() if len(study.cases) > 1 else {}) | {
                _file_name(name) + end: figure
                for case, end in zip(study.cases, ends, strict=True)
                for name, figure in study.under(case).figures.all().items()
            }
        views = [run.view for run in load_saved(self.runs)]
        curves: dict[str, Figure] = {}
        if figures.has_curve(views):
            curves["learning_curve"] = figures.learning_curve(views)
            for name, x in (("communication", "bytes"), ("time", "time")):
                if figures.has_recorded(views, x):
                    curves[name] = figures.metric_against(views, x)
        else:  # a headline that is measured after the last round
            curves["training_loss"] = figures.learning_curve(views, metric="loss", split="train")
        return {
            **curves,
            "client_curve": figures.client_curve(views),
            "client_histogram": figures.client_histogram(views),
            "size_scatter": figures.size_scatter(views),
            **(
                {"availability_scatter": figures.availability_scatter(views)}
                if all(view.availability is not None for view in views)
                else {}
            ),
        }


def _file_name(text: str) -> str:
    """The text as a part of a file's name."""
    return re.sub(r"[^\w.=+-]+", "-", text.replace("%", " percent")).strip("-")


def _ends(cases: Sequence[Mapping[str, str]]) -> list[str]:
    """What follows the name of a figure under each condition; numbered where two would be the same."""
    ends = list[str]()
    for case in cases:
        name = "-".join(map(_file_name, case.values()))
        end = f"-{name}" if name else ""
        choices = (f"{end}-{i}" if i > 1 else end for i in itertools.count(1))
        ends.append(next(choice for choice in choices if choice not in ends))
    return ends


# --- evenhand list: methods, parts, data sets and models ----------------------------------------------------


class Entry(NamedTuple):
    """Something to choose.

    Attributes:
      name: its name; for what an expression can call, its signature.
      line: what it is.
      source: where it comes from.
    """

    name: str
    line: str
    source: str


def _factories(*types: type, module: ModuleType | None = None) -> Iterator[Entry]:
    """What an expression can call to make such values, with the first sentence of each docstring.

    With a ``module``, only what it has; without one, also that of plug-ins, and remarks tell of those that cannot be
    shown.
    """
    for kind in map(kind_of, types):
        names = names_of(kind)
        for name in names if module is None else [name for name in names if name in module.__all__]:
            try:
                factory = factory_of(kind, name)
            except EvenhandError as error:
                remark(str(error))
            else:
                assert factory is not None
                yield Entry(signature(name, factory), first_line(factory), "")
        if module is None:
            remark(*ignored_plugins(kind).values())


def _in_python(module: str, functions: Iterable[Callable[..., Any]]) -> Iterator[Entry]:
    """Functions that only Python calls, with the module to find them in."""
    for function in functions:
        arguments = ", ".join(map(_shown_argument, inspect.signature(function).parameters.values()))
        yield Entry(f"{module}.{function.__name__}({arguments})", first_line(function), "")


def _shown_argument(parameter: inspect.Parameter) -> str:
    """``data``, ``mu=``, ``epochs=1``: an argument by position by its name, one with a default with that."""
    if parameter.default is parameter.empty:
        return parameter.name if parameter.kind is parameter.POSITIONAL_OR_KEYWORD else f"{parameter.name}="
    shown = repr(parameter.default)
    return f"{parameter.name}={shown if len(shown) <= _LONGEST_DEFAULT else '...'}"


def _functions(module: ModuleType) -> Iterator[Callable[..., Any]]:
    """The public functions of a module; those that make weightings have a list of their own."""
    values = (vars(module)[name] for name in module.__all__)
    weightings = set(names_of(kind_of(Weighting)))
    return (value for value in values if inspect.isfunction(value) and value.__name__ not in weightings)


_LONGEST_DEFAULT = 20
_DIAGNOSTICS = (
    *(evaluation.dissimilarity, evaluation.inexactness, evaluation.baseline, evaluation.serve_by_level),
    *(evaluation.paired_difference, evaluation.summarize, evaluation.summarize_classes, evaluation.evenness),
)
"""Heterogeneity of the clients, exactness of their work, and how well and evenly they are served."""

TOPICS: dict[str, Callable[[], Iterable[Entry]]] = {
    "methods": lambda: _factories(Algorithm),
    "aggregators": lambda: _factories(Sum),
    "risks": lambda: _factories(Risk),
    "losses": lambda: _factories(Loss),
    "weightings": lambda: _factories(Weighting),
    "work": lambda: _factories(Work),
    "parts": lambda: _factories(optax.GradientTransformation, Sampling, AdaptiveClip),
    "systems": lambda: _factories(Systems),
    "schedules": lambda: _factories(Schedule),
    "attacks": lambda: _factories(Attack),
    "metrics": lambda: (Entry(name, first_line(factory), "") for name, factory in BUILT_IN.items()),
    "data": lambda: (Entry(*source) for source in SOURCES),
    "models": lambda: (Entry(*model) for model in MODELS),
    "centralized": lambda: _in_python("eh.centralized", _functions(centralized)),
    "theory": lambda: _in_python("eh.theory", _functions(theory)),
    "diagnostics": lambda: _in_python("eh.evaluation", _DIAGNOSTICS),
    "privacy": lambda: _factories(Algorithm, Sum, Work, AdaptiveClip, module=privacy),
}
"""What ``evenhand list`` shows."""

_SELECTIONS = ("privacy",)
"""Lists of what is in other lists, too."""

if TYPE_CHECKING:
    Topic: TypeAlias = str
else:
    Topic = Literal[("all", *TOPICS)]


@dataclass(frozen=True)
class ListCommand:
    """List the available methods, aggregators, local work, losses, systems, attacks, data sets and models."""

    topic: Positional[Topic] = "all"
    """the list to show"""

    def execute(self) -> int:
        """Prints them and returns the exit code."""
        console = Console(highlight=False)
        for name, entries in TOPICS.items():
            if self.topic == name or (self.topic == "all" and name not in _SELECTIONS):
                console.print(_shown(name, tuple(entries())))
        return 0


def _shown(title: str, entries: tuple[Entry, ...]) -> Group:
    heading = Text(title, style="bold")
    return Group(heading, *(_signatures(entries) if "(" in entries[0].name else [_table(entries)]))


def _signatures(entries: tuple[Entry, ...]) -> Iterable[Padding]:
    for entry in entries:
        name, _, arguments = entry.name.partition("(")
        yield Padding(Text.assemble((name, "bold"), f"({arguments}"), (1, 0, 0, 2))
        yield Padding(Text(entry.line), (0, 0, 0, 6))
    yield Padding("", 0)


def _table(entries: tuple[Entry, ...]) -> Table:
    table = new_table()
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("what it is")
    table.add_column("source")
    for entry in entries:
        table.add_row(*entry)
    return table


# --- evenhand doctor: what is installed, and whether it works ---------------------------------------------------


@dataclass(frozen=True)
class DoctorCommand:
    """Check the installation (packages, devices, compilation cache), and suggest repairs."""

    json: bool = False
    """print JSON, for a script or a bug report"""

    def execute(self) -> int:
        """Prints what was examined and returns the exit code: 1 if something is broken."""
        return doctor.print_report(as_json=self.json)
