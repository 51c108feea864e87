"""Parameters by path: patterns that choose some of them, and nested dicts of those that were chosen.

A path is the names on the way to a leaf, ``"layers/0/kernel"``.  A :class:`Division` parts the parameters of a model by
patterns of their paths; :func:`nested` and :func:`leaf_at` hold some leaves of any tree as nested dicts of these names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeAlias

import jax

from evenhand.errors import EvenhandError, ModelError, perhaps
from evenhand.types import Array, Model, Params, PyTree

# --- patterns of paths -------------------------------------------------------------------------------------------

Patterns: TypeAlias = str | tuple[str, ...] | list[str]
"""Patterns of paths, such as ``"output"``, ``"conv_*"`` or ``"block_1/norm/scale"``.

A pattern takes all parameters below a path that it matches; ``*`` stands for any characters.  ``"*"`` takes all, and
``()`` none.
"""

Personal: TypeAlias = str | tuple[str, ...] | Callable[[Params], PyTree]
"""Which parameters are personal: :data:`Patterns`, or a function that gives a tree of bools like the parameters."""

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
    paths = [named_path(path) for path, _ in leaves]
    if callable(personal):
        chosen, form = jax.tree.flatten(personal(shapes))
        if form != structure or not all(isinstance(leaf, bool) for leaf in chosen):
            raise ModelError("personal= must give a tree of bools of the same structure as the parameters.")
        return Division(dict(zip(paths, chosen, strict=True)), structure)
    more = ", or a function of the parameters that gives a tree of bools"
    return Division(dict(zip(paths, chosen_by(personal, paths, "personal", more), strict=True)), structure)


def chosen_by(patterns: object, paths: Sequence[str], argument: str, more: str = "") -> list[bool]:
    """Which paths the patterns take.

    Args:
      patterns: what the user gave as :data:`Patterns`.
      paths: of all parameters.
      argument: the name of the argument, for sentences.
      more: what the argument may be instead, for sentences.

    Raises:
      ModelError: a pattern takes no parameter.
      EvenhandError: these are no patterns.
    """
    given: Any = (patterns,) if isinstance(patterns, str) else patterns
    if not isinstance(given, tuple | list) or not all(isinstance(pattern, str) for pattern in given):
        raise EvenhandError(
            f"{patterns!r:.60} does not say which parameters: give paths such as 'output' or "
            f"('conv_*', 'output'){more}."
        )
    for pattern in given:
        if not any(_takes(pattern, path) for path in paths):
            places = list(dict.fromkeys(place for path in paths for place in _places(path)))
            others = f" and {len(places) - 12} more" if len(places) > 12 else ""
            raise ModelError(
                f"{argument}={pattern!r}: no parameter has that path{perhaps(pattern, places)}; "
                f"the model has {', '.join(places[:12])}{others}."
            )
    return [any(_takes(pattern, path) for pattern in given) for path in paths]


def shown(personal: Personal) -> str:
    """The personal parameters in a method's name."""
    return "personal=mask" if callable(personal) else f"personal={personal!r}"


def _takes(pattern: str, path: str) -> bool:
    return any(fnmatchcase(place, pattern) for place in _places(path))


def _places(path: str) -> list[str]:
    """A path and those above it, from the top: ``a``, ``a/b``."""
    parts = path.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


# --- some leaves of a tree, as nested dicts ------------------------------------------------------------------------

KeyPath: TypeAlias = Sequence[Any]
"""A path as JAX has it: the key of a dict, the position in a list or the name of a field at each step."""


def named_path(path: KeyPath) -> str:
    """A path as users write it.

    Example:
      >>> [(path, _)] = jax.tree.leaves_with_path({"layers": [{"kernel": 1.0}]})
      >>> named_path(path)
      'layers/0/kernel'
    """
    return "/".join(jax.tree_util.keystr((key,), simple=True) for key in path)


def nested(paths: Sequence[KeyPath], leaves: Sequence[Any]) -> dict[Any, Any]:
    """The leaves as nested dicts, whose keys are the names on their paths.

    Example:
      >>> tree = {"layers": [{"kernel": 1.0}, {"kernel": 2.0}], "scale": 3.0}
      >>> paths, leaves = zip(*jax.tree.leaves_with_path(tree), strict=True)
      >>> nested(paths[1:], leaves[1:])
      {'layers': {1: {'kernel': 2.0}}, 'scale': 3.0}
    """
    top: dict[Any, Any] = {}
    for path, leaf in zip(paths, leaves, strict=True):
        *above, last = map(_step, path)
        level = top
        for name in above:
            level = level.setdefault(name, {})
        level[last] = leaf
    return top


def leaf_at(tree: Any, path: KeyPath) -> Any:
    """The leaf of nested dicts at a path.

    Raises:
      ModelError: there is none.
    """
    for key in path:
        try:
            tree = tree[_step(key)]
        except (KeyError, IndexError, TypeError):
            raise ModelError(
                f"The parameters have no {named_path(path)}, which this model has: give the parameters of this model."
            ) from None
    return tree


def _step(key: Any) -> Any:
    """The name of a key of JAX's: that of an attribute, of an entry, or a position."""
    match key:
        case jax.tree_util.GetAttrKey(name=name):
            return name
        case jax.tree_util.SequenceKey(idx=index):
            return index
        case _:
            return key.key
