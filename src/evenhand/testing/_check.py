"""What a law looks like as a check, a name and a function that checks it, and what the laws compare trees by."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from evenhand._platform import check_process
from evenhand.types import PyTree


class Check(NamedTuple):
    """One law of a method, an aggregator, a risk or an attack; calling it raises ``AssertionError`` if it is broken.

    Attributes:
      name: the law in a few words; no two checks of one subject have the same.
      law: the function that checks it.
    """

    name: str
    law: Callable[[], None]

    def __call__(self) -> None:
        """Checks the law; what earlier checks of the same subject have computed is not computed again."""
        check_process()
        self.law()


def checks_of(*laws: tuple[object, str, Callable[[], None]]) -> tuple[Check, ...]:
    """The checks of laws, each given with what it needs, its name and its function; none where the need is missing."""
    return tuple(Check(name, law) for need, name, law in laws if need)


def check_all(checks: Iterable[Check]) -> None:
    """Checks one law after the other, up to the first that is broken."""
    for check in checks:
        check()


def form(tree: PyTree) -> Any:
    """The structure of a tree, and the shapes and dtypes of its leaves."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]


def are_equal(a: PyTree, b: PyTree) -> bool:
    """Whether the leaves of two trees are the same, to the bit; NaN is the same as NaN."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y), equal_nan=True) for x, y in pairs)
