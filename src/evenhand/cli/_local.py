"""What ``evenhand run`` lets clients do in a round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import optax
from tyro.conf import arg

from evenhand import local
from evenhand.errors import EvenhandError
from evenhand.types import Model

__all__ = ["LocalOptions", "plain_server"]


@dataclass(frozen=True)
class LocalOptions:
    """What a client does in one round."""

    lr: float = 0.1
    """the clients' step η of plain gradient descent"""
    epochs: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: 1)")] = None
    """passes E over a client's rows per round"""
    steps: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: not used)")] = None
    """in place of --epochs: batches per round"""
    batch_size: int | Literal["all"] = 10
    """rows per batch"""

    def work(self, model: Model) -> local.Work:
        """The local work, for one model."""
        self._check_step()
        if self.epochs is not None and self.steps is not None:
            raise EvenhandError("--epochs and --steps exclude each other: give one of them.")
        epochs = 1 if self.epochs is None and self.steps is None else self.epochs
        rows = None if self.batch_size == "all" else self.batch_size
        return local.sgd(model, self.lr, epochs=epochs, steps=self.steps, batch_size=rows)

    def _check_step(self) -> None:
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise EvenhandError(f"--lr {self.lr} is not a step size: give a number above 0.")

    def one_gradient(self, method: str) -> None:
        """For a method whose clients send one gradient over all their rows: other work would be ignored.

        Raises:
          EvenhandError: other work was asked for, or --lr is not a step size.
        """
        self._check_step()
        self._refuse(self._given(), f"{method} takes one gradient over all of a client's rows per round")

    def not_given(self, reason: str) -> None:
        """For a method with local work of its own: that of the options would be ignored.

        Raises:
          EvenhandError: some was asked for.
        """
        self._refuse([*(["--lr"] if self.lr != LocalOptions.lr else []), *self._given()], reason)

    def _given(self) -> list[str]:
        asked = {"--epochs": self.epochs, "--steps": self.steps}
        given = [name for name, value in asked.items() if value is not None]
        return given + (["--batch-size"] if self.batch_size != LocalOptions.batch_size else [])

    def _refuse(self, given: list[str], reason: str) -> None:
        if given:
            raise EvenhandError(f"{reason}: leave {' and '.join(given)} out.")


def plain_server(server_lr: float) -> optax.GradientTransformation:
    """The server's step on the mean change."""
    if not (server_lr > 0 and math.isfinite(server_lr)):
        raise EvenhandError(f"--server-lr {server_lr} is not a step size: give a number above 0.")
    return optax.sgd(server_lr)
