"""A model's parameters divided into those that clients share and those that each keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeAlias

import jax

from evenhand.errors import EvenhandError, ModelError, perhaps
from evenhand.types import Array, Model, Params, PyTree

__all__ = ["Division", "Named", "Personal", "division", "shown"]

Personal: TypeAlias = str | tuple[str, ...] | Callable[[Params], PyTree]
"""Which parameters are personal: patterns of their paths, or a function that gives a tree of bools like the parameters.

A pattern, such as ``"output"``, ``"conv_*"`` or ``"block_1/norm/scale"``, takes all parameters below a path that it
matches; ``*`` stands for any characters.  ``"*"`` takes all, and ``()`` none.
"""

Named: TypeAlias = Mapping[str, Array]


class Division(NamedTuple):
    """How a model's parameters are divided, by path.

    Attributes:
      is_personal: path -> whether that parameter is personal, in the order of the parameters' leaves.
      structure: of the parameters.
    """

    is_personal: Mapping[str, bool]
    structure: Any

    def part(self, params: Params, *, personal: bool) -> Named:
        """The personal parameters, or the shared ones, by path."""
        leaves = jax.tree.leaves(params)
        pairs = zip(self.is_personal.items(), leaves, strict=True)
        return {path: leaf for (path, own), leaf in pairs if own == personal}

    def whole(self, shared: Named, personal: Named) -> Params:
        """The parameters made of both parts."""
        leaves = [(personal if own else shared)[path] for path, own in self.is_personal.items()]
        return jax.tree.unflatten(self.structure, leaves)


def division(model: Model, personal: Personal) -> Division:
    """The division of a model's parameters.

    Raises:
      ModelError: a pattern that no parameter matches, or a mask that is not like the parameters.
      EvenhandError: something else than patterns or a function.
    """
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    leaves, structure = jax.tree.flatten_with_path(shapes)
    paths = ["/".join(jax.tree_util.keystr((key,), simple=True) for key in path) for path, _ in leaves]
    if callable(personal):
        chosen, form = jax.tree.flatten(personal(shapes))
        if form != structure or not all(isinstance(each, bool) for each in chosen):
            raise ModelError("personal= must give a tree of bools of the same structure as the parameters.")
        return Division(dict(zip(paths, chosen, strict=True)), structure)
    patterns: Any = (personal,) if isinstance(personal, str) else personal
    if not isinstance(patterns, tuple | list) or not all(isinstance(each, str) for each in patterns):
        raise EvenhandError(
            f"{personal!r:.60} does not say which parameters: give paths such as 'output' or ('conv_*', 'output'), or "
            "a function of the parameters that gives a tree of bools."
        )
    for pattern in patterns:
        if not any(_takes(pattern, path) for path in paths):
            places = dict.fromkeys(place for path in paths for place in _places(path))
            raise ModelError(
                f"personal={pattern!r}: no parameter has that path{perhaps(pattern, places)}; "
                f"the model has {_listed(list(places))}."
            )
    return Division({path: any(_takes(p, path) for p in patterns) for path in paths}, structure)


def shown(personal: Personal) -> str:
    """The personal parameters in a method's name."""
    return "personal=mask" if callable(personal) else f"personal={personal!r}"


def _takes(pattern: str, path: str) -> bool:
    return any(fnmatchcase(place, pattern) for place in _places(path))


def _places(path: str) -> list[str]:
    """A path and those above it, from the top: ``a``, ``a/b``."""
    parts = path.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _listed(places: Sequence[str], most: int = 12) -> str:
    more = f" and {len(places) - most} more" if len(places) > most else ""
    return ", ".join(places[:most]) + more
