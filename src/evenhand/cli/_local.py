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

    def solver(self, model: Model) -> local.Solver:
        """The local work, for one model."""
        epochs, steps = self.amount()
        return local.sgd(
            model, client_opt=self.optimiser(), epochs=epochs, steps=steps, batch_size=self.rows()
        )

    def optimiser(self) -> optax.GradientTransformation:
        """The clients' optimiser."""
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise EvenhandError(f"--lr {self.lr} is not a step size: give a number above 0.")
        return optax.sgd(self.lr)

    def one_gradient(self, method: str) -> None:
        """For a method whose clients send one gradient over all their rows: other work would be ignored.

        Raises:
          EvenhandError: other work was asked for, or --lr is not a step size.
        """
        self.optimiser()
        asked = {"--epochs": self.epochs, "--steps": self.steps}
        given = [name for name, value in asked.items() if value is not None]
        given += ["--batch-size"] if self.batch_size != LocalOptions.batch_size else []
        if given:
            raise EvenhandError(
                f"{method} takes one gradient over all of a client's rows per round: leave {' and '.join(given)} out."
            )

    def amount(self) -> tuple[int | None, int | None]:
        """``(epochs, steps)``, one of which is None."""
        if self.epochs is not None and self.steps is not None:
            raise EvenhandError("--epochs and --steps exclude each other: give one of them.")
        return (1 if self.epochs is None and self.steps is None else self.epochs), self.steps

    def rows(self) -> int | None:
        """Rows per batch; None: all of a client's."""
        return None if self.batch_size == "all" else self.batch_size


def plain_server(server_lr: float) -> optax.GradientTransformation:
    """The server's step on the mean change."""
    if not (server_lr > 0 and math.isfinite(server_lr)):
        raise EvenhandError(f"--server-lr {server_lr} is no step size: give a number above 0.")
    return optax.sgd(server_lr)
