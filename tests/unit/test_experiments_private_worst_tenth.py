"""What privacy costs the worst-served tenth: the experiment runs, and the page says what the saved numbers say."""

from __future__ import annotations

import json
import runpy
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("experiments", reason="experiments are not part of the package")

from experiments.private import clients

FOLDER = Path(__file__).parents[2] / "experiments" / "private"


def _digits(folder: Path) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(10, size=600, dtype=np.uint8)
    pixels = random.integers(50, size=(600, 28, 28), dtype=np.uint8)
    pixels[np.arange(600), labels] = 255
    np.savez(folder / "mnist.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)


def test_the_experiment_at_a_tiny_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _digits(tmp_path)
    tiny = ["--mnist.clients", "20", "--mnist.cohort", "10", "--mnist.rounds", "3", "--seeds", "1"]
    what = ["--places", "mnist", "--methods", "DP-FedAvg", "--epsilons", "1.0", "inf"]
    options = ["--data-dir", str(tmp_path), "--out", str(tmp_path), *tiny, *what]
    monkeypatch.setattr(sys, "argv", ["", *options])

    runpy.run_module("experiments.private.worst_tenth", run_name="__main__", alter_sys=True)

    saved = json.loads((tmp_path / "worst_tenth.json").read_text())
    assert shlex.split(saved["command"]) == ["python", "-m", "experiments.private.worst_tenth", *options]
    found = saved["places"]["mnist"]["DP-FedAvg"]
    assert found["1"]["epsilon"] == pytest.approx(1.0, abs=1e-4)
    assert found["inf"]["noise"] == 0.0
    assert all(len(each["valid"]) == 6 for each in found.values())
    (private,), (free,) = (found[budget]["seeds"] for budget in ("1", "inf"))
    assert private["test_worst10"] <= private["test_mean"] < free["test_mean"]
    assert (tmp_path / "worst_tenth.png").read_bytes().startswith(b"\x89PNG")


def test_a_client_is_measured_on_its_own_mixture_of_labels() -> None:
    y = np.array([1, 0, 1, 1])
    rows = clients.by_label(np.arange(4.0)[:, None], y, 2)
    assert rows.y.tolist() == [0, 1, 1, 1]
    assert rows.x[:, 0].tolist() == [1, 0, 2, 3]
    assert rows.sizes.tolist() == [1, 3]


def test_clients_of_mnist_have_two_digits_each_and_no_image_is_used_twice(tmp_path: Path) -> None:
    _digits(tmp_path)
    place = clients.mnist(tmp_path, 20, 3)
    assert ((place.shares > 0).sum(axis=1) == 2).all()
    assert place.data.train.rows == 500
    assert place.rows["valid"].rows == 100
    both = np.concatenate([place.data.train.x, place.rows["valid"].x])
    assert len(np.unique(both, axis=0)) == 600
