"""Annotators of low quality: their labels, the methods' images, and the page against the saved numbers."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.term import annotators

FOLDER = Path(__file__).parents[2] / "experiments" / "term"
TABLES = ("annotators", "annotators_graded")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small images of MNIST's form; the digit is a bright row."""
    rng = np.random.default_rng(0)
    digits = rng.permutation(np.repeat(np.arange(10, dtype=np.uint8), 120))
    pixels = rng.integers(60, size=(len(digits), 10, 10), dtype=np.uint8)
    pixels[np.arange(len(digits)), digits] = 255
    path = tmp_path_factory.mktemp("data")
    np.savez(path / "mnist.npz", x_train=pixels, y_train=digits, x_test=pixels[:200], y_test=digits[:200])
    return path


def tiny(folder: Path, **more: object) -> annotators.Config:
    few = {"images": 1000, "valid": 100, "annotators": 20, "hammers": 4, "hidden": 8, "batch_size": 20}
    return annotators.Config(data_dir=folder, **{**few, "learning_rates": (0.1,), "seeds": 1, **more})


def right_labels(labelled: annotators.Labelled) -> np.ndarray:
    return labelled.x.reshape(len(labelled.x), 10, 10).mean(axis=2).argmax(axis=1)


def test_the_experiment_at_a_tiny_size(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["annotators.py", "--tiny"])
    annotators.main(tiny(folder, out=tmp_path, steps=400))

    for name in TABLES:
        saved = json.loads((tmp_path / f"{name}.json").read_text())
        assert saved["command"] == "python -m experiments.term.annotators --tiny"
        accuracy = {method: numbers["mean"]["test_accuracy"] for method, numbers in saved["methods"].items()}
        assert accuracy["Genie ERM"] > 0.9
        assert accuracy["TERM, tilt ramped"] > accuracy["ERM"]
        assert saved["learning_rate"] == dict.fromkeys(accuracy, 0.1)
        shares = {method: numbers["mean"]["first_share"] for method, numbers in saved["methods"].items()}
        assert shares["ERM"] == pytest.approx(0.2)
        assert shares["TERM"] > 0.5
    with pytest.raises(SystemExit, match=r"no .*mnist\.npz: say with --data-dir"):
        annotators.images(tmp_path)
    with pytest.raises(SystemExit, match="1200 images are fewer than"):
        annotators.graded(tiny(folder, valid=300), 0)


def test_hammers_are_right_and_spammers_are_not(folder: Path) -> None:
    labelled = annotators.hammers_and_spammers(tiny(folder), 0)
    assert np.bincount(labelled.annotator).tolist() == [50] * 20
    assert (labelled.is_random == (labelled.annotator >= 4)).all()
    is_right = labelled.y == right_labels(labelled)
    assert is_right[labelled.annotator < 4].all()
    assert is_right[labelled.annotator >= 4].mean() == pytest.approx(0.1, abs=0.04)
    other = annotators.hammers_and_spammers(tiny(folder), 1)
    assert (labelled.y != other.y).any()
    assert (right_labels(labelled) != right_labels(other)).any()


def test_graded_annotators_err_by_their_share_and_the_last_always(folder: Path) -> None:
    labelled = annotators.graded(tiny(folder), 0)
    is_right = labelled.y == right_labels(labelled)
    for annotator, share in enumerate((0.0, 0.2, 0.4, 1.0)):
        of = labelled.annotator == annotator
        assert labelled.is_random[of].mean() == pytest.approx(share)
        assert is_right[of].mean() == pytest.approx(1.0 - 0.9 * share, abs=0.08)
    last = labelled.annotator == 4
    assert labelled.is_random[last].all()
    assert ((right_labels(labelled)[last] + 1) % 10 == labelled.y[last]).all()


def test_methods_train_on_the_images_that_their_names_say(folder: Path) -> None:
    labelled = annotators.graded(tiny(folder), 0)
    counts = {
        "ERM": 1000,
        "Genie ERM": 200 * (1 + 0.8 + 0.6),
        "without the worst annotator": 800,
        "without the two worst": 600,
    }
    for method, count in counts.items():
        rows = annotators.kept_rows(labelled, method)
        assert rows is not None
        assert rows.sum() == count
    assert annotators.kept_rows(labelled, "TERM") is None
    rows = annotators.kept_rows(labelled, "without the worst annotator")
    assert rows is not None
    assert (labelled.annotator[rows] < 4).all()


# --- the saved numbers -------------------------------------------------------------------------------------------


def saved(name: str) -> dict:
    return json.loads((FOLDER / "results" / f"{name}.json").read_text(encoding="utf-8"))


def accuracies(name: str) -> dict[str, np.ndarray]:
    methods = saved(name)["methods"]
    assert all(len(numbers["seeds"]) == 5 for numbers in methods.values())
    return {
        method: np.array([seed["test_accuracy"] for seed in numbers["seeds"]])
        for method, numbers in methods.items()
    }


def test_saved_term_reaches_genie_with_hammers_and_spammers() -> None:
    accuracy = accuracies("annotators")
    for method in ("TERM", "TERM, tilt ramped"):
        assert abs(accuracy[method].mean() - accuracy["Genie ERM"].mean()) < 0.01
        assert (accuracy[method] > accuracy["ERM"] + 0.04).all()
        assert (accuracy[method] < accuracy["Genie ERM"]).all()


def test_saved_term_follows_the_adversary_once_unless_ramped() -> None:
    accuracy = accuracies("annotators_graded")
    assert (accuracy["TERM"] < 0.01).sum() == 1
    for other in ("ERM", "without the worst annotator", "without the two worst"):
        assert (accuracy["TERM"] > accuracy[other]).sum() == 4
    ramped = accuracy["TERM, tilt ramped"]
    assert (ramped > accuracy["ERM"]).all()
    assert (ramped > accuracy["without the worst annotator"]).all()
    assert (ramped > 0.95).all()


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_the_saved_numbers(name: str) -> None:
    page = (FOLDER / "annotators.md").read_text(encoding="utf-8")
    content = saved(name)
    start = page.index("| " + content["title"])
    rows = dict(re.findall(r"^\| ([^|]+) \|(.*)\|$", page[start:].split("\n\n")[0], flags=re.MULTILINE))
    assert set(content["methods"]) < set(rows)
    for method, numbers in content["methods"].items():
        cells = [re.findall(r"[\d.]+", cell) for cell in rows[method].split("|")]
        for cell, measure in zip(cells, ("test_accuracy", "first_share"), strict=False):
            assert float(cell[0]) == pytest.approx(numbers["mean"][measure], abs=5.1e-4)
            assert float(cell[1]) == pytest.approx(numbers["error"][measure], abs=5.1e-4)
        assert float(cells[2][0]) == content["learning_rate"][method]
