"""What a client adds to secure sums: its part in each of them, the counts of a histogram, and the moments of columns.

Before a run on tables, clients agree on the scale of each column of numbers.  They add how many examples they have, the
sums of the numbers and of their squares, and how many numbers are neither 0 nor 1, all in whole numbers under masks.
The server learns the totals, and from them means and deviations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenhand.data import Column, FederatedDataset, Split
from evenhand.errors import EvenhandError
from evenhand.evaluation import private_metrics
from evenhand.network.keeping import StateStore
from evenhand.report import PrivateSummary
from evenhand.text import counted
from evenhand.wire.identities import Identity
from evenhand.wire.messages import Packet, PacketError, encode, whole
from evenhand.wire.secure_sums import Protection, SumSession
from evenhand.wire.sum_messages import OFFER, REVEAL, Occasion, terms_of

__all__ = [
    "COUNTED",
    "HISTOGRAM",
    "Scaling",
    "Summing",
    "histogram",
    "inner",
    "moments",
    "number_columns",
    "private_summary",
    "scaled",
    "scales",
    "words_of_moments",
]

NDArray = npt.NDArray[Any]
COUNTED = "accuracy"
"""The metric that is counted: it is in [0, 1], so that the edges of the bins are known."""
HISTOGRAM = -1
"""In place of the number of a phase: the sum is that of a histogram."""


# --- a client's part --------------------------------------------------------------------------------------------------


class Summing:
    """A client's part in secure sums, one after the other.

    Args:
      identity: what it signs with; None: it takes part in none.
      protection: what it asks of every sum.
    """

    def __init__(self, identity: Identity | None, protection: Protection) -> None:
        self._identity, self._protection = identity, protection
        self._session: SumSession | None = None

    def step(
        self, message: Packet, occasion: Occasion, numbers: Callable[[], NDArray], smallest: int = 0
    ) -> tuple[Packet, str]:
        """The answer to one step of a sum, and which step it was.

        Args:
          message: the server's, with the step inside it.
          occasion: the sum.
          numbers: what the client adds, when that is due.
          smallest: the fewest clients whose numbers may be in this sum, if they are more than in others.

        Raises:
          EvenhandError: the client refuses.
        """
        step = inner(message)
        if self._session is None or self._session.occasion != occasion:
            before = None if self._session is None else self._session.occasion
            # Others count on a client that signs once in a sum.
            if before is not None and (before.tag, before.number) > (occasion.tag, occasion.number):
                raise EvenhandError(
                    "The server asks for a secure sum that was given up before a later one began."
                )
            if self._identity is None:
                raise EvenhandError(
                    "This client has no identity to sign with, so it takes part in no secure sum."
                )
            least = max(smallest, self._protection.smallest)
            protection = self._protection._replace(smallest=least)
            self._session = SumSession(self._identity, occasion, numbers, protection)
        answer = self._session.answer(step)
        return Packet(
            "summed", {"kind": answer.kind, "fields": dict(answer.fields)}, answer.arrays
        ), step.kind

    def is_new(self, occasion: Occasion) -> bool:
        """Whether this sum is not the one in progress.

        Raises:
          EvenhandError: it was given up before that one began.  Others count on a client that signs once in a sum.
        """
        if self._session is None:
            return True
        before = self._session.occasion
        if (before.tag, before.number) > (occasion.tag, occasion.number):
            raise EvenhandError(
                "The server asks for a secure sum that was given up before a later one began."
            )
        return before != occasion


def inner(message: Packet) -> Packet:
    """The step of a sum that a message of the server carries."""
    step, count = message.fields["inner"], whole(message.fields, "count")
    return Packet(str(step["kind"]), dict(step["fields"]), message.arrays[:count])


class Scaling:
    """A client's part in the secure sum from which the scale of columns of numbers follows.

    It adds them in sums of the same clients only: the difference of two others would be what some of them have.

    Args:
      data: its examples, with columns of numbers as they are.
      summing: its part in secure sums.
      store: where it notes with whom it has added them.
      cohort: the fewest clients with whom it does.
    """

    def __init__(self, data: FederatedDataset, summing: Summing, store: StateStore, cohort: int) -> None:
        self._data, self._summing, self._store, self._cohort = data, summing, store, cohort
        self._clients: list[int] | None = None
        self._chosen: tuple[Occasion, list[int]] | None = None

    def restore(self, message: Packet) -> None:
        """Takes up what the store has."""
        self._clients = [int(client) for client in message.fields["clients"]]

    def step(self, message: Packet) -> Packet:
        """The answer to one step.

        Raises:
          EvenhandError: the client refuses.
          OSError: the store cannot be written.
        """
        step = inner(message)
        run = str(step.fields["run"])
        occasion = Occasion(run, run, 0, whole(step.fields, "number"))
        if step.kind == OFFER:
            self._chosen = occasion, list(terms_of(step).clients)
        if self._chosen is None or self._chosen[0] != occasion:
            raise EvenhandError("The server asks for a step of a sum that this client has not begun.")
        chosen = self._chosen[1]
        if self._clients not in (None, chosen):
            raise EvenhandError(
                f"This client has added its columns in a sum of clients {self._clients}, and adds them in no other sum."
            )
        if step.kind == REVEAL and self._clients is None:
            # On disk before shares leave the client, so that no restart makes it forget.
            self._store.write(encode(Packet("moments", {"clients": chosen})))
            self._clients = chosen

        def numbers() -> NDArray:
            return words_of_moments(moments(self._data))

        # All of them, or nobody.
        return self._summing.step(message, occasion, numbers, max(len(chosen), self._cohort))[0]


# --- a histogram of one metric ----------------------------------------------------------------------------------------


def histogram(value: float) -> NDArray:
    """What a client adds to the histogram of its accuracy; NaN without examples."""
    return private_metrics.cells(value, not np.isnan(value), private_metrics.edges())


def private_summary(counts: NDArray, clients: int, split: str) -> PrivateSummary:
    """The statistics of the accuracy over so many clients, from the sum of what they have added.

    Raises:
      EvenhandError: there are too few clients, or the counts are impossible.
    """
    edges = private_metrics.edges()
    return PrivateSummary(
        private_metrics.statistics(counts, edges, clients=clients),
        metric=COUNTED,
        split=split,
        clients=counted(clients, "client"),
        bins=len(edges) - 1,
        largest=float(edges[-1]),
    )


# --- the scale of columns of numbers ----------------------------------------------------------------------------------

_FRACTION = 2.0**40
"""Parts of one that are counted; the whole part of a number is counted apart."""


def number_columns(data: FederatedDataset) -> list[int]:
    """The positions of the inputs that are numbers of a table whose scale is to be agreed on."""
    positions, place = list[int](), 0
    if data.features is None or not data.features.standardized:
        return positions
    for column in data.features.columns:
        if column.kind == "number":
            positions.append(place)
        place += len(column.inputs)
    return positions


def moments(data: FederatedDataset) -> NDArray:
    """Examples, sums, sums of squares and numbers that are neither 0 nor 1, of the training examples, float64."""
    x = np.asarray(data.train.x, np.float64)[:, number_columns(data)]
    others = np.sum((x != 0) & (x != 1), axis=0)
    return np.concatenate([[len(x)], x.sum(axis=0), np.square(x).sum(axis=0), others])


def words_of_moments(values: NDArray) -> NDArray:
    """Real numbers as whole ones modulo ``2**64``, two for each: whole parts first, then fractions.

    Raises:
      EvenhandError: a number is too large.
    """
    if np.max(np.abs(values), initial=0.0) >= 2.0**49:
        raise EvenhandError(
            "A column has numbers too large to be added in secret: divide it by a power of ten."
        )
    whole_part = np.floor(values)
    fraction = np.round((values - whole_part) * _FRACTION)
    return np.concatenate([whole_part.astype(np.int64), fraction.astype(np.int64)]).view(np.uint64)


def scales(total: NDArray, rows: int) -> list[tuple[float, float]]:
    """The mean and the deviation of each column, from the total of :func:`words_of_moments` over all clients.

    Columns of zeros and ones are left as they are, and get 0 and 1.

    Raises:
      EvenhandError: no clients with so many ``rows`` together have such a total.
    """
    whole_part, fraction = np.split(total.view(np.int64).astype(np.float64), 2)
    values = whole_part + fraction / _FRACTION
    count, (sums, squares, others) = values[0], np.split(values[1:], 3)
    means = sums / rows
    variances = squares / rows - np.square(means)
    # The variance of a column that is the same everywhere is 0 up to rounding.
    is_possible = (variances >= -1e-9 * (1 + np.square(means))) & (others >= 0) & (others <= rows)
    if count != rows or not np.all(is_possible):
        raise EvenhandError(
            f"What clients have added up of their columns is not possible for their {rows:,} training examples, so a "
            "client has added false numbers: correct it, or write standardize = false into each client's [data], and "
            "start the server again."
        )
    deviations = np.sqrt(np.maximum(variances, 0.0))
    return [
        (float(mean), float(deviation)) if other > 0 else (0.0, 1.0)
        for mean, deviation, other in zip(means, deviations, others, strict=True)
    ]


def scaled(data: FederatedDataset, scale: Sequence[Sequence[float]] | None) -> FederatedDataset:
    """The data with columns of numbers on the scale that was agreed on; None: on none.

    Raises:
      PacketError: it is that of other columns.
    """
    places, features, scale = number_columns(data), data.features, scale or ()
    if len(scale) != len(places):
        raise PacketError(
            f"The scale has {len(scale)} columns of numbers, and the data have {len(places)}: write the same columns "
            "and the same standardize into the [data] of each client's file."
        )
    if features is None or not places:
        return data
    means, deviations = (np.array([pair[i] for pair in scale], np.float64) for i in (0, 1))

    def split(part: Split) -> Split:
        x = np.array(part.x, np.float64)
        # A column that is the same everywhere says nothing, and is left out, as in a simulation.
        safe = np.where(deviations > 0, deviations, 1.0)
        x[:, places] = np.where(deviations > 0, (x[:, places] - means) / safe, 0.0)
        return Split(x.astype(np.float32), part.y, part.offsets)

    pairs = iter(zip(means, deviations, strict=True))

    def column(before: Column) -> Column:
        if before.kind != "number":
            return before
        mean, deviation = next(pairs)
        return before._replace(mean=float(mean), deviation=float(deviation))

    features = features._replace(columns=tuple(map(column, features.columns)))
    return replace(
        data, train=split(data.train), valid=split(data.valid), test=split(data.test), features=features
    )
