"""The experiment on Delta-FL runs from the command line, and its saved numbers say what its page claims."""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import evenhand as eh
from experiments.delta_fl import data, newcomers
from experiments.delta_fl.settings import FEMNIST, NEWCOMERS
from experiments.evidence import contrast, section

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


# --- clients that were never seen in training ---------------------------------------------------------------------


def _images(folder: Path) -> None:
    """Digits in which one pixel is dark, of twelve groups of writers who write on paper of different shades."""
    random = np.random.default_rng(0)
    writer = np.repeat(np.arange(12), 60).astype(np.int32)
    y = random.integers(10, size=len(writer), dtype=np.uint8)
    x = np.full((len(writer), 28, 28), 255, np.uint8) - (3 * writer[:, None, None]).astype(np.uint8)
    # Somebody else's handwriting: one in three draws a digit as the next one.
    x[np.arange(len(writer)), (y + (random.random(len(y)) < 0.3)) % 10] = 60
    np.savez(folder / "femnist_digits.npz", x=x, y=y, writer=writer)
    np.savez(folder / "mnist.npz", x_train=255 - x, y_train=y, x_test=x[:0], y_test=y[:0])


SHAPE = {
    "clients": 12,
    "alpha": 1.0,
    "smallest": 12,
    "largest": 40,
    "exponent": 1.0,
    "valid_fraction": 0.25,
}


@pytest.mark.parametrize("place", get_args(data.HeldOut))
def test_unseen_clients_share_no_row_with_those_that_train(place: data.HeldOut, tmp_path: Path) -> None:
    _images(tmp_path)
    random = np.random.default_rng(1)
    with np.load(tmp_path / "femnist_digits.npz") as file:
        marked = file["x"].copy()
        # Each image gets a mark of its own, by which it is found again.
        marked[:, 20:] = random.integers(256, size=marked[:, 20:].shape)
        content = {"x": marked, "y": file["y"], "writer": file["writer"]}
    np.savez(tmp_path / "femnist_digits.npz", **content)
    np.savez(tmp_path / "mnist.npz", x_train=marked, y_train=content["y"])
    both = [data.held_out(place, tmp_path, seed, **SHAPE) for seed in (7, 8)]
    for train, unseen in both:
        splits = [train.train, train.valid, unseen.train, unseen.test]
        rows = np.concatenate([split.x for split in splits])
        assert len(np.unique(rows, axis=0)) == len(rows)
        assert train.test.rows == unseen.valid.rows == 0
        total = train.train.sizes + train.valid.sizes
        assert total.tolist() == (unseen.train.sizes + unseen.test.sizes).tolist()
        assert (train.valid.sizes > 0).all() and (train.train.sizes >= 2 * train.valid.sizes).all()
        assert (abs(unseen.train.sizes - unseen.test.sizes) <= 1).all()
    # All seeds run in one compiled program, on other rows.
    assert both[0][0].train.sizes.tolist() == both[1][0].train.sizes.tolist()
    assert not np.array_equal(both[0][0].train.x, both[1][0].train.x)


