"""What came of one run of a study."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

from evenhand.report import RunView, honest, may_win
from evenhand.simulation import Run
from evenhand.studies._plan import Setting
from evenhand.studies._tried import NDArray

__all__ = ["Outcome", "Status"]

Status: TypeAlias = Literal["done", "diverged", "failed", "stopped"]


class Outcome(NamedTuple):
    """One run of a study.

    Attributes:
      setting: the method and its hyper-parameters.
      seed: the run's seed.
      status: ``"done"``, ``"diverged"`` (on training or validation examples, so that it cannot be chosen),
        ``"failed"``, or ``"stopped"`` before its last round, by :class:`Halving`.
      reason: why it is not done, in a sentence; of a run that is done, what is wrong with its test numbers, which
        choose nothing; empty otherwise.
      view: what reports show of it; None where it failed.
      measures: name -> a number for each evaluation, from the study's ``measure``.
    """

    setting: Setting
    seed: int
    status: Status
    reason: str
    view: RunView | None
    measures: Mapping[str, NDArray] = MappingProxyType({})

    @property
    def seen(self) -> RunView | None:
        """The run as the study's statistics see it: under attack, its honest clients only, where there are any."""
        return None if self.view is None else honest(self.view)

    def is_sound(self, splits: Collection[str]) -> bool:
        """Whether the run ended, or came to a rung, with finite numbers on these splits and did not diverge on them."""
        return (
            self.status not in ("failed", "stopped") and self.view is not None and may_win(self.view, splits)
        )

    @staticmethod
    def of(
        setting: Setting,
        seed: int,
        result: Run | Exception,
        measures: Mapping[str, NDArray] = MappingProxyType({}),
        *,
        new_data: bool = False,
    ) -> Outcome:
        """From the last evaluation of a run, or from what ended it before; ``new_data``: each seed has its own data."""
        if isinstance(result, Exception):
            reason = str(result) or type(result).__name__
            return Outcome(setting, seed, "failed", reason, None)
        numbers = {
            name: value
            for name, value in setting.numbers.items()
            if isinstance(value, bool | int | float | str)
        }
        config = {"method": setting.method, **numbers, **setting.case, "seed": seed}
        config |= {"data_seed": seed} if new_data else {}
        view = result.view(str(setting), config)
        if may_win(view):
            return Outcome(setting, seed, "done", "", view, measures)
        sentences = [finding.sentence for finding in view.findings if finding.kind == "diverged"]
        reason = (*sentences, "A loss or metric is not finite.")[0]
        status = "done" if may_win(view, ("train", "valid")) else "diverged"
        return Outcome(setting, seed, status, reason, view, measures)
