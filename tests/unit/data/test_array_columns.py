"""Tables whose only feature is a column of arrays: the data set is that of the same arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import evenhand as eh
from evenhand.errors import EvenhandError

N = 24
RANDOM = np.random.default_rng(0)
VALUES = RANDOM.normal(size=(N, 3))
WORDS = RANDOM.integers(0, 9, (N, 4))
LABELS = np.array(["no", "yes", "may"])[RANDOM.integers(0, 3, N)]
WARDS = np.array(["b", "a"])[RANDOM.integers(0, 2, N)]


def columns(arrays: np.ndarray) -> dict[str, list[Any]]:
    return {"ward": WARDS.tolist(), "x": arrays.tolist(), "y": LABELS.tolist()}


def fixed(arrays: np.ndarray) -> pa.Table:
    kind = pa.list_(pa.float64() if arrays.dtype.kind == "f" else pa.int64(), arrays.shape[1])
    given = columns(arrays)
    return pa.table({**given, "x": pa.array(given["x"], kind)})


FRAMES: dict[str, Callable[[np.ndarray], Any]] = {
    "pandas lists": lambda arrays: pd.DataFrame(columns(arrays)),
    "pandas arrays": lambda arrays: pd.DataFrame({**columns(arrays), "x": list(arrays)}),
    "polars": lambda arrays: pl.DataFrame(columns(arrays)),
    "arrow": lambda arrays: pa.table(columns(arrays)),
    "arrow of one length": fixed,
}


def read(frame: Any, **options: Any) -> eh.data.FederatedDataset:
    return eh.data.from_frame(frame, client="ward", label="y", **options)


@pytest.mark.parametrize("kind", FRAMES)
def test_a_column_of_lists_is_the_input(kind: str) -> None:
    data = read(FRAMES[kind](VALUES), test_fraction=0.25, valid_fraction=0.25, seed=2)
    names, y = np.unique(LABELS, return_inverse=True)
    arrays = eh.data.from_arrays(
        VALUES, y, WARDS, classes=names.tolist(), test_fraction=0.25, valid_fraction=0.25, seed=2
    )
    assert data.client_ids == arrays.client_ids and data.classes == arrays.classes and data.features is None
    for ours, theirs in ((data.train, arrays.train), (data.valid, arrays.valid), (data.test, arrays.test)):
        np.testing.assert_array_equal(ours.x, theirs.x)
        np.testing.assert_array_equal(ours.y, theirs.y)
    assert read(FRAMES[kind](WORDS)).train.x.dtype == np.int32, "whole numbers are tokens"


def test_a_table_with_such_a_column_is_trained_and_reported(tmp_path: Any) -> None:
    data = read(FRAMES["arrow"](VALUES))
    work = eh.local.sgd(eh.models.softmax_regression(features=3, classes=3), 0.1, epochs=1, batch_size=4)
    run = eh.simulate(eh.algorithms.fedavg(work), data, rounds=2)
    assert "over" in run.report(tmp_path / "report.html").read_text("utf-8")


class Image:
    """Hugging Face's feature of pictures."""


class Pictures:
    """The part of ``datasets.Dataset`` that is used: rows decode their pictures."""

    def __init__(self, table: pa.Table, pictures: list[np.ndarray | None]) -> None:
        self.table, self.pictures = table, pictures
        self.column_names, self.features = ["picture", *table.column_names], dict.fromkeys(table.column_names)
        self.features["picture"] = Image()  # pyright: ignore[reportArgumentType]

    def select_columns(self, names: list[str]) -> list[dict[str, Any]]:
        assert names == ["picture"]
        return [{"picture": picture} for picture in self.pictures]

    def with_format(self, kind: str) -> Pictures:
        return self

    def __getitem__(self, rows: slice) -> pa.Table:
        return self.table[rows].append_column("picture", pa.array([{"bytes": b""}] * self.table.num_rows))


Pictures.__module__, Pictures.__name__ = "datasets.arrow_dataset", "Dataset"


def pictures(count: int = N) -> list[np.ndarray | None]:
    return [np.full((2, 2, 3), i, np.uint8) for i in range(count)]


