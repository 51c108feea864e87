"""How a report shows statistics that a server learns from a histogram, each with its error bound.

The same numbers are a section of the page, a table on the terminal, and a part of ``summary.json``; in a notebook they
are the table of a :class:`PrivateSummary`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from evenhand.errors import EvenhandError
from evenhand.evaluation import SPLIT_NAMES
from evenhand.evaluation.private_metrics import Estimate
from evenhand.report._comparison import Comparison
from evenhand.report._view import RunView
from evenhand.report.formatting import Row, Table, Value, capital, factor, note, number, section, unit
from evenhand.report.tables import SUMMARY
from evenhand.text import counted

_BRIEF = {
    "mean": "mean",
    "worst10": "worst\n10 %",
    "best10": "best\n10 %",
    "p10": "p10",
    "p50": "median",
    "p90": "p90",
    "std": "std",
}
"""The statistics that fit on a line of a terminal."""

_BOUND = "Each bound holds with certainty: the exact statistic is no further from the estimate."


class PrivateSummary(dict[str, Estimate]):
    """The statistics of one metric over clients as a server learns them from a histogram: name -> estimate.

    Attributes:
      metric: the metric, such as ``"accuracy"``.
      split: the split that it is measured on.
      clients: which clients it covers, in words.
      bins: of the histogram.
      largest: the upper edge of the last one.
      exact: the exact statistics, which only a simulation knows; else empty.
    """

    def __init__(
        self,
        estimates: Mapping[str, Estimate],
        *,
        metric: str,
        split: str,
        clients: str,
        bins: int,
        largest: float,
        exact: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        super().__init__(estimates)
        self.metric, self.split, self.clients = metric, split, clients
        self.bins, self.largest = bins, largest
        self.exact = {name: exact[name] for name in self if name in exact}

    def to_json(self) -> dict[str, Any]:
        """As ``summary.json`` has it: with each statistic's ``estimate``, ``bound`` and, where known, ``exact``."""
        statistics = {
            name: {"estimate": estimate.value, "bound": estimate.bound}
            | ({"exact": self.exact[name]} if name in self.exact else {})
            for name, estimate in self.items()
        }
        about = {name: vars(self)[name] for name in ("metric", "split", "clients", "bins", "largest")}
        return {**about, "statistics": statistics}

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> PrivateSummary:
        """The inverse of :meth:`to_json`."""
        statistics: Mapping[str, Mapping[str, Any]] = saved["statistics"]
        return PrivateSummary(
            {name: Estimate(_real(x["estimate"]), _real(x["bound"])) for name, x in statistics.items()},
            metric=str(saved["metric"]),
            split=str(saved["split"]),
            clients=str(saved["clients"]),
            bins=int(saved["bins"]),
            largest=float(saved["largest"]),
            exact={name: _real(x["exact"]) for name, x in statistics.items() if "exact" in x},
        )

    @property
    def quantity(self) -> str:
        """What the numbers are of, and of whom: ``"test accuracy over 30 clients"``."""
        name = f"{SPLIT_NAMES.get(self.split, '')} {self.metric.replace('_', ' ')}".strip()
        return f"{name} over {self.clients}"

    @property
    def title(self) -> str:
        """The same, and where the numbers come from."""
        return f"{self.quantity}, from a histogram of {counted(self.bins, 'bin')} under a secure sum"

    @property
    def remark(self) -> str:
        """How many values were clipped, as a sentence; empty if none was."""
        clipped = self["clipped"].value
        if not clipped > 0:
            return ""
        clients = counted(int(clipped), "client")
        return (
            f"{clients} had a {self.metric.replace('_', ' ')} outside the histogram (0 to {number(self.largest)}). It "
            "was clipped, and the estimates are those of the clipped values."
        )

    def rows(self) -> Table:
        """A row for each statistic."""
        rows: list[Row] = []
        for name, estimate in self.items():
            if name not in SUMMARY or name == "clients":
                continue
            title = SUMMARY[name].name + unit(name, self.metric)
            rows.append([title, *map(Value, filter(None, self._texts(name, estimate)))])
        head = ["", "estimate", "error at most", *(["exact"] if self.exact else [])]
        return Table(head, rows)

    def brief(self) -> Table:
        """A row of estimates, one of bounds and one of exact values, for a terminal."""
        columns = [self._texts(name, self[name]) for name in _BRIEF]
        names = ["estimate", "error at most", *(["exact"] if self.exact else [])]
        rows = [[name, *texts] for name, texts in zip(names, zip(*columns, strict=True), strict=False)]
        return Table([unit("mean", self.metric).strip(" ()"), *_BRIEF.values()], rows)

    def _texts(self, name: str, estimate: Estimate) -> tuple[str, str, str]:
        """A statistic, its bound and its exact value as they are shown; the last is empty where it is not known."""
        scale = factor(name, self.metric)
        bound = scale * estimate.stated
        # As many places as the two digits of the bound have: further ones would look as if they were known.
        places = max(0, 1 - math.floor(math.log10(bound * (1 + 1e-9)))) if bound > 0 else 4
        numbers = (estimate.value, estimate.stated, self.exact.get(name, math.nan))
        shown = ["–" if math.isnan(x) else f"{scale * x:,.{places}f}".replace("-", "−") for x in numbers]
        return shown[0], shown[1], shown[2] if name in self.exact else ""

    def _repr_html_(self) -> str:
        return self.rows().html(capital(self.title), "") + note(self.remark)


def _real(value: Any) -> float:
    """A number of a JSON file, which has null for those that are not finite."""
    return math.nan if value is None else float(value)


# --- of a run -----------------------------------------------------------------------------------------------------


def private_json(*summaries: PrivateSummary, refused: str = "") -> dict[str, Any]:
    """What ``summary.json`` has under ``private_metrics``; ``refused`` says why there are no numbers."""
    return {"metrics": {x.metric: x.to_json() for x in summaries}, "refused": refused}


def private_summaries(run: RunView) -> tuple[list[PrivateSummary], str]:
    """The private statistics that a run was asked for, and why there are none; empty for others.

    Raises:
      EvenhandError: they are not as this version of Evenhand writes them.
    """
    saved = run.info.get("private_metrics")
    if not saved:
        return [], ""
    try:
        return [PrivateSummary.from_json(x) for x in saved["metrics"].values()], str(saved["refused"])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise EvenhandError(
            f"The private metrics of {run.title!r:.60} are not as this version of Evenhand writes them: repeat the run."
        ) from None


def private(subject: Comparison) -> str:
    """The section of a page about a single run."""
    summaries, refused = private_summaries(subject.runs[0])
    if len(subject.runs) > 1 or not (summaries or refused):
        return ""
    parts = [x.rows().html(capital(x.title), "numbers narrow") + note(x.remark) for x in summaries]
    return section("Private metrics", *parts, note(refused or _BOUND))
