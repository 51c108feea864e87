"""How the columns of a table become inputs of a model, as fitted on its training rows; and the form of examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand.errors import Argument, EvenhandError, whole_number
from evenhand.text import counted

NDArray: TypeAlias = npt.NDArray[Any]
Fill: TypeAlias = Literal["mean", "median", "most-frequent"]
Encode: TypeAlias = Callable[[Any], npt.ArrayLike]

BUCKETS = 1024
"""Inputs that the words of a text column are hashed into unless a caller says otherwise."""


class Series(NamedTuple):
    """One column of a table as read.

    Attributes:
      name: the column's name.
      values: numbers as float64 ``(n,)``, NaN where a cell is empty; or, for text, positions in ``categories``,
        -1 where a cell is empty.
      categories: the distinct texts; None for numbers.
      declared: whether the table's type says that these are categories.
    """

    name: str
    values: NDArray
    categories: tuple[str, ...] | None = None
    declared: bool = False

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


class TextEncoding(NamedTuple):
    """How the texts of a column become inputs of a model.

    Attributes:
      way: ``"hashed"`` as by :func:`evenhand.data.encode_hashed`; ``"counted"`` as by
        :func:`evenhand.data.encode_counts`; ``"function"``: as by the caller's ``encode``.
      shape: of the inputs of one text, ``(buckets,)`` or ``(words,)`` unless a function gives others.
      dtype: of these inputs: ``"float32"``, or ``"int32"`` for tokens.
      words: those that are counted.
      function: the caller's; None where a run folder describes the column, as a folder holds no functions.
    """

    way: Literal["hashed", "counted", "function"]
    shape: tuple[int, ...]
    dtype: Literal["float32", "int32"] = "float32"
    words: tuple[str, ...] = ()
    function: Encode | None = None

    @staticmethod
    def hashed(buckets: int | None = None) -> TextEncoding:
        """That of :func:`evenhand.data.encode_hashed`; None: into 1,024 buckets."""
        size = whole_number("buckets", BUCKETS if buckets is None else buckets, 1, 2**31 - 1)
        return TextEncoding("hashed", (size,))

    @staticmethod
    def of(encode: Encode, where: str) -> TextEncoding:
        """That of a caller's function, whose array for an empty text shows the shape and the kind of all.

        Raises:
          EvenhandError: it is no function, or gives no array of numbers; ``where`` is the source and the column.
        """
        if not callable(encode):
            raise EvenhandError(
                f"{where}: encode is no function but a {type(encode).__name__}: give a function from a text to "
                "numbers, such as evenhand.data.encode_tokens(tokenizer, length=64)."
            )
        first = array_of(encode, "", where)
        return TextEncoding(
            "function", first.shape, "int32" if first.dtype.kind == "i" else "float32", function=encode
        )

    @property
    def is_alone(self) -> bool:
        """Whether the inputs cannot stand beside those of other columns: tokens, and sequences of vectors."""
        return self.dtype == "int32" or len(self.shape) != 1

    def inputs(self, name: str) -> tuple[str, ...]:
        """The names of the inputs of the column ``name``; empty for arrays of several axes."""
        if self.way == "counted":
            return tuple(f"{name}: {word}" for word in self.words)
        return tuple(f"{name} [{i}]" for i in range(self.shape[0])) if len(self.shape) == 1 else ()

    def describe(self) -> str:
        """What becomes of a text, in a few words."""
        match self.way:
            case "hashed":
                return f"hashed into {self.shape[0]:,} inputs"
            case "counted":
                return f"as shares of {self.shape[0]:,} words"
            case "function":
                kind = "tokens" if self.dtype == "int32" else "numbers"
                return f"as {' × '.join(map(str, self.shape))} {kind}"

    def to_json(self) -> dict[str, Any]:
        """What ``features.json`` holds of it; :meth:`from_json` reads it back, without the function."""
        return {"way": self.way, "shape": list(self.shape), "dtype": self.dtype, "words": list(self.words)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> TextEncoding:
        """The inverse of :meth:`to_json`.

        Raises:
          KeyError, TypeError, ValueError: ``value`` is something else.
        """
        ways: Mapping[str, Literal["hashed", "counted", "function"]] = {
            "hashed": "hashed",
            "counted": "counted",
            "function": "function",
        }
        kinds: Mapping[str, Literal["float32", "int32"]] = {"float32": "float32", "int32": "int32"}
        encoding = TextEncoding(
            ways[value["way"]],
            tuple(int(size) for size in value["shape"]),
            kinds[value["dtype"]],
            tuple(map(str, value["words"])),
        )
        if encoding.way != "function" and len(encoding.shape) != 1:
            raise ValueError(f"words have no inputs of shape {encoding.shape}")
        return encoding


def array_of(encode: Encode, text: str, where: str) -> NDArray:
    """The array that a function gives for one text, float32 or int32.

    Raises:
      EvenhandError: it gives no array of numbers.
    """
    result = encode(text)
    try:
        array = np.asarray(result)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind not in "biuf" or not array.ndim:
        raise EvenhandError(
            f"{where}: encode gives a {type(result).__name__} for the text {text[:40]!r}, and no array of numbers: "
            "give a function such as evenhand.data.encode_tokens(tokenizer, length=64)."
        )
    kind = np.int32 if array.dtype.kind in "iu" else np.float32
    with np.errstate(over="ignore"):
        converted = array.astype(kind)
    if not np.isfinite(converted).all() or (kind is np.int32 and np.any(converted != array)):
        raise EvenhandError(
            f"{where}: encode gives a number for the text {text[:40]!r} that is not a finite 32-bit number: give "
            "another function."
        )
    return converted


class Column(NamedTuple):
    """How one column of a table becomes inputs of a model.

    Attributes:
      name: the column's name.
      kind: ``"number"`` is one input, ``(value - mean) / deviation``; ``"category"`` is one input per category,
        1 for that of the row and 0 for the others; ``"text"`` is what ``text`` makes of it.
      mean: the mean of the training rows; 0 where numbers are left as they are.
      deviation: their standard deviation; 1 where numbers are left as they are.  It is 0 where all training rows are
        alike, and then the input is 0 for every row.
      categories: those of the training rows, sorted; for any other text, all inputs are 0.
      fill: what an empty cell counts as; None: empty cells are refused, except in a column of text.
      text: of a column of text, how a text becomes inputs; an empty cell is the text ``""``.
    """

    name: str
    kind: Literal["number", "category", "text"]
    mean: float = 0.0
    deviation: float = 1.0
    categories: tuple[str, ...] = ()
    fill: float | str | None = None
    text: TextEncoding | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the column's inputs."""
        if self.text is not None:
            return self.text.inputs(self.name)
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
    def fitted(self) -> tuple[str, ...]:
        """What a private method does not cover, since it was found in the rows before the training; () for nothing."""
        return self._fitted(has_classes=False)

    def fitted_with(self, labels: npt.NDArray[Any]) -> tuple[str, ...]:
        """The same, with the classes of ``labels`` where they have some: the model has outputs for each of these."""
        return self._fitted(has_classes=labels.dtype.kind != "f")

    def _fitted(self, *, has_classes: bool) -> tuple[str, ...]:
        parts = {
            "the classes of the label": has_classes,
            "the means and deviations of columns": self.scaled or self.target,
            "their fill values": any(column.fill is not None for column in self.columns),
            "their categories": any(column.categories for column in self.columns),
            "the words that are counted": any(column.text and column.text.words for column in self.columns),
        }
        words = ", ".join(name for name, is_there in parts.items() if is_there)
        return (
            (f"what was fitted to all rows before the training, and goes with the model: {words}",)
            if words
            else ()
        )

    @property
    def scaled(self) -> tuple[str, ...]:
        """The columns of numbers that are rescaled."""
        as_is = (0.0, 1.0)
        return tuple(column.name for column in self.columns if (column.mean, column.deviation) != as_is)

    def describe(self) -> str:
        """Some sentences to read."""
        numbers = [column for column in self.columns if column.kind == "number"]
        categories = [
            f"{column.name} ({len(column.categories)})" for column in self.columns if column.categories
        ]
        texts = [column.text for column in self.columns if column.text is not None]
        constant = [column.name for column in numbers if column.deviation == 0]
        parts: list[str] = []
        if self.scaled:
            count = counted(len(self.scaled), "column")
            parts.append(f"{count} of numbers standardised by the mean and deviation of the training rows")
        if len(numbers) > len(self.scaled):
            kind = "of zeros and ones" if self.standardized else "of numbers"
            parts.append(f"{counted(len(numbers) - len(self.scaled), 'column')} {kind} left unscaled")
        if categories:
            parts.append(f"{counted(len(categories), 'column')} of text one-hot encoded: {few(categories)}")
        for ending in dict.fromkeys(text.describe() for text in texts):
            names = [x.name for x in self.columns if x.text is not None and x.text.describe() == ending]
            parts.append(f"{counted(len(names), 'column')} of free text {ending}: {few(names)}")
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
            if column.text is not None:
                return {"name": column.name, "kind": column.kind, **column.text.to_json()}
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
            if entry["kind"] == "text":
                columns.append(Column(str(entry["name"]), "text", text=TextEncoding.from_json(entry)))
                continue
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

    def encoded_by(self, encode: Encode | None, source: str) -> Features:
        """The same with the function ``encode`` for the texts that a function encodes; None: as it is.

        Args:
          encode: the function; a run folder does not hold it.
          source: what the table is called in errors.

        Raises:
          EvenhandError: there is no such text.
        """
        if encode is None:
            return self
        if not any(column.text is not None and column.text.way == "function" for column in self.columns):
            fault = f"{source}: no column of text was encoded by a function for the training: leave out "
            raise EvenhandError(fault, Argument("encode", "FUNCTION"), ".")

        def column(before: Column) -> Column:
            if before.text is None or before.text.way != "function":
                return before
            return before._replace(text=before.text._replace(function=encode))

        return self._replace(columns=tuple(map(column, self.columns)))


def _amount(value: float) -> str:
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def few(names: Sequence[str]) -> str:
    """The first six of some names."""
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
