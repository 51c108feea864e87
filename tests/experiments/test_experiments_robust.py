"""The experiments on robust rules: they run at a tiny size, and their saved numbers say what their page claims."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tyro

from experiments.robust import __main__ as command
from experiments.robust import breakdown, figure, least_squares, rfa, rivals
from experiments.robust.data import mnist

FOLDER = Path(command.__file__).parent
TINY = ["--seeds", "1", "--clients", "6", "--images", "240", "--rounds", "2", "--rates", "0.3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images like MNIST's: each digit has ink in another column."""
    at, random = tmp_path_factory.mktemp("mnist"), np.random.default_rng(0)
    y = np.tile(np.arange(10, dtype=np.uint8), 200)
    x = random.integers(0, 60, (len(y), 28, 28))
    x[np.arange(len(y)), :, 2 * y + 3] += 150
    np.savez(at / "mnist.npz", x_train=x.astype(np.uint8), y_train=y, x_test=x[:10], y_test=y[:10])
    return at


def run(folder: Path, out: Path, *words: str) -> None:
    command.main(tyro.cli(command.Config, args=["--data-dir", str(folder), "--out", str(out), *words]))


def saved(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / "results" / f"{name}.json").read_text())
    return content


def mean(cells: Sequence[dict[str, float]], what: str = "mean") -> float:
    return float(np.mean([cell[what] for cell in cells]))


@pytest.mark.parametrize("deal", ["dirichlet", "two classes"])
def test_clients_are_uneven_and_unlike_and_no_image_is_dealt_twice(folder: Path, deal: Any) -> None:
    data = [mnist(folder, seed, deal=deal, clients=6, images=240) for seed in (0, 1)]
    sizes = [np.sort(each.train.sizes + each.valid.sizes + each.test.sizes) for each in data]
    assert sizes[0].tolist() == sizes[1].tolist() and sizes[0][-1] == 10 * round(sizes[0][-1] / 10)
    assert sizes[0][-1] >= 8 * sizes[0][0]
    rows = np.concatenate([split.x for split in (data[0].train, data[0].valid, data[0].test)])
    assert len(np.unique(rows, axis=0)) == len(rows) and rows.shape[1] == 196
    digits = [len(np.unique(part)) for part in np.split(data[0].train.y, data[0].train.offsets[1:-1])]
    assert max(digits) <= (2 if deal == "two classes" else 10)


def test_the_map_at_a_tiny_size_goes_on_where_it_was_stopped(folder: Path, tmp_path: Path) -> None:
    of = ["--rules", "mean", "clip", "--attacks", "none", "sign flip", "ALIE, strongest"]
    how = [
        "--parts",
        "map",
        "--lengths",
        "0.3",
        "--fractions",
        "0.2",
        "0.34",
        *TINY,
        "--folder",
        str(tmp_path / "runs"),
        *of,
    ]
    run(folder, tmp_path, *how)
    content = json.loads((tmp_path / "map.json").read_text())
    assert list(content["percent"]) == ["0.2", "0.34"] and set(content["settings"]["clip"]) == {
        "rate",
        "length",
    }
    for of_rule in content["percent"]["0.2"].values():
        assert list(of_rule) == ["none", "sign flip", "ALIE, strongest"]
        assert all(0 <= cell["worst10"][0] <= cell["mean"][0] <= 100 for cell in of_rule.values())
    assert (tmp_path / "map.png").stat().st_size > 5_000
    lines = figure.summary(tmp_path / "map.json").splitlines()
    assert lines[0].startswith("| rule | no attack, set for 20 % | worst attack, 20 % |") and len(lines) == 4
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("result.json")}
    run(folder, tmp_path, *how)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("result.json")}


