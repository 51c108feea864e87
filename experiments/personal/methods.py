"""Ditto, its personal rivals and its robust ones, each with the values that validation examples choose from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import evenhand as eh
from evenhand import aggregators
from evenhand import personalization as personal

__all__ = ["PERSONAL", "ROBUST", "Candidates", "candidates"]

Numbers: TypeAlias = Mapping[str, Any]

ROBUST = ("median", "Krum", "multi-Krum", "clipping", "k-norm", "k-loss", "FedMGDA+")
"""The robust rivals of the paper's tables 7 to 12."""
PERSONAL = ("finetuning", "EWC", "SKL", "L2SGD", "APFL", "Mapper", "Per-FedAvg", "pFedMe")
"""The personal rivals of its table 2, and pFedMe."""


class Candidates(NamedTuple):
    """A method, and what is tried of it besides the step size.

    Attributes:
      make: ``numbers -> method``; the step size is ``numbers["rate"]``.
      grid: hyper-parameter -> values.
    """

    make: Callable[[Numbers], eh.Algorithm]
    grid: Mapping[str, Sequence[Any]]


def candidates(model: eh.Model, malicious: int, *, strong: bool) -> dict[str, Candidates]:
    """All methods, for one model.

    Args:
      model: of all of them.
      malicious: how many malicious clients the robust rules expect in a round.
      strong: the bit that dynamic Ditto is told.
    """

    def work(rate: float, epochs: int = 1) -> eh.local.Work:
        return eh.local.sgd(model, rate, epochs=epochs, batch_size=10)

    def average(rate: float, rule: eh.types.Aggregator = aggregators.mean()) -> eh.Algorithm:
        return eh.algorithms.fedavg(work(rate), aggregator=rule)

    def robust(rule: eh.types.Aggregator) -> Candidates:
        return Candidates(lambda n: average(n["rate"], rule), {})

    def around(n: Numbers) -> tuple[eh.Algorithm, eh.local.Work]:
        return average(n["rate"]), work(n["rate"])

    def after(n: Numbers) -> tuple[eh.Algorithm, eh.local.Work]:
        return average(n["rate"]), work(n["rate"], epochs=50)

    def ditto(rule: eh.types.Aggregator = aggregators.mean()) -> Candidates:
        return Candidates(
            lambda n: personal.ditto(average(n["rate"], rule), work(n["rate"]), lam=n["lam"]), {"lam": lams}
        )

    lams, wide = (0.1, 1.0, 2.0), (0.01, 0.1, 1.0)
    return {
        "global": Candidates(lambda n: average(n["rate"]), {}),
        "local": Candidates(lambda n: personal.ditto(*around(n), lam=0.0), {}),
        "TERM": Candidates(lambda n: eh.algorithms.term(work(n["rate"]), t=1.0), {}),
        "median": robust(aggregators.coordinate_median()),
        "Krum": robust(aggregators.krum(malicious)),
        "multi-Krum": robust(aggregators.multi_krum(malicious)),
        "clipping": robust(aggregators.clip()),
        "k-norm": robust(aggregators.norm_filter(malicious)),
        "k-loss": robust(aggregators.loss_filter(malicious)),
        "FedMGDA+": Candidates(
            lambda n: eh.algorithms.fedmgda(work(n["rate"]), epsilon=n["epsilon"]),
            {"epsilon": (0.0, 0.1, 1.0)},
        ),
        "finetuning": Candidates(lambda n: personal.finetune(*after(n)), {}),
        "EWC": Candidates(lambda n: personal.ewc(*after(n), lam=n["lam"]), {"lam": wide}),
        "SKL": Candidates(lambda n: personal.skl(*after(n), lam=n["lam"]), {"lam": wide}),
        "L2SGD": Candidates(lambda n: personal.l2sgd(work(n["rate"]), lam=n["lam"]), {"lam": wide}),
        "APFL": Candidates(
            lambda n: personal.apfl(work(n["rate"]), alpha=n["alpha"]),
            {"alpha": (0.25, 0.5, 0.75)},
        ),
        "Mapper": Candidates(lambda n: personal.mapper(work(n["rate"])), {}),
        "Per-FedAvg": Candidates(
            lambda n: personal.finetune(
                personal.per_fedavg(work(n["rate"]), alpha=n["alpha"]),
                work(n["rate"], epochs=50),
            ),
            {"alpha": (0.01, 0.1)},
        ),
        "pFedMe": Candidates(
            lambda n: personal.pfedme(work(n["rate"]), lam=n["lam"], inner_step=0.1),
            {"lam": (1.0, 5.0)},
        ),
        "Ditto": ditto(),
        "Ditto, dynamic": Candidates(lambda n: personal.dynamic_ditto(*around(n), strong_attack=strong), {}),
        "Ditto + clipping": ditto(aggregators.clip()),
        "Ditto + geometric median": ditto(aggregators.geometric_median()),
    }
