"""How a run and its summary look in a notebook: small tables with the report's numbers, everything escaped."""

from __future__ import annotations

from collections.abc import Mapping

from evenhand.evaluation import SPLIT_NAMES
from evenhand.report._view import (
    RunView,
    common_metric,
    covered,
    diverged,
    headline_split,
    honest,
    statistics,
)

__all__ = ["Summary", "run_html"]


class Summary(dict[str, float]):
    """The statistics of one metric over clients: a plain dict that a notebook shows as a table.

    Attributes:
      metric: the metric, e.g. ``"accuracy"``.
      split: the split that it is measured on.
      clients: which clients it covers, in words, such as ``"24 of 30 clients, the honest ones"``.
    """

    def __init__(
        self, values: Mapping[str, float], metric: str, split: str = "", clients: str = "clients"
    ) -> None:
        super().__init__(values)
        self.metric, self.split, self.clients = metric, split, clients

    def _repr_html_(self) -> str:
        from evenhand.report._tables import shown
        from evenhand.report.html import table  # matplotlib takes long to load

        name = f"{SPLIT_NAMES.get(self.split, '')} {self.metric.replace('_', ' ')}".strip()
        caption = f"{name[:1].upper()}{name[1:]} over {self.clients}"
        return table(caption, ["", ""], shown(self, self.metric))


def run_html(view: RunView) -> str:
    """What was run, what is wrong with it, and how well and how evenly it serves its clients on each split."""
    from evenhand.report.html import escape, table
    from evenhand.report.numbers import spread, value

    view = honest(view)
    metric = common_metric([view])
    best = headline_split([view], metric)
    rows: list[list[str]] = []
    for split in sorted(view.clients, key=lambda split: split != best):
        for name in [metric, *(other for other in view.clients[split] if other != metric)]:
            found = statistics(view, split, name)
            shown = [value(found[key], name) for key in ("mean", "worst10", "best10")]
            rows.append(
                [f"{SPLIT_NAMES[split]} {name.replace('_', ' ')}", *shown, spread(found["std"], name)]
            )
    rounds, cohort, seed = (view.info.get(name) for name in ("rounds", "cohort", "seed"))
    clients = covered([view], best).text
    facts = f"{clients}, {rounds} rounds, cohort {cohort}, seed {seed}"
    warnings = "".join(f"<p><strong>{escape(finding.sentence)}</strong></p>\n" for finding in view.findings)
    title = f"{'Diverged: ' if diverged(view) else ''}{view.title}"
    head = ["", "Mean over clients", "Worst 10 %", "Best 10 %", "Spread (std)"]
    body = table(f"{title}: {facts}", head, rows)
    return f"{warnings}{body}"