def test_rfa_and_its_rivals_at_a_tiny_size(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ["none", "omniscient 25"]
    every = rfa._corruptions()
    monkeypatch.setattr(rfa, "_corruptions", lambda: {name: every[name] for name in few})
    monkeypatch.setattr(rivals, "LEVELS", {"A1": (0.2,), "A2": (), "A3": (0.2,)})
    rules = rivals._rules(2)
    monkeypatch.setattr(
        rivals, "_rules", lambda malicious: {name: rules[name] for name in ("global", "k-loss")}
    )
    many = ["--many-clients", "10", "--many-images", "400", "--cohort", "5", "--communications", "3"]
    how = ["--parts", "rfa", "rivals", "--rival-rounds", "1", "--nets", "linear", "--deals", "two classes"]
    run(folder, tmp_path, *how, *TINY, *many)
    found = json.loads((tmp_path / "rfa_linear.json").read_text())
    assert set(found["percent"]) == {"FedAvg", "RFA", "RFA from zero", "one-step RFA"}
    assert all(list(of) == few for of in found["percent"].values()) and found["paper"]["RFA"]["none"] == 62.9
    found = json.loads((tmp_path / "rivals_two_classes.json").read_text())["percent"]
    assert set(found) == {"clean", "A1 20", "A3 20"} and set(found["A3 20"]) == {"global", "k-loss"}


def test_least_squares_halves_its_error_until_a_floor() -> None:
    """Mean: its opposite, twice as far each round.  RFA: down by far more than half, and lower for like clients."""
    problem = least_squares.Problem(clients=12, malicious=3, dimensions=4, rounds=6, steps=10)
    mean = least_squares.measure(problem, least_squares.RULES["mean"], 0)
    robust = least_squares.measure(problem, least_squares.RULES["RFA"], 0)
    unlike = least_squares.measure(problem._replace(unlike=1.0), least_squares.RULES["RFA"], 0)
    assert mean[-1] > 10 * mean[0] and robust[-1] < 0.01 * robust[0] and unlike[-1] > 3 * robust[-1]
    assert breakdown.CLASSES == 10 and set(rfa.PAPER) == {"FedAvg", "RFA"} and sys.version_info >= (3, 11)


def test_the_saved_numbers_say_what_the_page_says_of_least_squares_and_synthetic_data() -> None:
    found = {name: np.array(seeds) for name, seeds in saved("least_squares")["squared_errors"].items()}
    assert all(each.shape == (5, 12) for each in found.values())
    floors = [found[f"RFA, Omega_Y={unlike}"][:, -1].mean() for unlike in ("0.1", "0.2", "0.4")]
    assert 3 < floors[1] / floors[0] < 5 and 3 < floors[2] / floors[1] < 5
    assert (found["RFA, Omega_Y=0"][:, 3] < found["RFA, Omega_Y=0"][:, 0] / 400).all()
    assert (found["mean, Omega_Y=0"][:, 11] > 1e5).all()
    shares = [found[f"RFA, {count} malicious"][:, -1].mean() for count in (0, 4, 10, 14, 18)]
    assert sorted(shares) == shares
    content = saved("synthetic")
    for name, anchors in content["other"].items():
        for seeds, anchor in zip(content["percent"][name].values(), anchors, strict=True):
            within = 3 if "45" in name or anchor == 0.1 else 0.7
            assert len(seeds) == 5 and abs(np.mean(seeds) - anchor) < within, name


def test_the_saved_numbers_say_what_the_page_says_of_rfa_and_of_dittos_rivals() -> None:
    for net, drop in (("linear", 5), ("convnet", 2)):
        found = saved(f"rfa_{net}")["percent"]
        accuracy = {
            rule: {attack: mean(cells, "weighted_mean") for attack, cells in of.items()}
            for rule, of in found.items()
        }
        assert all(len(cells) == 5 for of in found.values() for cells in of.values())
        one, fedavg = accuracy["one-step RFA"], accuracy["FedAvg"]
        assert one["none"] - one["negative 10"] < 1.5 and fedavg["none"] - fedavg["negative 10"] > drop
        assert fedavg["omniscient 10"] < 15 and one["omniscient 10"] > 85
        assert all(one[attack] > accuracy["RFA"][attack] for attack in one)
    for deal, krum in (("dirichlet", 54), ("two_classes", 20)):
        found = saved(f"rivals_{deal}")["percent"]
        assert all(len(cells) == 5 for of in found.values() for cells in of.values())
        assert mean(found["A3 20"]["global"]) < 35 and mean(found["A3 20"]["k-loss"]) < 35
        assert mean(found["A3 10"]["clipping"]) > mean(found["clean"]["clipping"]) - 3
        best = max(found["A3 50"], key=lambda rule: mean(found["A3 50"][rule]))
        assert best == "Krum" and mean(found["A2 80"]["multi-Krum"]) > 60
        assert mean(found["clean"]["Krum"], "worst10") == pytest.approx(krum, abs=1)
        assert (
            mean(found["clean"]["geometric median"], "worst10")
            > mean(found["clean"]["global"], "worst10") - 3
        )


def test_the_page_compares_one_step_and_the_geometric_median_as_they_were_measured() -> None:
    page = " ".join((FOLDER / "README.md").read_text().split())
    kept = [
        f"{mean(saved(f'rfa_{net}')['percent']['one-step RFA'][f'omniscient {share}'], 'weighted_mean'):.0f}"
        for share in (10, 25)
        for net in ("linear", "convnet")
    ]
    assert kept == ["87", "91", "80", "68"]
    assert (
        "87 % (softmax regression) and 91 % (ConvNet) with 10 % malicious clients, and 80 and 68 % with 25 %"
        in page
    )
    for deal, words in (
        ("dirichlet", "{:.0f} against {:.0f} under"),
        ("two_classes", "{:.0f} against {:.0f} with two"),
    ):
        of = saved(f"rivals_{deal}")["percent"]
        both = {
            attack: [mean(of[attack][rule]) for rule in ("geometric median", "clipping")] for attack in of
        }
        assert words.format(*both.pop("A3 50")) in page
        assert all(abs(median - clipping) < 4 for median, clipping in both.values())


def test_the_saved_numbers_say_what_the_page_says_of_the_map() -> None:
    found = saved("map")["percent"]
    assert list(found) == ["0.2", "0.3", "0.45"] and all(len(of) >= 23 for of in found.values())
    for of in found.values():
        for cells in of.values():
            assert len(cells) == 22 and all(
                len(cell["mean"]) == len(cell["worst10"]) == 5 for cell in cells.values()
            )

    def least(rule: str, fraction: str, but: Sequence[str] = ()) -> float:
        cells = found[fraction][rule]
        return min(float(np.mean(cell["mean"])) for attack, cell in cells.items() if attack not in but)

    assert max(least(rule, "0.45") for rule in found["0.45"]) < 14
    for fraction, bound in (("0.2", 84), ("0.3", 73)):
        kept = {rule: least(rule, fraction) for rule in found[fraction]}
        assert max(kept, key=lambda rule: kept[rule]) == "CAF" and kept["CAF"] > bound
    calm = {rule: np.mean(cells["none"]["worst10"]) for rule, cells in found["0.2"].items()}
    nnm = [f"NNM + {rule}" for rule in ("trimmed mean", "median", "Krum")]
    assert all(1.9 < calm[rule] - calm["mean"] < 3 for rule in ("CAF", *nnm))
    most = {rule: np.mean(cells["none"]["worst10"]) for rule, cells in found["0.45"].items()}
    page = {"CAF": 67, "MeaMed": 65, "trimmed mean": 72, "NNM + Krum": 74, "NNM + median": 77, "Krum": 34}
    assert {rule: round(most[rule]) for rule in page} == page
    for rule in ("clip to median", "centered clipping", "geometric median"):
        assert most[rule] == calm[rule] > calm["mean"] - 0.2
    assert calm["Krum"] < calm["mean"] - 30 and calm["Bulyan"] < calm["mean"] - 10 < calm["CAF"]
    assert least("geometric median", "0.2") < 12 < 79 < least("geometric median", "0.2", ["zero"])
    assert least("geometric median, nu", "0.2") > 79 > 70 > least("RFA (from the mean)", "0.2")
    table = (FOLDER / "README.md").read_text()
    for rule in ("CAF", "geometric median, nu", "Krum"):
        cell = found["0.2"][rule]["none"]
        assert f"| {rule} | {np.mean(cell['mean']):.0f} / {np.mean(cell['worst10']):.0f} |" in table
