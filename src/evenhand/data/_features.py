"""Columns of a table turned into inputs of a model: fitted on the training rows, applied to any rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError, named
from evenhand.text import counted

NDArray: TypeAlias = npt.NDArray[Any]
Fill: TypeAlias = Literal["mean", "median", "most-frequent"]

MISSING_CATEGORY = "(missing)"
"""What an empty cell of text counts as, where empty cells are filled by a mean or a median."""


class Series(NamedTuple):
    """One column of a table as read.

    Attributes:
      name: the column's name.
      values: numbers as float64 ``(n,)``, NaN where a cell is empty; or, for text, positions in ``categories``,
        -1 where a cell is empty.
      categories: the distinct texts; None for numbers.
    """

    name: str
    values: NDArray
    categories: tuple[str, ...] | None = None

    @property
    def missing(self) -> NDArray:
        """Which cells are empty, ``(n,)``."""
        return np.isnan(self.values) if self.categories is None else self.values < 0

    @property
    def texts(self) -> NDArray:
        """The text in each cell, ``""`` where it is empty, ``(n,)``; of a column of text."""
        return np.array([*(self.categories or ()), ""], str)[self.values]

    def at(self, rows: NDArray) -> Series:
        """The column of some rows."""
        return self._replace(values=self.values[rows])


class Column(NamedTuple):
    """How one column of a table becomes inputs of a model.

    Attributes:
      name: the column's name.
      kind: ``"number"`` is one input, ``(value - mean) / deviation``; ``"category"`` is one input per category,
        1 for that of the row and 0 for the others.
      mean: the mean of the training rows; 0 where numbers are left as they are.
      deviation: their standard deviation; 1 where numbers are left as they are.  It is 0 where all training rows are
        alike, and then the input is 0 for every row.
      categories: those of the training rows, sorted; for any other text, all inputs are 0.
      fill: what an empty cell counts as; None: empty cells are refused.
    """

    name: str
    kind: Literal["number", "category"]
    mean: float = 0.0
    deviation: float = 1.0
    categories: tuple[str, ...] = ()
    fill: float | str | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the column's inputs."""
        if self.kind == "number":
            return (self.name,)
        return tuple(f"{self.name} = {category}" for category in self.categories)


class Target(NamedTuple):
    """The scale of a column of real targets, for :func:`evenhand.models.standardized`.

    Attributes:
      name: the column's name.
      mean: the mean of the training rows.
      deviation: their standard deviation; 1 where all training rows are alike.
    """

    name: str
    mean: float
    deviation: float


