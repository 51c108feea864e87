"""docs/data.md: what it says of Hugging Face and flwr-datasets, with their real data sets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

import evenhand as eh

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- test flwr-datasets -->\n```python\n(.*?)```", PAGE, re.DOTALL)
DIGITS: Any = load_digits()
PIXELS = (15 * DIGITS.images).astype(np.uint8) / 255


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Where the blocks wrote their reports, and the names after each."""
    folder = tmp_path_factory.mktemp("page")
    namespace, after = dict[str, Any](), list[dict[str, Any]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in BLOCKS:
            exec(compile(block, "data.md", "exec"), namespace)
            after.append(dict(namespace))
    assert len(after) == 2
    return folder, after


def ordered(x: np.ndarray, label: np.ndarray) -> list[tuple[Any, ...]]:
    """Examples in an order that says nothing of where they came from."""
    return sorted(
        (*np.rint(picture.ravel() * 255).astype(int), int(y)) for picture, y in zip(x, label, strict=True)
    )


def examples(data: eh.data.FederatedDataset, k: int) -> tuple[np.ndarray, np.ndarray]:
    """All examples of a client, of training and of testing."""
    parts = [(split, slice(*split.offsets[k : k + 2])) for split in (data.train, data.test)]
    x, y = zip(*((split.x[rows], split.y[rows]) for split, rows in parts), strict=True)
    return np.concatenate(x), np.concatenate(y)


def test_a_data_set_of_hugging_face_goes_from_the_object_to_the_report(page: Any) -> None:
    """Oracle: the pictures of scikit-learn, each with its writer and the name of its class."""
    folder, (names, _) = page
    data: eh.data.FederatedDataset = names["data"]
    assert data.classes is not None and data.classes == tuple(sorted(names["names"]))
    assert data.num_clients == 12
    for k, client in enumerate(data.client_ids):
        rows = np.arange(len(DIGITS.target)) % 12 == int(client.removeprefix("writer "))
        x, y = examples(data, k)
        labels = np.array([names["names"].index(data.classes[label]) for label in y])
        assert ordered(x, labels) == ordered(PIXELS[rows], DIGITS.target[rows])
    assert names["run"].summary("test")["mean"] > 0.8
    assert "writer 11" in (folder / "writers.html").read_text("utf-8")


def test_partitions_of_flwr_datasets_go_from_the_object_to_the_report(page: Any) -> None:
    """Oracle: each partition's own rows, decoded by Pillow."""
    folder, (_, names) = page
    data: eh.data.FederatedDataset = names["data"]
    assert list(data.client_ids) == [str(k) for k in range(10)]
    for k in range(10):
        partition = names["partitions"][k]
        pictures = np.array([np.asarray(row["image"]) for row in partition]) / 255
        assert ordered(*examples(data, k)) == ordered(pictures, np.array(partition["label"]))
    sizes = data.train.sizes + data.test.sizes
    assert sizes.sum() == len(DIGITS.target) and sizes.max() > 1.5 * sizes.min(), "a Dirichlet partition"
    assert data.classes == tuple(names["names"]) and names["run"].summary("test")["mean"] > 0.6
    assert "10 clients" in (folder / "partitions.html").read_text("utf-8")
