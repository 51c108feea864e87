"""Real data sets of PyTorch, one for each client: from the objects to the report of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch  # pyright: ignore[reportMissingImports]
from torch.utils import data as torch_data  # pyright: ignore[reportMissingImports]

import evenhand as eh

RANDOM = np.random.default_rng(0)
SIZES = {"oslo": 30, "rome": 50, "lima": 40}


class Pictures(torch_data.Dataset):
    """Bytes and a class, as a dictionary, where the class is how bright the picture is."""

    def __init__(self, count: int) -> None:
        self.classes = RANDOM.integers(0, 2, count)
        self.pixels = (
            RANDOM.integers(0, 100, (count, 1, 4, 4)) + 150 * self.classes[:, None, None, None]
        ).astype(np.uint8)

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"image": torch.tensor(self.pixels[i]), "label": int(self.classes[i])}


def tensors() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Rows and classes of each client; a class is the sign of the first number."""
    made = {
        name: torch.tensor(RANDOM.normal(size=(size, 5)), dtype=torch.float32) for name, size in SIZES.items()
    }
    return {name: (x, (x[:, 0] > 0).long()) for name, x in made.items()}


def reported(data: eh.data.FederatedDataset, features: int, folder: Path) -> eh.Run:
    model = eh.models.softmax_regression(features=features, classes=2)
    work = eh.local.sgd(model, 0.5, epochs=2, batch_size=10)
    run = eh.simulate(eh.algorithms.fedavg(work), data, rounds=10)
    page = run.report(folder / "report.html").read_text("utf-8")
    assert all(name in page for name in data.client_ids)
    return run


@pytest.mark.parametrize("kind", ["whole", "subset"])
def test_tensors_go_from_the_data_sets_to_the_report(kind: str, tmp_path: Path) -> None:
    parts = tensors()
    sets = {name: torch_data.TensorDataset(*part) for name, part in parts.items()}
    kept = {name: slice(None) if kind == "whole" else slice(1, None, 2) for name in parts}
    if kind == "subset":
        sets = {name: torch_data.Subset(rows, range(1, len(rows), 2)) for name, rows in sets.items()}
    data = eh.data.from_torch_datasets(sets, test_fraction=0.25, seed=3)
    x = np.concatenate([part[0].numpy()[kept[name]] for name, part in parts.items()])
    y = np.concatenate([part[1].numpy()[kept[name]] for name, part in parts.items()])
    client = [name for name, part in parts.items() for _ in part[1].numpy()[kept[name]]]
    arrays = eh.data.from_arrays(x, y, client, test_fraction=0.25, seed=3)
    for k, name in enumerate(data.client_ids):
        for ours, theirs in ((data.train, arrays.train), (data.test, arrays.test)):
            np.testing.assert_array_equal(ours.client(k)[0], theirs.client(arrays.client_ids.index(name))[0])
            np.testing.assert_array_equal(ours.client(k)[1], theirs.client(arrays.client_ids.index(name))[1])
    assert reported(data, 5, tmp_path).summary("test")["mean"] > 0.8


def test_pictures_in_dictionaries_go_to_the_report(tmp_path: Path) -> None:
    train = {name: Pictures(size) for name, size in SIZES.items()}
    test = {name: Pictures(10) for name in SIZES}
    data = eh.data.from_torch_datasets(train, test=test, x="image", y="label")
    assert data.feature_shape == (1, 4, 4) and data.train.x.dtype == np.float32 and data.test.rows == 30
    k = data.client_ids.index("rome")
    np.testing.assert_allclose(data.train.client(k)[0], train["rome"].pixels / 255, rtol=1e-6)
    assert reported(data, 16, tmp_path).summary("test")["mean"] > 0.9
