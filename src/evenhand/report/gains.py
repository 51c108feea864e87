"""What clients gain by personal models: the global model against the personal one, client by client.

A client that never trained has no personal model to speak of, and counts neither as better nor as worse served.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenhand.evaluation import is_higher_better, of_global
from evenhand.report._view import NDArray, RunView, client_values, honest
from evenhand.report.numbers import plural, value

__all__ = ["Gain", "gains", "in_words", "trained", "untrained"]

_THIRDS_FROM = 6
"""From this many clients on, they are also shown in thirds by size."""


class Gain(NamedTuple):
    """What some clients gain by models of their own.

    Attributes:
      who: which clients.
      clients: how many of them have a value of the metric.
      alone: the mean of the metric over them with the global model.
      own: with their own models.
      gained: how many are served better by their own.
      lost: how many are served worse.
    """

    who: str
    clients: int
    alone: float
    own: float
    gained: int
    lost: int


def trained(run: RunView) -> NDArray:
    """Which clients have personal models, bool ``(K,)``: those that trained, where that is known.

    All have one where clients adapt the model that they are served, or where none of them took part in the training.
    """
    if run.last_round is None or run.info.get("adapts") or not run.last_round.any():
        return np.ones(len(run.client_ids), bool)
    return run.last_round > 0


def untrained(run: RunView) -> int:
    """How many honest clients have no personal model because they never trained."""
    return int((~trained(honest(run))).sum())


def gains(run: RunView, split: str, metric: str) -> list[Gain]:
    """Of all honest clients that trained, of thirds of them by training examples, and of those unseen in training.

    Empty where clients have no personal models, and for runs saved by versions that did not measure it.
    """
    if of_global(metric) not in run.clients.get(split, {}):
        return []
    run = honest(run)
    own, alone = (client_values(run, split, name) for name in (metric, of_global(metric)))
    known = np.flatnonzero(np.isfinite(own) & np.isfinite(alone) & trained(run))
    found = [_gain("all" if run.whole is None else "honest", own[known], alone[known], metric)]
    if len(known) >= _THIRDS_FROM and "train" in run.sizes:
        ranked = known[np.argsort(run.sizes["train"][known], kind="stable")]
        for name, third in zip(("smallest", "middle", "largest"), np.array_split(ranked, 3), strict=True):
            found.append(_gain(f"{name} third", own[third], alone[third], metric))
    if run.unseen is not None:
        found += [each._replace(who="unseen in training") for each in gains(run.unseen, split, metric)[:1]]
    return [each for each in found if each.clients]


def in_words(run: RunView, split: str, metric: str) -> str:
    """The same in a sentence or two; empty where clients have no models of their own."""
    found = {each.who: each for each in gains(run, split, metric)}
    left_out, kind = untrained(run), "client" if run.malicious is None else "honest client"
    sentences: list[str] = []
    for who, name in (("all", kind), ("honest", kind), ("unseen in training", "unseen client")):
        if (each := found.get(who)) is not None:
            noun = plural(each.clients, name) + (" that trained" if left_out and name == kind else "")
            means = f"mean {value(each.own, metric)}, global {value(each.alone, metric)}"
            sentences.append(
                f"Of {noun}, {each.gained:,} {'is' if each.gained == 1 else 'are'} served better by a model of "
                f"{'its' if each.gained == 1 else 'their'} own than by the global one, {each.lost:,} worse ({means})."
            )
    if left_out and sentences:
        sentences.append(
            f"{plural(left_out, kind)} never trained and {'is' if left_out == 1 else 'are'} left out."
        )
    return " ".join(sentences)


def _gain(who: str, own: NDArray, alone: NDArray, metric: str) -> Gain:
    better = own - alone if is_higher_better(metric) else alone - own
    before, after = (float(values.mean()) if values.size else float("nan") for values in (alone, own))
    return Gain(who, own.size, before, after, int((better > 0).sum()), int((better < 0).sum()))
