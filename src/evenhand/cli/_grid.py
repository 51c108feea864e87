"""The clients' local work in ``evenhand study``: options of which each may have several values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from tyro.conf import arg

from evenhand.cli._local import LocalOptions
from evenhand.errors import EvenhandError
from evenhand.local import Work
from evenhand.types import Model

__all__ = ["GridOptions", "several"]


@dataclass(frozen=True)
class GridOptions:
    """What a client does in one round; several values, as in 0.01,0.1, are tried with every method."""

    lr: Annotated[str, arg(metavar="FLOAT,...")] = "0.1"
    """step sizes η of the clients"""
    epochs: Annotated[str | None, arg(metavar="INT,...", help_behavior_hint="(default: 1)")] = None
    """passes E over a client's examples per round"""
    steps: Annotated[str | None, arg(metavar="INT,...", help_behavior_hint="(default: not used)")] = None
    """batches per round, instead of --epochs"""
    batch_size: Annotated[str, arg(metavar="INT,...")] = "10"
    """examples per batch; all: a client's examples at once"""

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The options that have several values, and the step size, so that more step sizes only add settings."""
        return {name: of for name, of in self._values().items() if len(of) > 1 or name == "lr"}

    def work(self, model: Model, chosen: Mapping[str, Any]) -> Work:
        """The local work with one value of each option."""
        values = {name: of[0] for name, of in self._values().items()} | {
            name: value for name, value in chosen.items() if name in self.axes
        }
        options = LocalOptions(values["lr"], values.get("epochs"), values.get("steps"), values["batch_size"])
        return options.work(model)

    def _values(self) -> dict[str, list[Any]]:
        size: Callable[[str], Any] = lambda text: text if text == "all" else int(text)  # noqa: E731
        readers: dict[str, Callable[[str], Any]] = {
            "lr": float,
            "epochs": int,
            "steps": int,
            "batch_size": size,
        }
        texts = {name: text for name, text in vars(self).items() if text is not None}
        return {name: several(name, text, readers[name]) for name, text in texts.items()}


def several(name: str, text: str, read: Callable[[str], Any]) -> list[Any]:
    """The values that an option has.

    Raises:
      EvenhandError: they cannot be read, or one of them is given twice.
    """
    try:
        found = [read(each.strip()) for each in text.removesuffix(",").split(",")]
    except ValueError:
        found = []
    if not found or len(set(found)) < len(found):
        raise EvenhandError(
            f"--{name.replace('_', '-')} {text!r:.40} is not understood: give a number, or distinct ones as in 1,2."
        )
    return found