def test_unseen_clients_of_femnist_have_other_writers(tmp_path: Path) -> None:
    _images(tmp_path)
    train, unseen = data.held_out("femnist", tmp_path, 3, **SHAPE)
    # The shade of the paper names the group; it is turned round, so that ink is bright.
    groups = [
        {round(float(np.median(row)) * 255) for split in splits for row in split.x}
        for splits in ((train.train, train.valid), (unseen.train, unseen.test))
    ]
    assert [len(group) for group in groups] == [6, 6]
    assert not groups[0] & groups[1]
    assert max(groups[0] | groups[1]) <= 33


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The experiment on a few images, with two seeds."""
    folder = tmp_path_factory.mktemp("newcomers")
    _images(folder)
    few = {
        "cohort": 4,
        "few": 20,
        "rounds": 2,
        "rates": 0.03,
        "thetas": 0.5,
        "epochs": 1,
        "finetune-rates": 0.01,
    }
    few |= {"tuning": 1, "more-seeds": 2} | {f"data.{name.replace('_', '-')}": SHAPE[name] for name in SHAPE}
    options = [part for name, value in few.items() for part in (f"--unseen-femnist.{name}", str(value))]
    where = ["--data-dir", str(folder), "--out", str(folder), "--folder", str(folder / "runs")]
    with pytest.MonkeyPatch.context() as monkeypatch:
        _run(monkeypatch, "--parts", "newcomers", "--places", "femnist", "--seeds", "2", *where, *options)
    assert (folder / "newcomers_femnist.png").read_bytes().startswith(b"\x89PNG")
    return json.loads((folder / "newcomers_femnist.json").read_text())


def test_unseen_clients_at_a_tiny_size(served: dict[str, Any]) -> None:
    assert list(served["methods"]) == ["FedAvg", "Tilted-ERM, t=1", "q-FFL, q=0.1", "Delta-FL, theta=0.5"]
    assert list(served["findings"]) == ["before", "after", "few", "spread"]
    assert served["rates"]["p90 valid"] == dict.fromkeys(served["methods"], 0.03)
    for method in served["methods"].values():
        assert len(method["seeds"]) == 2
        # Finetuning teaches a client its own digits.
        assert method["mean"]["mean after"] < method["mean"]["mean before"]


def test_the_findings_follow_from_the_saved_seeds(served: dict[str, Any]) -> None:
    ours, theirs = (served["methods"][name]["seeds"] for name in ("Delta-FL, theta=0.5", "FedAvg"))
    for name, key, minus in (
        ("before", "p90 before", None),
        ("after", "p90 after", None),
        ("few", "mean few", "mean many"),
        ("spread", "std few", None),
    ):
        expected = [
            a[key] - b[key] - (a[minus] - b[minus] if minus else 0.0)
            for a, b in zip(ours, theirs, strict=True)
        ]
        assert served["findings"][name]["finding"]["contrast"]["seeds"] == pytest.approx(expected, abs=1e-3)


def test_errors_by_size_are_those_of_the_saved_clients(served: dict[str, Any]) -> None:
    sizes = np.array(served["sizes"]["error"])
    for method, clients in served["clients"].items():
        for errors, losses, seed in zip(
            clients["error"], clients["loss"], served["methods"][method]["seeds"], strict=True
        ):
            few, many = np.array(errors)[sizes < 20], np.array(errors)[sizes >= 20]
            assert len(few) and len(many)
            assert [seed["mean few"], seed["mean many"]] == pytest.approx([few.mean(), many.mean()], abs=1e-2)
            assert seed["std few"] == pytest.approx(few.std(), abs=1e-2)
            assert seed["train loss"] == pytest.approx(np.mean(losses), abs=1e-2)


def test_finetuning_starts_from_the_last_step_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[float, int | None]] = []
    plain = eh.local.sgd

    def noted(model: eh.Model, step: float, *, epochs: int, batch_size: int) -> eh.local.Work:
        steps.append((step, epochs))
        return plain(model, step, epochs=epochs, batch_size=batch_size)

    monkeypatch.setattr(eh.local, "sgd", noted)
    runs = newcomers.Runs(place="mnist", setting=NEWCOMERS, data_dir=Path(), seeds=1, tilt=1.0, folder=None)
    method = newcomers._finetuned(runs, "Delta-FL, theta=0.5", 0.4)
    # Steps are halved twice in a run.
    assert steps == [(0.4, 1), (0.1, 10)]
    assert method.adapt is not None


def test_errors_before_finetuning_are_on_the_half_that_does_not_finetune(tmp_path: Path) -> None:
    _images(tmp_path)
    shape = {**SHAPE, "smallest": 10}
    setting = replace(FEMNIST, data=shape, rounds=2, epochs=3, finetune_rates=())
    runs = newcomers.Runs("femnist", setting, tmp_path, seeds=1, tilt=1.0, folder=None)
    train, unseen = data.held_out("femnist", tmp_path, 0, **shape)
    method = newcomers._finetuned(runs, "FedAvg", 0.05)
    run = eh.simulate(method, train, rounds=2, eval_every=2)

    kernel, bias = np.asarray(run.params["kernel"]), np.asarray(run.params["bias"])

    def errors(part: eh.data.Split) -> np.ndarray:
        wrong = np.argmax(part.x @ kernel + bias, axis=1) != part.y
        return 100 * np.array([np.mean(each) for each in np.split(wrong, part.offsets[1:-1])])

    found = newcomers.measure(runs, run)
    halves = [errors(part) for part in (unseen.train, unseen.test)]
    assert halves[0].mean() != halves[1].mean()
    before = [found["mean before"], found["p90 before"]]
    assert before == pytest.approx([halves[1].mean(), np.quantile(halves[1], 0.9)])
    after = 100 * (1 - run.serve(unseen).client_metrics("test")["accuracy"])
    assert found["mean after"] == pytest.approx(after.mean()) and after.mean() != halves[1].mean()
    # The error of a client over all of its examples: a half has one more at an odd number.
    sizes = unseen.train.sizes, unseen.test.sizes
    every = (halves[0] * sizes[0] + halves[1] * sizes[1]) / (sizes[0] + sizes[1])
    assert [found[f"error of {k}"] for k in range(12)] == pytest.approx(every)
    # Nothing is measured before the last round.
    assert newcomers.measure(runs, eh.simulate(method, train, rounds=0)) == {}


PLACES = get_args(data.HeldOut)


def _newcomers(place: str) -> dict[str, Any]:
    return json.loads((FOLDER / "results" / f"newcomers_{place}.json").read_text())


@pytest.mark.parametrize("place", PLACES)
def test_the_page_has_the_saved_numbers_of_unseen_clients(place: str) -> None:
    content, page = _newcomers(place), (FOLDER / "README.md").read_text()
    for method, saved in content["methods"].items():
        assert len(saved["seeds"]) == 5
        cells = []
        for name in ("mean before", "mean after", "p90 before", "p90 after"):
            paper = content["paper"].get(method, {})
            cells.append(f"{saved['mean'][name]:.1f} ± {saved['std'][name]:.1f}")
            cells[-1] += f" [{paper[name]:.1f}]" if paper else ""
        assert f"| {method} | {' | '.join(cells)} | {content['rates']['p90 valid'][method]:g} |" in page
        sizes = [
            f"{saved['mean'][name]:.1f} ± {saved['std'][name]:.1f}"
            for name in ("mean few", "mean many", "std few", "std many")
        ]
        assert f"| {method} | {' | '.join(sizes)} |" in page
    assert all(section(claim) in page for claim in content["findings"].values())


@pytest.mark.parametrize("place", PLACES)
def test_the_saved_findings_on_unseen_clients_follow_from_their_seeds(place: str) -> None:
    content = _newcomers(place)
    ours, theirs = (content["methods"][name]["seeds"] for name in ("Delta-FL, theta=0.5", "FedAvg"))
    for name, key in (("before", "p90 before"), ("after", "p90 after"), ("spread", "std few")):
        saved = content["findings"][name]["finding"]["contrast"]
        again = contrast(ours, theirs, key)
        assert [saved[end] for end in ("mean", "low", "high")] == pytest.approx(
            [again[end] for end in ("mean", "low", "high")], abs=2e-3
        )


def test_verdicts_on_unseen_clients_follow_from_the_saved_intervals() -> None:
    def interval(place: str, name: str) -> tuple[float, float]:
        saved = _newcomers(place)["findings"][name]["finding"]["contrast"]
        return saved["low"], saved["high"]

    def mean(place: str, method: str, name: str) -> float:
        return _newcomers(place)["methods"][method]["mean"][name]

    for place in PLACES:
        # No clear difference before or after finetuning, nor between clients with little data and the others.
        assert all(low <= 0 <= high for low, high in (interval(place, name) for name in ("before", "few")))
        assert interval(place, "after")[0] < 0 < interval(place, "after")[1] + 0.05
        spreads = [
            [seed["train loss std"] for seed in _newcomers(place)["methods"][name]["seeds"]]
            for name in ("Delta-FL, theta=0.5", "FedAvg")
        ]
        assert _lower(*spreads) == 5
    assert interval("mnist", "spread")[1] < 0 < interval("femnist", "spread")[1]
    assert mean("mnist", "FedAvg", "mean after") < 0.55 * mean("mnist", "FedAvg", "mean before")
    assert mean("femnist", "FedAvg", "mean after") > mean("femnist", "FedAvg", "mean before")
    # At the steps that are best for each, the difference after finetuning is gone.
    tuned = _newcomers("mnist")["findings"]["after"]["rivals"][0]
    assert tuned["kind"] == "tuning" and abs(tuned["contrast"]["mean"]) < 0.05
    assert mean("mnist", "Delta-FL, theta=0.1", "mean after") > mean("mnist", "FedAvg", "mean after")
    behind = (
        " against ".join(
            f"{mean(place, name, 'mean after'):.1f}" for name in ("Delta-FL, theta=0.1", "FedAvg")
        )
        for place in PLACES
    )
    assert f"| {' | '.join(behind)} |" in (FOLDER / "README.md").read_text()
