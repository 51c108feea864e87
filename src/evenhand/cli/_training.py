"""How ``evenhand run`` trains, and where it writes the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

__all__ = ["TrainingOptions"]

_EVALUATIONS = 50
_DEFAULT_EVERY = f"(default: {_EVALUATIONS} times a run)"
_DEFAULT_OUT = "(default: runs/METHOD-DATA-SEED)"


@dataclass(frozen=True)
class TrainingOptions:
    """How long to train, with which clients, and where to write the run."""

    rounds: int = 50
    """rounds of communication T"""
    cohort: int | Literal["all"] = "all"
    """clients drawn per round m"""
    stragglers: float = 0.0
    """share of each cohort that is slow and does only part of its work"""
    systems: Annotated[str | None, arg(metavar="SYSTEMS", help_behavior_hint="(default: none)")] = None
    """which clients are slow or drop out, instead of --stragglers: 'chain(stragglers(0.5), dropouts(0.1))'"""
    attack: Annotated[str | None, arg(metavar="ATTACK", help_behavior_hint="(default: none)")] = None
    """what malicious clients do: 'sign_flip(0.2)' for a fifth of the clients; see `evenhand list attacks`"""
    seed: int = 0
    """seed of the initial model, cohorts, batches and stragglers"""
    eval_every: Annotated[int | None, arg(metavar="INT", help_behavior_hint=_DEFAULT_EVERY)] = None
    """rounds between two evaluations of every client"""
    eval_clients: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: all)")] = None
    """evaluate only so many clients, drawn once per run; metrics, clients.csv and report cover these"""
    metrics: Annotated[str | None, arg(metavar="METRIC,...", help_behavior_hint="(default: none)")] = None
    """further metrics of each client, measured after the last round: auc, macro_f1, ...; see `evenhand list metrics`"""
    untrained: Literal["global", "initial"] = "global"
    """what clients are served whose personal model never trained: the current global model, or the initial model"""
    epsilon: Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="(default: no limit)")] = None
    """what a private method may spend; where its noise multiplier is left out, the least that suffices is found"""
    delta: Annotated[
        float | None,
        arg(metavar="FLOAT", help_behavior_hint="(default: a power of ten, at most 1 / clients)"),
    ] = None
    """the probability that goes with --epsilon"""
    unseen: float = 0.0
    """share of the clients set aside, to see how the method serves clients that it never saw"""
    lanes: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: from the device)")] = None
    """clients trained side by side"""
    checkpoint: float | Literal["off"] = 10.0
    """seconds between two saves of the state, for `evenhand resume`; 0: at each evaluation; off: none"""
    keep: str = "last"
    """which evaluated round the folder describes: last, or best:SPLIT:STATISTIC, such as best:valid:worst10"""
    keep_personal: bool = False
    """keep the personal models also with --checkpoint off or --keep best:..., or if they take more than 4 GB"""
    watch: Annotated[str | None, arg(metavar="TRACKER,...", help_behavior_hint="(default: none)")] = None
    """who else is told what is measured: tensorboard (files in the folder), mlflow, wandb"""
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint=_DEFAULT_OUT)] = None
    """the run folder"""
    overwrite: bool = False
    """replace an earlier run in that folder"""
    quiet: bool = False
    """print nothing but errors"""
    config: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """start from the config.json of an earlier run; options given here take precedence"""

    @property
    def every(self) -> int:
        """Rounds between two evaluations."""
        return max(1, self.rounds // _EVALUATIONS) if self.eval_every is None else self.eval_every