def test_pictures_of_hugging_face_become_shares_of_the_largest_byte() -> None:
    table = pa.table({"ward": WARDS, "y": LABELS})
    data = read(Pictures(table, pictures()), test_fraction=0.0)
    assert data.feature_shape == (2, 2, 3) and data.train.x.dtype == np.float32
    rows = np.rint(data.train.x[:, 0, 0, 0] * 255).astype(int)
    assert sorted(rows.tolist()) == list(range(N))
    np.testing.assert_array_equal(np.array(data.classes)[data.train.y], LABELS[rows])
    assert [data.client_ids[k] for k in np.repeat([0, 1], data.train.sizes)] == WARDS[rows].tolist()


BYTES = RANDOM.integers(0, 256, (N, 2, 3))
TYPED: dict[str, Callable[[Any, Any], Any]] = {
    "arrow": lambda kind, wide: pa.table(
        {**columns(BYTES), "x": pa.array(BYTES.tolist(), pa.list_(pa.list_(kind)))}
    ),
    "arrow of one length": lambda kind, wide: pa.table(
        {**columns(BYTES), "x": pa.array(BYTES.tolist(), pa.list_(pa.list_(kind, 3), 2))}
    ),
    "polars": lambda kind, wide: pl.DataFrame(columns(BYTES), schema_overrides={"x": pl.List(pl.List(wide))}),
    "polars arrays": lambda kind, wide: pl.DataFrame(
        columns(BYTES), schema_overrides={"x": pl.Array(wide, (2, 3))}
    ),
}


@pytest.mark.parametrize("kind", TYPED)
def test_lists_of_bytes_are_pictures_and_other_whole_numbers_are_tokens(kind: str) -> None:
    """Python's lists forget that their numbers were bytes: the type of the column knows it."""
    pictures, tokens = TYPED[kind](pa.uint8(), pl.UInt8), TYPED[kind](pa.int32(), pl.Int32)
    data = read(pictures, test_fraction=0.0)
    order = np.concatenate([np.flatnonzero(ward == WARDS) for ward in ("a", "b")])
    np.testing.assert_allclose(data.train.x, BYTES[order] / 255, rtol=1e-6)
    assert read(tokens).train.x.dtype == np.int32


def test_what_is_beside_an_array_must_be_left_out() -> None:
    frame = pd.DataFrame({**columns(VALUES), "age": range(N)})
    assert read(frame, features=["x"]).feature_shape == (3,)
    assert read(frame, drop=["age"]).feature_shape == (3,)
    with pytest.raises(
        EvenhandError, match="column 'x' holds list objects, neither numbers nor text"
    ) as caught:
        read(frame)
    assert "name it alone with features=['x']" in str(caught.value)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (
            pd.DataFrame({**columns(VALUES), "x": [[1.0, 2.0]] * (N - 1) + [[1.0]]}),
            r"shape (2,) in row 0 and (1,) in row 23",
        ),
        (
            pd.DataFrame({**columns(VALUES), "x": [[1.0, 2.0]] * (N - 1) + [None]}),
            "row 23 has no array in column 'x'",
        ),
        (
            pd.DataFrame({**columns(VALUES), "x": [[[1.0, 2.0], [1.0]]] * N}),
            "row 0 has lists of several lengths",
        ),
        (
            pa.table(
                {**columns(VALUES), "x": pa.array([[1, 2]] * (N - 1) + [[1, None]], pa.list_(pa.uint8()))}
            ),
            "row 23 has an array with empty entries in column 'x'",
        ),
        (Pictures(pa.table({"ward": WARDS, "y": LABELS}), [*pictures(N - 1), None]), "row 23 has no array"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(frame: Any, words: str) -> None:
    with pytest.raises(EvenhandError) as caught:
        read(frame)
    assert words in str(caught.value)


def test_the_numbers_of_rows_have_no_unit_and_no_more_rows_are_read_than_they_can_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A first client with few rows has small numbers of rows."""
    wards = np.repeat(list("abcde"), [12, 100, 100, 100, 100])
    frame = pd.DataFrame({"ward": wards, "y": np.arange(412) % 2, "x": [[1.0, 2.0]] * 412})
    assert read(frame).notes == ()
    monkeypatch.setattr("evenhand.data.loaders._load._MOST_ROWS", 411)
    with pytest.raises(
        EvenhandError, match=r"has 412 rows, and with a column of arrays at most 411 .*from_arrays"
    ):
        read(frame)