class Form(NamedTuple):
    """The form of examples and labels, which decides the sizes of a model; a run folder keeps it.

    Attributes:
      name: what the data are called.
      shape: of one example.
      dtype: of examples, ``"float32"``, or ``"int32"`` for tokens.
      classes: how many there are; None: labels are real numbers.
      names: of the classes; None where they are only numbered.
      targets: numbers in one label.
      tokens: one more than the largest token; 0 where examples are no tokens.
      target: the scale by which real labels are standardised; None where they are not.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    classes: int | None
    names: tuple[str, ...] | None
    targets: int
    tokens: int
    target: Target | None = None

    def to_json(self) -> dict[str, Any]:
        """What ``config.json`` holds; :meth:`from_json` reads it back."""
        return {**self._asdict(), "target": None if self.target is None else self.target._asdict()}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Form:
        """The inverse of :meth:`to_json`.

        Raises:
          KeyError, TypeError, ValueError: ``value`` is something else.
        """
        names, classes, target = value["names"], value["classes"], value["target"]
        return Form(
            name=str(value["name"]),
            shape=tuple(int(size) for size in value["shape"]),
            dtype={"float32": "float32", "int32": "int32"}[value["dtype"]],
            classes=None if classes is None else int(classes),
            names=None if names is None else tuple(str(name) for name in names),
            targets=int(value["targets"]),
            tokens=int(value["tokens"]),
            target=_target(target),
        )


def _target(value: Mapping[str, Any] | None) -> Target | None:
    """The inverse of ``Target._asdict``."""
    return (
        None if value is None else Target(str(value["name"]), float(value["mean"]), float(value["deviation"]))
    )


class Features(NamedTuple):
    """What was fitted on the training rows of a table, in the order of the model's inputs.

    Attributes:
      columns: one for each column of the table that is used.
      standardized: whether numbers were to be standardised.
      target: the scale of the targets, which are kept in their own units; None for classes, and where targets are not
        to be standardised.
      na: further spellings of an empty cell.
    """

    columns: tuple[Column, ...]
    standardized: bool
    target: Target | None = None
    na: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of all inputs, e.g. ``("age", "region = north", "region = south")``."""
        return tuple(name for column in self.columns for name in column.inputs)

    @property
    def scaled(self) -> tuple[str, ...]:
        """The columns of numbers that are rescaled."""
        as_is = (0.0, 1.0)
        return tuple(column.name for column in self.columns if (column.mean, column.deviation) != as_is)

    def describe(self) -> str:
        """Some sentences to read."""
        numbers = [column for column in self.columns if column.kind == "number"]
        texts = [f"{column.name} ({len(column.categories)})" for column in self.columns if column.categories]
        constant = [column.name for column in numbers if column.deviation == 0]
        parts: list[str] = []
        if self.scaled:
            count = counted(len(self.scaled), "column")
            parts.append(f"{count} of numbers standardised by the mean and deviation of the training rows")
        if len(numbers) > len(self.scaled):
            kind = "of zeros and ones" if self.standardized else "of numbers"
            parts.append(f"{counted(len(numbers) - len(self.scaled), 'column')} {kind} left unscaled")
        if texts:
            parts.append(f"{counted(len(texts), 'column')} of text one-hot encoded: {few(texts)}")
        sentences = [f"Features: {'; '.join(parts)}."]
        if constant:
            sentences.append(f"All training rows are alike in {few(constant)}, which is therefore not used.")
        if any(column.fill is not None for column in self.columns):
            sentences.append("Empty cells are filled from the training rows.")
        if self.target is not None:
            sentences.append(
                f"Training standardises the targets (mean {_amount(self.target.mean)}, deviation "
                f"{_amount(self.target.deviation)}); losses and errors are in their own units."
            )
        return " ".join(sentences)

    def to_json(self) -> dict[str, Any]:
        """What ``features.json`` holds; :meth:`from_json` reads it back."""

        def entry(column: Column) -> dict[str, Any]:
            scale = {"mean": column.mean, "deviation": column.deviation}
            content = scale if column.kind == "number" else {"categories": list(column.categories)}
            return {"name": column.name, "kind": column.kind, **content, "fill": column.fill}

        return {
            "standardized": self.standardized,
            "columns": list(map(entry, self.columns)),
            "inputs": list(self.inputs),
            "target": None if self.target is None else self.target._asdict(),
            "na": list(self.na),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Features:
        """The inverse of :meth:`to_json`.

        Raises:
          KeyError, TypeError, ValueError: ``value`` is something else.
        """
        columns: list[Column] = []
        for entry in value["columns"]:
            name, fill = str(entry["name"]), entry["fill"]
            if entry["kind"] == "number":
                mean, deviation = float(entry["mean"]), float(entry["deviation"])
                fill = None if fill is None else float(fill)
                columns.append(Column(name, "number", mean, deviation, fill=fill))
            elif entry["kind"] == "category":
                categories = tuple(map(str, entry["categories"]))
                columns.append(Column(name, "category", categories=categories, fill=fill))
            else:
                raise ValueError(f"unknown kind {entry['kind']!r}")
        target, na = (
            _target(value.get("target")),
            value.get("na", ()),
        )  # folders of earlier versions have neither
        return Features(tuple(columns), bool(value["standardized"]), target, tuple(map(str, na)))


def fit(
    table: Sequence[Series], rows: NDArray, source: str, *, standardize: bool, fill: Fill | None
) -> Features:
    """Finds means, deviations, categories and what fills empty cells, from the given rows alone.

    Numbers that are all 0 or 1 are left as they are, like the inputs of a category.

    Args:
      table: the columns.
      rows: positions of the training rows.
      source: what the table is called in errors.
      standardize: whether numbers get mean 0 and deviation 1 over ``rows``.
      fill: what an empty cell counts as.  ``"mean"`` and ``"median"`` are those of the column, and empty text
        becomes a category of its own; ``"most-frequent"`` is the most frequent value of either.

    Raises:
      EvenhandError: a column is empty in all of ``rows``.
    """
    columns: list[Column] = []
    for series in table:
        values = series.values[rows]
        if series.missing[rows].all():
            fault = f"{source}: column {series.name!r} is empty in every training row: leave it out with "
            raise EvenhandError(fault, named("drop", series.name), ".")
        if series.categories is None:
            columns.append(_number_column(series.name, values, standardize, fill))
        else:
            columns.append(_category_column(series.name, values, series.categories, fill))
    return Features(tuple(columns), standardize)


def fit_target(name: str, y: NDArray) -> Target:
    """The scale of the training rows' targets ``y``, of any shape."""
    mean, deviation = _moments(np.asarray(y, np.float64))
    return Target(name, mean, deviation if deviation > 0 else 1.0)


def _moments(values: NDArray) -> tuple[float, float]:
    """The mean and the standard deviation."""
    shift = values.reshape(-1)[0]  # so that a large offset costs no digits
    mean = float(shift + np.mean(values - shift))
    return mean, float(np.sqrt(np.mean((values - mean) ** 2)))


def encode(features: Features, table: Sequence[Series], rows: NDArray, source: str) -> NDArray:
    """The inputs of some rows, float32 ``(len(rows), inputs)``.

    Args:
      features: what was fitted.
      table: the same columns in the same order.
      rows: positions of the rows.
      source: what the table is called in errors.
    """
    x = np.zeros((len(rows), len(features.inputs)), np.float32)
    at = 0
    for column, series in zip(features.columns, table, strict=True):
        if column.kind == "number":
            with np.errstate(over="ignore"):
                x[:, at] = _scaled(column, series.values[rows])
            if not np.isfinite(x[:, at]).all():
                raise EvenhandError(
                    f"{source}: column {column.name!r} has cells beyond the range of a 32-bit number once they "
                    "are standardised: repair them or drop the column."
                )
        else:
            positions = _positions(column, series)[series.values[rows]]
            present = np.flatnonzero(positions >= 0)
            x[present, at + positions[present]] = 1.0
        at += len(column.inputs)
    return x


def _number_column(name: str, values: NDArray, standardize: bool, fill: Fill | None) -> Column:
    present = values[~np.isnan(values)]
    filler = None if fill is None else _filler(present, fill)
    values = present if filler is None else np.where(np.isnan(values), filler, values)
    mean, deviation = 0.0, 1.0
    if standardize and values.min() == values.max():
        mean, deviation = float(values[0]), 0.0
    elif standardize and (np.abs(values - 0.5) != 0.5).any():
        mean, deviation = _moments(values)
    return Column(name, "number", mean, deviation, fill=filler)


def _filler(present: NDArray, fill: Fill) -> float:
    if fill == "mean":
        return float(np.mean(present))
    if fill == "median":
        return float(np.median(present))
    values, counts = np.unique(present, return_counts=True)
    return float(values[np.argmax(counts)])


def _category_column(name: str, codes: NDArray, categories: tuple[str, ...], fill: Fill | None) -> Column:
    counts = np.bincount(codes[codes >= 0], minlength=len(categories))
    present = sorted(categories[i] for i in np.flatnonzero(counts))
    if fill is None:
        return Column(name, "category", categories=tuple(present))
    if fill == "most-frequent":
        most = min(category for category, n in zip(categories, counts, strict=True) if n == counts.max())
        return Column(name, "category", categories=tuple(present), fill=most)
    if (codes < 0).any() and MISSING_CATEGORY not in present:
        present.append(MISSING_CATEGORY)
    return Column(name, "category", categories=tuple(present), fill=MISSING_CATEGORY)


def _scaled(column: Column, values: NDArray) -> NDArray:
    if column.deviation == 0:
        return np.zeros(len(values))
    if column.fill is not None:
        values = np.where(np.isnan(values), column.fill, values)
    return (values - column.mean) / column.deviation


def _positions(column: Column, series: Series) -> NDArray:
    """The position of the input for each text of ``series`` and, last, for an empty cell; -1 for none."""
    places = {category: position for position, category in enumerate(column.categories)}
    positions = [places.get(text, -1) for text in series.categories or ()]
    empty = -1 if column.fill is None else places.get(str(column.fill), -1)
    return np.array([*positions, empty], np.int64)


def _amount(value: float) -> str:
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def few(names: Sequence[str]) -> str:
    """The first six of some names."""
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
