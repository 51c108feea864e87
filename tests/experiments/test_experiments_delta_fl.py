"""The experiment on Delta-FL runs from the command line, and its saved numbers say what its page claims."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import evenhand as eh
from experiments.delta_fl import data

FOLDER = Path(__file__).parents[2] / "experiments" / "delta_fl"
SYNTHETIC = {"clients": 60, "strangers": 20, "rows": 30, "alpha": 0.5, "stranger_alpha": 0.01}


def _saved(table: str) -> dict[str, dict[str, list[float]]]:
    content = json.loads((FOLDER / "results" / f"{table}.json").read_text())
    return {
        name: {measure: [seed[measure] for seed in each["seeds"]] for measure in each["mean"]}
        for name, each in content["methods"].items()
    }


def _run(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["", *options])
    runpy.run_module("experiments.delta_fl", run_name="__main__", alter_sys=True)


def test_the_synthetic_table_at_a_tiny_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = [
        part
        for name, value in SYNTHETIC.items()
        for part in (f"--synthetic.data.{name.replace('_', '-')}", str(value))
    ]
    setting = ["--synthetic.rounds", "20", "--synthetic.cohort", "15", "--synthetic.thetas", "1.0", "0.25"]
    only = ["--only", "FedAvg", "FedProx", "Tilted", "Delta-FL"]
    _run(
        monkeypatch, "--tables", "synthetic", "--seeds", "1", "--out", str(tmp_path), *shape, *setting, *only
    )

    content = json.loads((tmp_path / "synthetic.json").read_text())
    found = {name: each["seeds"][0] for name, each in content["methods"].items()}
    assert len(found) == 6
    # One full-batch step never leaves the anchor, so the proximal term does nothing; theta = 1 is the plain mean.
    assert found["FedProx, mu=0.01"] == found["FedAvg"] == pytest.approx(found["Delta-FL, theta=1"], rel=1e-4)
    assert found["FedAvg-Sub"] != found["FedAvg"]
    assert found["Delta-FL, theta=0.25"]["train_loss_std"] < found["FedAvg"]["train_loss_std"]
    assert all(
        each["p10"] <= each["p50"] <= each["p90"] <= each["superquantile90"] for each in found.values()
    )


def test_mnist_and_shakespeare_run_from_files_of_their_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(10, size=400, dtype=np.uint8)
    pixels = random.integers(50, size=(400, 28, 28), dtype=np.uint8)
    pixels[np.arange(400), labels] = 255
    np.savez(tmp_path / "mnist.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    texts = np.array(["to be or not to be, that is the question: $ " * 3, "O Romeo, Romeo! " * 9])
    np.savez(tmp_path / "shakespeare_speakers.npz", speaker=np.array(["HAMLET", "JULIET"]), text=texts)
    out = tmp_path / "out"
    mnist = ["--mnist.data.clients", "5", "--mnist.data.smallest", "50", "--mnist.data.largest", "90"]
    rounds = ["--mnist.rounds", "3", "--shakespeare.rounds", "4", "--mnist.cohort", "3"]
    cohort = ["--shakespeare.cohort", "2", "--mnist.rates", "0.1", "--shakespeare.rates", "0.1"]
    few = ["--mnist.data.strangers", "2", "--mnist.data.stranger-rows", "20", "--mnist.decays", "0.5"]
    where = ["--data-dir", str(tmp_path), "--out", str(out), "--tune"]
    _run(monkeypatch, "--tables", "mnist", "shakespeare", *where, *mnist, *few, *rounds, *cohort)

    for table, chance in (("mnist", 90.0), ("shakespeare", 98.0)):
        content = json.loads((out / f"{table}_rates.json").read_text())
        assert content["methods"]["FedAvg, 0.1"]["mean"]["mean"] < chance - 20
    assert content["config"]["rounds"] == 4
    assert len(json.loads((out / "mnist_rates.json").read_text())["methods"]) == 2


def test_label_shift_clients_share_no_row_and_strangers_have_fewer_labels() -> None:
    train, tests = data.clients("synthetic", Path(), 3, **SYNTHETIC)
    strangers = tests[""]

    assert train.train.sizes.tolist() == [30] * 60
    assert strangers.sizes.tolist() == [30] * 20
    # Rows are drawn without replacement, and no client tests on a row that another trains on.
    rows = np.concatenate([train.train.x, strangers.x])
    assert len(np.unique(rows, axis=0)) == len(rows)
    kinds = [[len(set(split.client(k)[1].tolist())) for k in range(20)] for split in (train.train, strangers)]
    assert np.mean(kinds[0]) > 2 * np.mean(kinds[1])


def test_rows_are_dealt_out_until_none_are_left() -> None:
    labels = np.repeat(np.arange(4), 25)
    sizes = np.array([40, 30, 30])
    chosen = data._deal(labels, sizes, np.full(3, 0.05), np.random.default_rng(1))
    assert [len(rows) for rows in chosen] == sizes.tolist()
    assert sorted(np.concatenate(chosen).tolist()) == list(range(100))


def test_speakers_are_tested_on_the_end_of_their_text(tmp_path: Path) -> None:
    text = "abcdefghij" * 8
    np.savez(tmp_path / "shakespeare_speakers.npz", speaker=np.array(["A"]), text=np.array([text]))
    found, tests = data.clients("shakespeare", tmp_path, 0, window=4, most=76, test_fraction=0.25)
    test = tests[""]
    first = eh.data.encode_characters(text)
    assert found.train.rows == 60 - 4
    assert test.rows == 20 - 4
    assert found.train.x[0].tolist() == first[:4].tolist()
    assert found.train.y[0] == first[4]
    assert test.x[0].tolist() == first[60:64].tolist()


def _lower(ours: list[float], theirs: list[float]) -> int:
    return sum(a < b for a, b in zip(ours, theirs, strict=True))


def test_delta_fl_lowers_the_saved_90th_percentile_of_label_shift_at_the_same_mean() -> None:
    saved = _saved("synthetic")
    average, ours = saved["FedAvg"], saved["Delta-FL, theta=0.5"]
    assert _lower(ours["p90"], average["p90"]) == len(ours["p90"]) == 5
    assert all(abs(a - b) < 0.3 for a, b in zip(ours["mean"], average["mean"], strict=True))
    assert saved["FedProx, mu=0.01"] == average
    by_theta = [np.mean(saved[f"Delta-FL, theta={theta:g}"]["p90"]) for theta in (0.8, 0.5, 0.25, 0.1)]
    assert sorted(by_theta, reverse=True) == by_theta


def test_delta_fl_lowers_the_saved_90th_percentile_of_mnist_at_about_the_same_mean() -> None:
    saved = _saved("mnist")
    average, ours = saved["FedAvg"], saved["Delta-FL, theta=0.5"]
    assert _lower(ours["p90"], average["p90"]) == _lower(ours["digits_p90"], average["digits_p90"]) == 5
    assert all(abs(a - b) < 1.5 for a, b in zip(ours["mean"], average["mean"], strict=True))
    assert min(saved, key=lambda name: np.mean(saved[name]["p90"])) == "Delta-FL, theta=0.5"


@pytest.mark.parametrize(
    ("table", "lower"),
    [("mnist_small", 3), ("decay/mnist_small", 1), ("shakespeare", 0)],
)
def test_where_clients_errors_hardly_differ_only_the_training_losses_draw_together(
    table: str, lower: int
) -> None:
    saved = _saved(table)
    average, ours = saved["FedAvg"], saved["Delta-FL, theta=0.5"]
    # The page says that the claim does not reproduce there.
    assert _lower(ours["p90"], average["p90"]) == lower
    assert _lower(ours["train_loss_std"], average["train_loss_std"]) == 5
    assert all(abs(a - b) < 2 for a, b in zip(ours["mean"], average["mean"], strict=True))


def test_shares_are_the_mixture_of_digits_of_each_client() -> None:
    split = eh.data.Split(np.zeros((5, 1)), np.array([0, 0, 2, 1, 1]), np.array([0, 3, 5]))
    np.testing.assert_allclose(data.shares(split, 3), [[2 / 3, 0, 1 / 3], [0, 1, 0]])
