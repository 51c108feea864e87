"""What the adapters of modules share: their functions, the arguments that switch to training, and what is refused."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy.typing as npt

from evenhand.errors import EvenhandError
from evenhand.types import Array, Key, Params, PyTree

STATISTICS = (
    "the running statistics of heterogeneous clients cannot be averaged meaningfully; use a layer without them, "
    "e.g. GroupNorm or LayerNorm instead of BatchNorm."
)


class Functions(NamedTuple):
    """What a module computes.

    Attributes:
      init: as of :class:`evenhand.types.Model`.
      apply: likewise.
      apply_train: likewise.
      start: the parameters that the module holds; None: they are drawn from a key.
    """

    init: Callable[[Key], Params]
    apply: Callable[[Params, Array], PyTree]
    apply_train: Callable[[Params, Array, Key], PyTree] | None
    start: Params | None = None


def is_equinox(value: object) -> bool:
    """Whether this is a module of equinox, or a class of them; it is not imported for those who have none."""
    equinox = sys.modules.get("equinox")
    if equinox is None:
        return False
    return issubclass(value if isinstance(value, type) else type(value), equinox.Module)


def constant_init(params: Params) -> Callable[[Key], Params]:
    """``key -> params``, whatever the key."""
    start = jax.tree.map(jnp.asarray, params)

    def init(key: Key) -> Params:
        # A copy: the memory of a run's first parameters goes to those of the next round.
        return jax.tree.map(jnp.copy, start)

    return init


def call_modes(module: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of the module's ``__call__`` that say that it evaluates, and that it trains."""
    arguments = inspect.signature(module.__call__).parameters
    flags = {"train": True, "training": True, "deterministic": False}
    training = {name: value for name, value in flags.items() if name in arguments}
    return {name: not value for name, value in training.items()}, training


def sample_rows(sample: npt.ArrayLike) -> Array:
    """One row of the user's sample, ``(1, ...)``.

    Raises:
      EvenhandError: it has no rows.
    """
    inputs = jnp.asarray(sample)
    if inputs.ndim == 0:
        raise EvenhandError("sample must have rows first, e.g. x[:1], but it is a single number.")
    return inputs[:1]


def check_rows_first(functions: Functions, sample: Array) -> None:
    """Checks that the outputs have a row for each row of inputs like ``sample``.

    Raises:
      EvenhandError: they have not.
    """
    params = jax.eval_shape(functions.init, jax.random.key(0))
    # Two numbers of rows: outputs whose first axis has one of them by chance cannot have both.
    for rows in (2, 3):
        x = jax.ShapeDtypeStruct((rows, *sample.shape[1:]), sample.dtype)
        outputs = jax.eval_shape(functions.apply, params, x)
        for leaf in jax.tree.leaves(outputs):
            if leaf.shape[:1] != (rows,):
                raise EvenhandError(
                    f"The module's outputs must have rows first, but for {rows} inputs of shape "
                    f"{sample.shape[1:]} it returned shape {leaf.shape}; reduce over other axes only."
                )
