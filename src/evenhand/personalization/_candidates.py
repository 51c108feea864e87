"""Penalties that a client may choose from, on examples that it holds out."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from evenhand.errors import EvenhandError, whole_number
from evenhand.personalization._beside import non_negative
from evenhand.types import Array, ClientData

__all__ = ["Candidates", "candidates", "held_apart"]


class Candidates(NamedTuple):
    """The penalties in rising order, the one of clients with ``few`` held-out examples, and the share held out."""

    lams: tuple[float, ...]
    few_lam: float
    few: int
    held_out: float


def candidates(
    *, strong_attack: bool, lams: tuple[float, ...] | None, few_lam: float | None, few: int, held_out: float
) -> Candidates:
    """The arguments of :func:`evenhand.personalization.dynamic_ditto`, checked, with the paper's defaults."""
    usual, rare = ((0.05, 0.1, 0.2), 0.1) if strong_attack else ((0.1, 1.0, 2.0), 1.0)
    lams = usual if lams is None else tuple(sorted(lams))
    for lam in lams:
        non_negative("dynamic_ditto", "lams", lam)
    if few_lam is not None:
        non_negative("dynamic_ditto", "few_lam", few_lam)
    whole_number("few", few, 0)
    if not lams or not 0.0 <= held_out < 1.0:
        what = f"lams={lams}, held_out={held_out}"
        raise EvenhandError(f"dynamic_ditto({what}): give at least one candidate, and a share in [0, 1).")
    return Candidates(lams, rare if few_lam is None else few_lam, few, held_out)


def held_apart(given: Candidates, data: ClientData) -> tuple[ClientData, ClientData, Array]:
    """The examples to train on, those held out (a client keeps at least one to train on), and the penalties."""
    # Less 1e-4: float32 has 0.1 * 30 a little above 3.
    count = jnp.ceil(given.held_out * data.size.astype(jnp.float32) - 1e-4).astype(jnp.int32)
    rest = data.size - jnp.minimum(count, jnp.maximum(data.size - 1, 0))
    valid = data._replace(start=data.start + rest, size=data.size - rest)
    lams = jnp.where(valid.size < given.few, jnp.float32(given.few_lam), jnp.asarray(given.lams, jnp.float32))
    return data._replace(size=rest), valid, lams
