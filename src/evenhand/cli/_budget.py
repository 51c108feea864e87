"""``--epsilon``: the noise that a budget of privacy calls for, or why it does not suffice."""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError, EvenhandWarning
from evenhand.expressions import ROOMS, canonical, factories, parameters
from evenhand.privacy import account, spent, usual_delta
from evenhand.types import Algorithm, Privacy

__all__ = ["NOISE", "Budget", "budget", "with_noise"]

NOISE = "noise_multiplier"
_LEAST_NOISE, _MOST_NOISE, _MOST_CLIENTS = 1e-3, 2.0**14, 10**9


class Budget(NamedTuple):
    """What a run may spend.

    Attributes:
      epsilon: at most.
      delta: None: the usual one for the number of clients or examples.
      rounds: in which it is spent.
    """

    epsilon: float
    delta: float | None
    rounds: int

    def expression(self, text: str, data: FederatedDataset, built: Callable[[str], Algorithm]) -> str:
        """The method with the least noise that the budget allows, to about three digits, wherever none is given.

        Args:
          text: an expression.
          data: the clients.
          built: the method that an expression stands for.

        Raises:
          EvenhandError: the method promises no privacy, or no noise suffices.
        """
        if with_noise(text, 1.0) == text:
            return text
        refusal: list[EvenhandError] = []

        def enough(noise: float) -> bool:
            try:
                method = built(with_noise(text, noise))
            except EvenhandError as error:  # settings that bear only so much noise, or so little
                if noise == 1.0:
                    raise
                refusal[:] = [error]
                return noise > 1.0
            refusal.clear()
            return self._spent(method, data) <= self.epsilon

        with warnings.catch_warnings():  # of noise that is only tried
            warnings.simplefilter("ignore", EvenhandWarning)
            least = _least(enough)
        if least is None or refusal:
            why = f": {refusal[0]}" if refusal else ", with any noise: give a larger one, or fewer --rounds."
            raise EvenhandError(
                f"--epsilon {self.epsilon:g} is out of reach of {text:.80} after {self.rounds} rounds{why}"
            )
        return with_noise(text, least)

    def checked(self, method: Algorithm, data: FederatedDataset, *, resumed: bool = False) -> Algorithm:
        """The method, whose guarantee is stated at the budget's delta, after a check that it stays within the budget.

        Args:
          method: the method.
          data: the clients.
          resumed: whether the run has begun, and its noise can no longer be changed.

        Raises:
          EvenhandError: it does not, or guarantees no privacy; the sentence says what would do.
        """
        epsilon, clients = self._spent(method, data), data.num_clients
        assert method.privacy is not None
        if epsilon <= self.epsilon:
            return method._replace(privacy=method.privacy._replace(delta=self.delta))
        drawn = method.privacy.unit == "client" and method.sampling.scheduled is None
        if resumed:
            most = self._rounds(method, data)
            cure = (
                f"{most} rounds are the most that it affords with the noise that this run began with. For "
                f"{self.rounds}, train anew in another folder without a {NOISE}"
            )
        else:
            cure = f"leave its {NOISE} out, and the least that suffices is found"
            if drawn and (needed := self._clients(method.privacy, clients)) is not None:
                cure += (
                    f"; or with cohorts of this size out of {needed:,} clients, where there are {clients:,}"
                )
        raise EvenhandError(
            f"--epsilon {self.epsilon:g} does not suffice for {method.name:.80}, which spends {epsilon:.4g} in "
            f"{self.rounds} rounds at a delta of {self._delta(method.privacy, data):g}: {cure}."
        )

    def _rounds(self, method: Algorithm, data: FederatedDataset) -> int:
        """The most rounds that stay within the budget."""
        low, high = 0, self.rounds
        while high - low > 1:
            middle = (low + high) // 2
            affordable = self._replace(rounds=middle)._spent(method, data) <= self.epsilon
            low, high = (middle, high) if affordable else (low, middle)
        return low

    def _spent(self, method: Algorithm, data: FederatedDataset) -> float:
        if method.privacy is None:
            raise EvenhandError(
                f"--epsilon is for methods that promise privacy, and {method.name:.80} does not: try "
                "'dp_fedavg(clip=1)', or put private() around a method with a noisy aggregator."
            )
        units = data.num_clients if method.privacy.unit == "client" else data.train.rows
        return account(method.privacy, rounds=self.rounds, units=units, delta=self.delta).epsilon

    def _delta(self, privacy: Privacy, data: FederatedDataset) -> float:
        units = data.num_clients if privacy.unit == "client" else data.train.rows
        return usual_delta(units) if self.delta is None else self.delta

    def _clients(self, privacy: Privacy, clients: int) -> int | None:
        """How many clients would afford the method with the cohorts that it has; None: no number would."""

        def affords(number: int) -> bool:
            share = clients / number
            releases = [
                release._replace(rate=release.rate * share) for release in privacy.releases(self.rounds)
            ]
            delta = usual_delta(number) if self.delta is None else self.delta
            return spent(releases, delta=delta).epsilon <= self.epsilon

        high = 2 * clients
        while not affords(high):
            high *= 2
            if high > _MOST_CLIENTS:
                return None
        low = high // 2
        while high - low > max(1, low // 200):
            middle = (low + high) // 2
            low, high = (low, middle) if affords(middle) else (middle, high)
        return high


def budget(epsilon: float | None, delta: float | None, rounds: int) -> Budget | None:
    """The budget that ``--epsilon`` and ``--delta`` give; None without them.

    Raises:
      EvenhandError: a delta without an epsilon, or a number out of range.
    """
    if epsilon is None:
        if delta is not None:
            raise EvenhandError("--delta goes with --epsilon: give both, or read epsilon off the report.")
        return None
    if not 0 < epsilon < math.inf or not (delta is None or 0 < delta < 1):
        raise EvenhandError(
            f"--epsilon {epsilon} --delta {delta}: give a finite epsilon above 0, and a delta between 0 and 1."
        )
    return Budget(epsilon, delta, rounds)


def _least(enough: Callable[[float], bool]) -> float | None:
    """About the least noise that is enough, to four digits, rounded up and tried last; None: none is."""
    high = 1.0
    while not enough(high):
        high *= 2.0
        if high > _MOST_NOISE:
            return None
    low = high / 2.0 if high > 1.0 else 0.0
    while high - low > 5e-4 * high and high > _LEAST_NOISE:
        middle = (low + high) / 2.0
        low, high = (low, middle) if enough(middle) else (middle, high)
    unit = 10.0 ** (math.floor(math.log10(high)) - 3)
    rounded = float(f"{math.ceil(high / unit) * unit:.4g}")
    return rounded if enough(rounded) else None


def with_noise(text: str, noise: float) -> str:
    """The expression with this noise multiplier wherever a factory needs one and has none.

    Example:
      >>> with_noise("ditto(dp_fedavg(clip=1), lam=1)", 0.5)
      'ditto(dp_fedavg(clip=1, noise_multiplier=0.5), lam=1)'
    """
    tree = ast.parse(canonical(text), mode="eval")
    names = {name for room in ROOMS for name, made in factories(room).items() if NOISE in parameters(made)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name), keywords=words) if name in names:
                if all(word.arg != NOISE for word in words):
                    words.append(ast.keyword(NOISE, ast.Constant(noise)))
            case _:
                pass
    return canonical(ast.unparse(tree))
