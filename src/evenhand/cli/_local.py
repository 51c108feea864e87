"""The clients' local work in ``evenhand run``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

from evenhand import local
from evenhand.errors import EvenhandError
from evenhand.types import Model

__all__ = ["LocalOptions"]


@dataclass(frozen=True)
class LocalOptions:
    """What a client does in one round."""

    lr: float = 0.1
    """the clients' step size η, of plain gradient descent"""
    epochs: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: 1)")] = None
    """passes E over a client's examples per round"""
    steps: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: not used)")] = None
    """batches per round, instead of --epochs"""
    batch_size: int | Literal["all"] = 10
    """examples per batch"""

    def work(self, model: Model) -> local.Work:
        """The local work, for one model."""
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise EvenhandError(f"--lr {self.lr} is not a step size: give a number above 0.")
        if self.epochs is not None and self.steps is not None:
            raise EvenhandError("--epochs and --steps exclude each other: give one of them.")
        epochs = 1 if self.epochs is None and self.steps is None else self.epochs
        size = None if self.batch_size == "all" else self.batch_size
        return local.sgd(model, self.lr, epochs=epochs, steps=self.steps, batch_size=size)

    @property
    def idle(self) -> list[str]:
        """The options that differ from their defaults."""
        return [
            f"--{name.replace('_', '-')} {value}"
            for name, value in vars(self).items()
            if value != vars(_DEFAULTS)[name]
        ]


_DEFAULTS = LocalOptions()
