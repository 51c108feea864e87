"""What malicious clients do to :func:`evenhand.personalization.mocha`."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand import tree
from evenhand.errors import EvenhandError, expect
from evenhand.personalization._dual_ascent import Send
from evenhand.rounds import accepts_delta, colluding, false_delta, poisoned
from evenhand.streams import keys_of
from evenhand.types import Array, Attack, Cohort, Key, Upload

__all__ = ["Examples", "check_attack", "examples", "sending"]

NDArray = npt.NDArray[Any]


class Examples(Protocol):
    """The examples of all clients, such as a split of a data set: client ``k`` has rows ``offsets[k]`` to the next."""

    @property
    def x(self) -> NDArray:
        """Features, ``(rows, ...)``."""
        ...

    @property
    def y(self) -> NDArray:
        """Labels 0 and 1, ``(rows,)``."""
        ...

    @property
    def offsets(self) -> NDArray:
        """``(K + 1,)``."""
        ...


def check_attack(attack: object) -> None:
    """Checks that it is an attack on what MOCHA's clients have and send."""
    expect("attack", attack, Attack | None, "eh.attacks.model_replacement(0.2, boost=10.0)")
    assert isinstance(attack, Attack | None)
    if attack is not None and (attack.fresh is not None or attack.report is not None):
        raise EvenhandError(
            "mocha(attack=): its clients have the same examples in every round and report nothing: give an attack "
            "that does not poison them anew or make false reports."
        )


def examples(
    train: Examples, attack: Attack | None, malicious: NDArray, seed: int
) -> tuple[NDArray, NDArray]:
    """Features and labels, those of malicious clients as they have poisoned them."""
    x, y = train.x, train.y
    if attack is None or attack.rows is None:
        return x, y
    x, y = x.copy(), y.copy()
    for k in np.flatnonzero(malicious):
        window = slice(train.offsets[k], train.offsets[k + 1])
        x[window], y[window] = poisoned(attack.rows, x[window], y[window], seed, int(k))
    return x, y


def sending(attack: Attack | None, malicious: NDArray, seed: int) -> Send | None:
    """What the clients send instead of what changed, and which of it is accepted; None: just that."""
    if attack is None:
        return None
    keys, who = keys_of(seed), jnp.asarray(malicious)
    accepts = jax.vmap(accepts_delta)

    def send(change: Array, number: Array, own: Key) -> tuple[Array, Array]:
        sent = jax.vmap(lambda one, bad, key: false_delta(attack, one, bad, number, key))(change, who, own)
        accepted = accepts(sent)
        if attack.collude is not None:
            ones = jnp.ones(who.shape, jnp.float32)
            uploads = tree.among(accepted, Upload(sent, ones, ones))
            cohort = Cohort.of(jnp.arange(len(malicious)), accepted)
            sent = colluding(attack, uploads, who, cohort, keys, number, 0).delta
            accepted &= accepts(sent)
        return sent, accepted

    return send
