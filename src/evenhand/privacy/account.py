"""What a run has spent of its privacy, and what it promises."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from evenhand.errors import EvenhandError
from evenhand.privacy.accounting import spent
from evenhand.text import counted
from evenhand.types import Privacy, Release

__all__ = ["Account", "account", "usual_delta"]


class Account(NamedTuple):
    r"""A promise of differential privacy with its numbers, after so many rounds.

    Attributes:
      epsilon: :math:`\varepsilon`; infinite where nothing hides what is given away.
      delta: :math:`\delta`.
      accountant: what found :math:`\varepsilon`.
      rounds: how many.
      unit: what is protected, a ``"client"`` or an ``"example"``.
      neighbours: the relation between data sets that cannot be told apart.
      releases: all that was given away, and under how much noise.
      released: what that is.
      public: what is taken to be known already.
      unprotected: what the promise does not cover.
    """

    epsilon: float
    delta: float
    accountant: Literal["rdp", "pld"]
    rounds: int
    unit: str
    neighbours: str
    releases: tuple[Release, ...]
    released: tuple[str, ...]
    public: tuple[str, ...]
    unprotected: tuple[str, ...]

    def in_words(self) -> dict[str, Any]:
        """The same as numbers and sentences, for reports and files."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "accountant": self.accountant,
            "unit": self.unit,
            "neighbours": self.neighbours,
            "releases": [_words(release) for release in self.releases],
            "released": list(self.released),
            "public": list(self.public),
            "unprotected": list(self.unprotected),
        }

    def __str__(self) -> str:
        return (
            f"({self.epsilon:.4g}, {self.delta:g})-differentially private for {self.neighbours}, "
            f"after {counted(self.rounds, 'round')}"
        )


def _words(release: Release) -> str:
    sample = {
        "poisson": f"each taking part with probability {release.rate:g}, independently",
        "fixed": f"a share of {release.rate:g} of them, drawn without replacement",
    }[release.sampling]
    sample = "all of them" if release.rate == 1.0 else sample
    return f"{release.times:,} times, noise of {release.noise_multiplier:g} times the sensitivity; {sample}"


def account(
    privacy: Privacy,
    *,
    rounds: int,
    units: int,
    delta: float | None = None,
    accountant: Literal["rdp", "pld"] = "rdp",
) -> Account:
    r"""What a method has spent after some rounds.

    Args:
      privacy: its promise.
      rounds: how many.
      units: clients or training examples, whichever are protected.
      delta: :math:`\delta`; None: the promise's own, or else :func:`usual_delta`.
      accountant: ``"rdp"`` or ``"pld"``, as in :func:`evenhand.privacy.epsilon`.

    Raises:
      EvenhandError: ``delta`` outside (0, 1).

    Example:
      >>> import evenhand as eh
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1)
      >>> method = eh.privacy.dp_fedavg(work, clip=1.0, noise_multiplier=1.0, rate=0.01)
      >>> assert method.privacy is not None
      >>> found = account(method.privacy, rounds=1000, units=10_000, delta=1e-5)
      >>> round(found.epsilon, 4), found.unit
      (2.1014, 'client')
    """
    delta = privacy.delta if delta is None else delta
    delta = usual_delta(units) if delta is None else delta
    if not 0.0 < delta < 1.0:
        raise EvenhandError(f"account(delta={delta}): give a probability between 0 and 1, below 1 / {units}.")
    releases = privacy.releases(rounds)
    return Account(
        spent(releases, delta=delta, accountant=accountant).epsilon,
        delta,
        accountant,
        rounds,
        privacy.unit,
        privacy.neighbours,
        releases,
        privacy.released,
        privacy.public,
        privacy.unprotected,
    )


def usual_delta(units: int) -> float:
    r"""The largest power of ten that is at most one in so many units: the chance of a breach should be below that.

    Edge cases: 0.1 for a single unit, which has nobody to hide among.

    Example:
      >>> usual_delta(100), usual_delta(25_000)
      (0.01, 1e-05)

    Source: the rule of the code of Li et al., *Differentially Private Adaptive Optimization with Delayed
    Preconditioners*, ICLR 2023.
    """
    digits = len(str(max(units - 1, 1)))
    return float(f"1e-{digits}")
