"""Which clients are malicious, what becomes of their rows, and what they send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand import tree
from evenhand.errors import EvenhandError, perhaps, whole_number
from evenhand.streams import Keys, Purpose, stream
from evenhand.types import Array, Attack, ClientData, Cohort, Key, PyTree, Report, Sum, Upload

NDArray = npt.NDArray[Any]


def malicious_clients(attack: Attack | None, clients: int | Sequence[str], seed: int) -> NDArray:
    """Which of the clients are malicious, bool ``(clients,)``; ``clients`` are their ids, or only how many there are.

    Raises:
      EvenhandError: the attack names clients that do not exist, or a share outside [0, 1], or both a share and clients.
    """
    ids = () if isinstance(clients, int) else clients
    clients = clients if isinstance(clients, int) else len(clients)
    malicious = np.zeros(clients, bool)
    if attack is None:
        return malicious
    if not 0.0 <= attack.fraction <= 1.0:
        raise EvenhandError(
            f"Attack(fraction={attack.fraction}): the share of malicious clients must lie in [0, 1]."
        )
    whole_number("Attack(first=)", attack.first, 1)
    if attack.last is not None:
        whole_number("Attack(last=)", attack.last, attack.first)
    if attack.clients is not None:
        if attack.fraction:
            raise EvenhandError("Attack() got both fraction= and clients=: give one of them.")
        malicious[[_position(client, ids, clients) for client in attack.clients]] = True
        return malicious
    rng = np.random.default_rng((seed, int(Purpose.MALICIOUS)))
    count = int(attack.fraction * clients + 1e-9)  # 29 % of 100 are 29, not 28.999999999999996
    malicious[rng.choice(clients, count, replace=False)] = True
    return malicious


def _position(client: int | str, ids: Sequence[str], clients: int) -> int:
    """The position of a client that an attack names."""
    if not isinstance(client, str):
        return whole_number("Attack(clients=)", client, 0, clients - 1)
    if client not in ids:
        place = (
            "here clients have positions only"
            if not ids
            else f"there is no such client{perhaps(client, ids)}"
        )
        raise EvenhandError(
            f"Attack(clients={client!r:.60}): {place}; give ids, or positions from 0 to {clients - 1}."
        )
    return ids.index(client)


def poisoned(
    rows: Callable[[Any, Any, Any], tuple[Any, Any]], x: NDArray, y: NDArray, seed: int, client: int
) -> tuple[NDArray, NDArray]:
    """What the rows of a malicious client become; its draws depend on the run's seed and the client alone."""
    new_x, new_y = rows(x, y, np.random.default_rng((seed, int(Purpose.ATTACK), client)))
    if np.shape(new_x) != x.shape or np.shape(new_y) != y.shape:
        raise EvenhandError(
            f"Attack(rows=...) made rows of shape {np.shape(new_x)} with labels {np.shape(new_y)} from "
            f"{x.shape} and {y.shape}: it must keep the shapes."
        )
    return new_x, new_y


def fresh_data(
    attack: Attack | None, data: ClientData, malicious: Array, client: Array, round: Array | int, key: Key
) -> ClientData:
    """The examples of ``client`` in ``round``, counted from 0: as they are unless it is one of the ``malicious``.

    ``key`` is the client's own.
    """
    if attack is None or attack.fresh is None:
        return data
    own = own_rows(data)
    # Numbered: false uploads (0) and reports (1) draw from other streams of the same key.
    fresh = attack.fresh(own.x, own.y, own.size, stream(key, Purpose.ATTACK, 2))
    x, y = tree.select(malicious[client] & _is_on(attack, round), fresh, (own.x, own.y))
    return own._replace(x=x, y=y)


def own_rows(data: ClientData) -> ClientData:
    """A copy of a client's rows alone, ``capacity`` of them; those past ``size`` repeat its first one."""
    # As many rows as the largest client has, since the shape is the same for all clients of a program.
    position = jnp.arange(data.capacity, dtype=jnp.int32)
    index = data.start + jnp.where(position < data.size, position, 0)
    return data._replace(x=data.x[index], y=data.y[index], start=jnp.zeros_like(data.start))


def false_report(
    attack: Attack | None, report: Report, malicious: Array, round: Array | int, key: Key
) -> Report:
    """What a client reports in ``round``, counted from 0: ``report`` unless it is ``malicious``; ``key`` is its own."""
    if attack is None or attack.report is None:
        return report
    # Made for honest clients, too: who is malicious is known only when the compiled round runs.
    false = attack.report(report, stream(key, Purpose.ATTACK, 1))
    return tree.select(malicious & _is_on(attack, round), false, report)


def false_delta(
    attack: Attack | None, delta: PyTree, malicious: Array, round: Array | int, key: Key
) -> PyTree:
    """What a client sends in ``round``, counted from 0: ``delta`` unless it is ``malicious``; ``key`` is its own."""
    if attack is None or attack.upload is None:
        return delta
    return tree.select(
        malicious & _is_on(attack, round), attack.upload(delta, stream(key, Purpose.ATTACK)), delta
    )


def lifted(
    attack: Attack | None,
    aggregator: Sum,
    upload: Upload,
    public: PyTree,
    malicious: Array,
    round: Array | int,
    key: Key,
) -> PyTree:
    """What a client adds to the sum in one pass of ``round``, counted from 0; ``key`` is its own for that pass.

    Raises:
      EvenhandError: the attack sends false numbers into sums of whole numbers that stand for no real ones.
    """
    honest = aggregator.lift(upload, public, key)
    if attack is None or attack.lifted is None:
        return honest
    whole = aggregator.summation
    numbers = aggregator.lift if whole is None else whole.numbers
    if numbers is None:
        raise EvenhandError(
            "Attack(lifted=...) replaces real numbers in a sum, and this aggregator sends none: take secure(...) of a "
            "single method, or an aggregator that needs sums only."
        )
    false = attack.lifted(numbers(upload, public, key), public, stream(key, Purpose.ATTACK))
    if whole is not None and whole.anything is not None:
        false = whole.anything(false, stream(key, Purpose.ATTACK, 1))
    return tree.select(malicious & _is_on(attack, round), false, honest)


def colluding(
    attack: Attack,
    uploads: Upload,
    malicious: Array,
    cohort: Cohort,
    keys: Keys,
    round: Array | int,
    phase: int,
) -> Upload:
    """The cohort's uploads, leading axis ``m``, with those of malicious clients as their coalition has agreed.

    Args:
      attack: one that has a ``collude``.
      uploads: as the clients have made them; those of empty slots are zeros.
      malicious: bool ``(m,)``, of the clients in the slots.
      cohort: the slots.
      keys: the run's roots.
      round: counted from 0.
      phase: the number of a :func:`evenhand.rounds.phase_stream`.
    """
    assert attack.collude is not None
    # One key for the whole coalition: what its members agree on, all of them can draw.
    key = stream(keys.shared, Purpose.ATTACK, round, phase)
    agreed = attack.collude(uploads, malicious & cohort.present, cohort.present, key)
    chosen = malicious & cohort.present & _is_on(attack, round)
    return uploads._replace(delta=tree.among(chosen, agreed, uploads.delta))


def _is_on(attack: Attack, round: Array | int) -> Array:
    # An attack counts rounds from 1, as users do, and the engine from 0.
    on = jnp.asarray(round) + 1 >= attack.first
    return on if attack.last is None else on & (jnp.asarray(round) + 1 <= attack.last)
