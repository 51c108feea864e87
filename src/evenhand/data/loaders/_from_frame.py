"""Data sets from tables in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evenhand.data._dataset import FederatedDataset
from evenhand.data._features import Fill
from evenhand.data._split import check_fractions
from evenhand.data.loaders._frames import Frame, frame_table, open_frame
from evenhand.data.loaders._options import Options, several
from evenhand.data.loaders._problems import Problems
from evenhand.data.loaders._table import choose_columns, table_dataset
from evenhand.errors import EvenhandError

__all__ = ["from_frame"]


def from_frame(
    frame: Any,
    *,
    client: str | Sequence[str] = "client",
    label: str = "label",
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    fill: Fill | None = None,
    standardize: bool = True,
    standardize_target: bool = True,
    drop_empty: bool = False,
    na: Sequence[str] = (),
    weight: str | None = None,
    regression: bool = False,
    test_fraction: float = 0.2,
    valid_fraction: float = 0.0,
    seed: int = 0,
    clients: int | None = None,
    alpha: float = 0.5,
    name: str = "frame",
) -> FederatedDataset:
    """A federated data set from a pandas, polars or pyarrow table, or from a Hugging Face data set.

    The table is read as :func:`evenhand.data.load` reads a file: one row per example, columns of client ids, a
    column with the label, and features in the others.  The types of its columns decide what is text and what
    is a number; categories are text.  Names of columns are turned into text.  The index of a pandas table is not read.

    Args:
      frame: a ``pandas.DataFrame``, ``polars.DataFrame``, ``pyarrow.Table`` or ``datasets.Dataset``.
      client: column of client ids; for several, each combination is a client, called ``"north / A"``.
      label: column of labels.
      features: the columns to learn from; None: all others.
      drop: columns to leave out.
      categorical: columns whose numbers are categories; or the label, if its numbers are classes.
      fill: what an empty cell of the features counts as, as in :func:`evenhand.data.load`; None: it is refused.
      standardize: whether numbers get mean 0 and deviation 1 over the training rows.
      standardize_target: whether ``features.target`` keeps the scale of the targets, as in :func:`evenhand.data.load`.
      drop_empty: whether rows without a label or a client are left out; ``notes`` counts them.
      na: further spellings of an empty cell.
      weight: the column that says how many examples a row stands for, as in :func:`evenhand.data.load`.
      regression: labels are real-valued targets.
      test_fraction: share of each client's examples for testing.
      valid_fraction: share of each client's examples for validation.
      seed: of the split and the partition.
      clients: how many clients to spread the rows of a table without a client column over.
      alpha: concentration of that partition.
      name: what the data set is called.

    Raises:
      EvenhandError: ``frame`` is not such a table, a column is missing, or cells are empty, dates, lists or a mixture.

    Example:
      >>> import pyarrow
      >>> from evenhand.data import from_frame
      >>> table = pyarrow.table(
      ...     {
      ...         "ward": ["A", "A", "B", "B"],
      ...         "age": [70, 50, 60, 40],
      ...         "sex": ["f", "m", "f", "f"],
      ...         "ill": ["no", "yes", "no", "no"],
      ...     }
      ... )
      >>> data = from_frame(table, client="ward", label="ill", test_fraction=0.0)
      >>> data.features.inputs, data.classes
      (('age', 'sex = f', 'sex = m'), ('no', 'yes'))
    """
    check_fractions(test_fraction, valid_fraction)
    if isinstance(frame, str | Path):
        raise EvenhandError(f"{frame}: from_frame reads tables in memory: give a file to evenhand.data.load.")
    if clients is not None and clients < 1:
        raise EvenhandError(f"clients must be at least 1, not {clients}.")
    options = Options(
        label=label,
        features=features,
        regression=regression,
        test_fraction=test_fraction,
        valid_fraction=valid_fraction,
        seed=seed,
        clients=clients,
        alpha=alpha,
        together=several(client),
        drop=drop,
        categorical=categorical,
        fill=fill,
        standardize=standardize,
        standardize_target=standardize_target,
        drop_empty=drop_empty,
        na=several(na),
        weight=weight,
    )
    opened, problems = open_frame(frame, name, options.na), Problems(name)
    _check_index(name, opened, options)
    columns = choose_columns(name, opened.names, options)
    return table_dataset(name, columns, frame_table(name, opened, columns, problems), options, problems)


def _check_index(source: str, frame: Frame, options: Options) -> None:
    for column in (options.label, *options.together):
        if column in frame.hidden:
            raise EvenhandError(
                f"{source}: {column!r} is in the index and not a column: give frame.reset_index() instead."
            )
