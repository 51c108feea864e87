"""What a law looks like as a check, what laws compare trees by, and the toy problem on which methods are checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from evenhand._jaxpr import programs
from evenhand._paths import named_path
from evenhand._platform import check_process
from evenhand.data import FederatedDataset, Split
from evenhand.local import step_per_row
from evenhand.types import Array, ClientData, Effort, Key, Model, Params, PyTree


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


def check_form(a: PyTree, b: PyTree, words: str) -> None:
    """Checks that the first tree has the form of the second, with these words before what differs."""
    if form(a) == form(b):
        return
    (structure, leaves), (expected, own) = form(a), form(b)
    differing = f"it is {structure!s:.200}, and must be {expected!s:.200}"
    if structure == expected:
        places = zip(jax.tree.leaves_with_path(b), leaves, own, strict=True)
        (path, _), got, must = next(place for place in places if place[1] != place[2])
        got, must = (f"{dtype} of shape {shape}" for shape, dtype in (got, must))
        differing = f"{named_path(path) or 'the array'} is {got}, and must be {must}"
    raise AssertionError(f"{words}: {differing}.")


def check_same_form(a: PyTree, b: PyTree, subject: str) -> None:
    """Checks that two trees have the same form."""
    check_form(a, b, f"The structure, shapes or dtypes of {subject} differ from what they must be")


def _gaps(a: PyTree, b: PyTree) -> Iterator[tuple[float, float]]:
    """The largest gap of each pair of leaves, and the larger of 1 and their entries."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.array(x, np.float64), np.array(y, np.float64)
        scale = max(1.0, float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0)))
        # Equal infinities, such as a step size that a line search has not found yet, have no gap, nor have two NaN.
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        yield float(np.max(np.abs(np.where(same, 0.0, x) - np.where(same, 0.0, y)), initial=0.0)), scale


def are_close(a: PyTree, b: PyTree, tolerance: float) -> bool:
    """Whether two trees are the same up to the tolerance, relative to the larger of 1 and a leaf's entries."""
    return all(gap <= tolerance * scale for gap, scale in _gaps(a, b))


def check_close(a: PyTree, b: PyTree, tolerance: float, subject: str) -> None:
    """Checks that two trees are close, the results of what ``subject`` names."""
    for gap, scale in _gaps(a, b):
        assert gap <= tolerance * scale, (
            f"The results of {subject} differ by {gap:.3g}. The usual reason is a function that is not pure: it reads "
            "numpy.random, a clock or a variable that changes, so it is another each time that it is compiled."
        )


def makes_keys(program: Any) -> bool:
    """Whether a traced program has keys that are not among its inputs."""
    constants = programs.opened(program)[1]
    is_key = [jnp.issubdtype(jnp.result_type(value), jax.dtypes.prng_key) for value in constants]
    return any(is_key) or programs.has_primitive(program, {"random_seed", "random_wrap"})


def may_be_assumed(effort: Callable[[ClientData], Effort], data: ClientData) -> bool:
    """Whether an effort may be the one that is assumed where it is unknown, a step for each example, or a multiple."""
    for size, progress in ((8, 0.25), (5, 0.5)):
        data = data._replace(size=jnp.int32(size))
        whole, part = (data._replace(progress=jnp.float32(done)) for done in (1.0, progress))
        if effort(part).steps * step_per_row(whole).steps != effort(whole).steps * step_per_row(part).steps:
            return False
    return True


# --- a toy problem, small enough for seconds and uneven enough to break careless code -------------------------


_SIZES = (1, 3, 8, 17, 5, 12)
_FEATURES = 4
_CLASSES = 3


def toy_model() -> Model:
    """Softmax regression from 4 features to 3 classes, as pure functions; all calls give the same ones."""
    losses = optax.losses.softmax_cross_entropy_with_integer_labels
    return Model(_init, _apply, losses, {"accuracy": _accuracy})


def toy_data(seed: int = 0) -> FederatedDataset:
    """Six heterogeneous clients with 1 to 17 training examples and 2 test examples each, for :func:`toy_model`."""
    rng = np.random.default_rng(seed)
    train = _split(rng, np.array(_SIZES))
    return FederatedDataset(
        train=train,
        valid=_split(rng, np.zeros(len(_SIZES), np.int64)),
        test=_split(rng, np.full(len(_SIZES), 2)),
        client_ids=tuple("abcdef"),
    )


def _split(rng: np.random.Generator, sizes: np.ndarray) -> Split:
    client = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(client), _FEATURES)) + 0.3 * client[:, None]
    y = (np.argmax(x[:, :_CLASSES], axis=1) + client) % _CLASSES
    return Split(x.astype(np.float32), y.astype(np.int32), np.concatenate([[0], np.cumsum(sizes)]))


def _init(key: Key) -> Params:
    return {"w": 0.3 * jax.random.normal(key, (_FEATURES, _CLASSES)), "b": jnp.zeros(_CLASSES)}


def _apply(params: Params, x: Array) -> Array:
    return x @ params["w"] + params["b"][None]


def _accuracy(outputs: Array, y: Array) -> Array:
    return (jnp.argmax(outputs, axis=-1) == y).astype(jnp.float32)
