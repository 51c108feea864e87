"""What the caller of a loader asked for, and the steps that all file formats share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand.data import partition
from evenhand.data._arrays import NDArray
from evenhand.data._dataset import FederatedDataset
from evenhand.data._features import Fill
from evenhand.data._split import Rows, build
from evenhand.errors import Argument, EvenhandError

__all__ = [
    "DEFAULT_CLIENT",
    "DEFAULT_LABEL",
    "Encode",
    "Options",
    "Pool",
    "listing",
    "owners",
    "pooled",
    "several",
    "unpooled",
]

Encode: TypeAlias = Callable[[Any], npt.ArrayLike]

DEFAULT_LABEL = "label"
DEFAULT_CLIENT = ("client",)
_SHOWN = 40
"""Most characters of a name in a list of names."""


class Options(NamedTuple):
    """The keyword arguments of :func:`evenhand.data.load`.

    Where ``client`` may name several columns, ``together`` has them all and ``client`` the first.
    """

    client: str = "client"
    label: str = DEFAULT_LABEL
    features: Sequence[str] | None = None
    regression: bool = False
    test_fraction: float = 0.2
    valid_fraction: float = 0.0
    seed: int = 0
    clients: int | None = None
    alpha: float = 0.5
    encode: Encode | None = None
    features_array: str | None = None
    together: tuple[str, ...] = DEFAULT_CLIENT
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    fill: Fill | None = None
    standardize: bool = True
    standardize_target: bool = True
    drop_empty: bool = False
    na: Sequence[str] = ()
    weight: str | None = None


class Pool(NamedTuple):
    """Checked examples that belong to no client yet."""

    x: NDArray
    y: NDArray


def listing(names: Sequence[str]) -> str:
    """The first few of ``names`` for an error message."""
    shown = ", ".join(repr(name if len(name) <= _SHOWN else name[:_SHOWN] + "...") for name in names[:6])
    return shown + (", ..." if len(names) > 6 else "")


def several(names: str | Sequence[str]) -> tuple[str, ...]:
    """The names in an option that takes one name or several."""
    return (names,) if isinstance(names, str) else tuple(names)


def owners(path: Path | str, y: NDArray, clients: int, options: Options) -> NDArray:
    """Clients for examples that have none, ``(n,)``: Dirichlet by class, evenly for real targets."""
    if clients > len(y):
        raise EvenhandError(
            f"{path}: {len(y)} examples are too few for {clients} clients: ask for fewer with ",
            Argument("clients", "N"),
            ".",
        )
    if _by_class(y):
        return partition.dirichlet(y, clients, options.alpha, options.seed)
    return partition.iid(y, clients, options.seed)


def unpooled(
    path: Path | str, train: Rows, test: Rows | None, classes: tuple[str, ...] | None, options: Options
) -> FederatedDataset:
    """The data set of examples whose clients are known."""
    return build(
        train,
        test,
        name=str(path),
        classes=classes,
        test_fraction=options.test_fraction,
        valid_fraction=options.valid_fraction,
        seed=options.seed,
    )


def pooled(
    path: Path | str,
    train: Pool,
    test: Pool | None,
    classes: tuple[str, ...] | None,
    options: Options,
    clients: int,
) -> FederatedDataset:
    """The data set of examples spread over ``clients``: Dirichlet by class, evenly for real targets."""
    for part in (train,) if test is None else (train, test):
        if len(part.x) != len(part.y):
            raise EvenhandError(
                f"{path}: there are {len(part.x)} rows but {len(part.y)} labels: give one label for each row."
            )
    owner = owners(path, train.y, clients, options)
    rows = Rows(train.x, train.y, owner)
    if test is None:
        return unpooled(path, rows, None, classes, options)
    # Real targets count as one class: every client gets test examples in proportion to its training examples.
    kinds = (train.y, test.y) if _by_class(train.y) else (np.zeros(len(train.y)), np.zeros(len(test.y)))
    fresh = partition.matching(kinds[0], owner, kinds[1], options.seed)
    return unpooled(path, rows, Rows(test.x, test.y, fresh), classes, options)


def _by_class(y: NDArray) -> bool:
    return y.dtype.kind == "i" and y.ndim == 1
