"""Every headline number says which clients it covers: those with test examples, and under attack the honest ones."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from evenhand.cli import main

pytestmark = pytest.mark.usefixtures("shared_programs")

SENTENCE = "2 of 3 clients have no test examples and are in none of these numbers."
ATTACK = [
    "--data",
    "digits",
    "--clients",
    "6",
    "--rounds",
    "2",
    "--eval-every",
    "2",
    "--attack",
    "sign_flip(0.34)",
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("headline")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture(scope="module")
def three(home: Path) -> Path:
    """One client of ten rows, and two of one row each, which is a training row."""
    rows = [*(f"big,{i - 5},{int(i > 5)}" for i in range(10)), "solo1,3,0", "solo2,-3,1"]
    (home / "three.csv").write_text("\n".join(["client,a,label", *rows, ""]))
    return home / "three.csv"


@pytest.fixture(scope="module")
def single(home: Path) -> Path:
    """Eight clients of one row each."""
    rows = (f"c{i},{i / 2},{i % 2}" for i in range(8))
    (home / "single.csv").write_text("\n".join(["client,a,label", *rows, ""]))
    return home / "single.csv"


@pytest.fixture(scope="module")
def attacked(home: Path) -> list[Path]:
    """Two methods with two seeds each, two of six clients malicious, other ones for each seed."""
    folders = []
    for name, method in (("a", "fedavg"), ("b", "fedavg(aggregator=geometric_median())")):
        for seed in ("1", "2"):
            folders.append(home / f"{name}{seed}")
            assert main(["run", method, *ATTACK, "--seed", seed, "--out", str(folders[-1]), "--quiet"]) == 0
    return folders


def lines(text: str) -> str:
    return " ".join(text.split())


def test_clients_without_test_rows_are_named_by_run_and_compare(
    three: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their training accuracy is 0: that is in the sentence, too."""
    words = ["run", "fedavg", "--data", str(three), "--lr", "1", "--rounds", "10", "--eval-every", "10"]
    assert main([*words, "--out", "r"]) == 0
    shown = lines(capsys.readouterr().out)
    assert f"{SENTENCE} On training examples, their mean accuracy is 0.0 %" in shown
    assert "over 1 of 3 clients, those with test examples" in shown and "--unseen" in shown
    summary = json.loads(Path("r/summary.json").read_text())
    [finding] = [each for each in summary["findings"] if each["kind"] == "unmeasured"]
    assert finding["sentence"].startswith(SENTENCE)
    assert summary["covers"]["test"] == "1 of 3 clients, those with test examples"
    assert summary["covers"]["train"] == "3 clients" and summary["clients"] == 3
    page = Path("r/report.html").read_text()
    assert SENTENCE in page
    (lead,) = re.findall(r'<p class="lead">(.*)</p>', page)
    assert lead.startswith("The only client with test examples gets a test accuracy of 100.0")
    assert main([*words, "--seed", "1", "--out", "s", "--quiet"]) == 0
    assert main(["compare", "r", "s", "--out", "c.html"]) == 0
    shown = lines(capsys.readouterr().out)
    assert f"Both runs: {SENTENCE}" in shown and shown.count(SENTENCE) == 1
    assert "over 1 of 3 clients, those with test examples" in shown
    assert Path("c.html").read_text().count(SENTENCE) == 1


def test_a_study_names_the_clients_that_judge_and_those_that_choose(
    three: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three step sizes are chosen among by validation rows, of which a fifth of one training row is none."""
    words = ["study", "fedavg", "--data", str(three), "--lr", "0.1,1", "--seeds", "2", "--rounds", "2"]
    assert main([*words, "--out", "t"]) == 0
    shown, page = lines(capsys.readouterr().out), Path("t/study.html").read_text()
    chosen = "2 of 3 clients have no validation examples and are in none of the numbers that choose settings."
    for text in (shown, lines(page)):
        assert text.count(SENTENCE) == 1 and text.count(chosen) == 1
        assert "1 of 3 clients, those with test examples" in text


def test_a_study_shows_a_finding_of_its_runs_once(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step size of 1e-9 moves no model: 4 runs say so in one sentence, in the terminal and on the page."""
    words = ["study", "fedavg", "fedprox(mu=1)", "--data", str(three), "--lr", "1e-9", "--rounds", "1"]
    assert main([*words, "--seeds", "2", "--out", "u"]) == 0
    shown, page = lines(capsys.readouterr().out), lines(Path("u/study.html").read_text())
    for text in (shown, page):
        assert text.count("The model did not change") == 1
        assert "All 4 runs, for example: The model did not change" in text


def test_unseen_clients_without_test_rows_are_in_the_folder(single: Path) -> None:
    words = [
        "run",
        "fedavg",
        "--data",
        str(single),
        "--rounds",
        "1",
        "--unseen",
        "0.25",
        "--out",
        "v",
        "--quiet",
    ]
    assert main(words) == 0
    found = json.loads(Path("v/summary.json").read_text())["findings"]
    begins = [each["sentence"].partition(" has ")[0] for each in found if each["kind"] == "unmeasured"]
    assert begins == ["None of 6 clients", "None of 2 unseen clients"]
    assert "of training examples. The model was trained on these examples, so" in found[0]["sentence"]
    assert not any("--unseen" in each["sentence"] for each in found)
    assert all(begin in Path("v/report.html").read_text() for begin in begins)


@pytest.mark.usefixtures("no_figures")
def test_set_aside_clients_are_not_advised_where_there_are_some(three: Path) -> None:
    words = ["run", "fedavg", "--data", str(three), "--rounds", "1", "--unseen", "0.34", "--seed", "1"]
    assert main([*words, "--out", "x", "--quiet"]) == 0
    found = json.loads(Path("x/summary.json").read_text())["findings"]
    (sentence,) = [each["sentence"] for each in found if each["split"] == "test"]
    assert sentence.startswith("1 of 2 clients has no test examples") and "--unseen" not in sentence


def test_a_study_whose_clients_have_too_few_rows_to_choose_by_says_so(
    single: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is set aside of one row, and training rows are what remains."""
    words = ["study", "fedavg", "--data", str(single), "--lr", "0.1,1", "--seeds", "1", "--rounds", "1"]
    assert main([*words, "--out", "y"]) == 0
    printed, page = capsys.readouterr(), lines(Path("y/study.html").read_text())
    sentence = "None of 8 clients has validation examples, so settings cannot be chosen by them. "
    sentence += "Training examples cover all clients"
    for text in (lines(printed.out), lines(printed.err), page):
        assert text.count(sentence) == 1 and "set aside" not in text and "diverged" not in text
        assert "--select train:mean" in text
    assert main([*words, "--out", "z", "--select", "train:mean"]) == 0
    shown = lines(capsys.readouterr().out)
    assert "fedavg(lr=" in shown and sentence not in shown


def test_a_study_says_before_it_trains_how_many_seeds_its_test_needs(
    three: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["study", "fedavg", "fedprox(mu=1)", "--data", str(three), "--rounds", "1", "--dry-run"]
    sentence = "With 5 seeds no difference between these methods can be significant: use at least 6."
    assert main([*words, "--seeds", "5"]) == 0 and sentence in lines(capsys.readouterr().err)
    for sound in ([], ["--seeds", "1,2,3,4,5,6"]):  # six seeds are the default
        assert main([*words, *sound]) == 0 and "significant" not in capsys.readouterr().err
    assert main([words[0], words[1], *words[3:]]) == 0 and "significant" not in capsys.readouterr().err


@pytest.mark.usefixtures("no_figures")
def test_without_test_rows_the_headline_says_that_it_is_about_training_rows(
    three: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "fedavg", "--data", str(three), "--test-fraction", "0", "--rounds", "1", "--out", "n"]
    assert main(words) == 0
    shown = lines(capsys.readouterr().out)
    assert (
        "None of 3 clients has test examples: there are no test numbers, and the numbers shown are of training"
        in shown
    )
    assert "train accuracy in % (variance: %²) over 3 clients" in shown


def served(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The test accuracy of each client, and which are malicious, from the table in the folder."""
    rows = list(csv.DictReader((folder / "clients.csv").read_text().splitlines()))
    accuracy = np.array([float(row["test_accuracy"]) for row in rows])
    return accuracy, np.array([row["malicious"] == "1" for row in rows])


def test_under_attack_run_and_report_are_about_honest_clients(
    attacked: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """By NumPy from clients.csv; the numbers of all clients are others, and stand in a section of their own."""
    accuracy, malicious = served(attacked[0])
    mean, all_mean = accuracy[~malicious].mean(), accuracy.mean()
    assert f"{100 * mean:.1f}" != f"{100 * all_mean:.1f}"
    summary = json.loads((attacked[0] / "summary.json").read_text())
    assert summary["test"]["accuracy"]["mean"] == pytest.approx(mean, abs=1e-6)
    assert summary["last"]["test_accuracy_mean"] == pytest.approx(mean, abs=1e-6)
    assert summary["test_all"]["accuracy"]["mean"] == pytest.approx(all_mean, abs=1e-6)
    assert summary["covers"]["test"] == "4 of 6 clients, the honest ones"
    page = (attacked[0] / "report.html").read_text()
    (lead,) = re.findall(r'<p class="lead">(.*)</p>', page)
    assert lead.startswith(
        "Over 4 of 6 clients, the honest ones, the average client gets a test accuracy of "
    )
    assert f"of {100 * mean:.1f}\u202f%, the worst client {100 * accuracy[~malicious].min():.1f}" in lead
    section = page.split("Honest and malicious clients")[1].split("</section>")[0]
    assert f"{100 * all_mean:.2f}"[:4] in section
    assert "6 clients" in page.split('class="facts"')[1].split("</p>")[0]
    assert main(["run", "fedavg", *ATTACK, "--out", "e"]) == 0
    printed = capsys.readouterr()
    assert "in % (variance: %²) over 4 of 6 clients, the honest ones" in lines(printed.out)
    assert re.search(r"round 2 of 2, loss [\d.]+, test accuracy [\d.]+ % \(honest clients\)", printed.err)


@pytest.mark.usefixtures("no_figures")
def test_under_attack_compare_is_about_honest_clients(
    attacked: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """One seed: its client table has honest clients only. Two seeds with other malicious clients are one method."""
    assert main(["compare", str(attacked[0]), str(attacked[2]), "--clients", "9"]) == 0
    shown = capsys.readouterr().out
    tables, rows = shown.split("clients worst off")[0], shown.split("clients worst off")[1]
    for folder in (attacked[0], attacked[2]):
        accuracy, malicious = served(folder)
        assert f" {100 * accuracy[~malicious].mean():.1f}" in tables
        assert f" {100 * accuracy[~malicious].min():.1f}" in tables
    names = list(csv.DictReader((attacked[0] / "clients.csv").read_text().splitlines()))
    listed = {
        row["client"]: row["malicious"] for row in names if re.search(rf"^ {row['client']} ", rows, re.M)
    }
    assert len(listed) == 4 and set(listed.values()) == {"0"}
    assert "Over 4 of 6 clients, the honest ones, " in shown
    first, second = (served(folder)[1] for folder in attacked[:2])
    assert (first != second).any()
    assert main(["compare", *map(str, attacked)]) == 0
    shown = lines(capsys.readouterr().out)
    assert "over 4 of 6 clients, the honest ones; ± over 2 seeds" in shown and "side by side" not in shown
    assert "With 2 seeds no difference can be significant: use at least 6." in shown
    assert "The honest clients differ between the runs" in shown and "*" not in shown


@pytest.mark.usefixtures("no_figures")
def test_runs_with_other_malicious_clients_at_one_seed_are_not_ranked(
    attacked: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*ATTACK[:-1], "sign_flip(0.17)", "--seed", "1", "--quiet"]
    assert main(["run", "fedavg", *words, "--out", "one"]) == 0
    assert main(["compare", str(attacked[0]), "one"]) == 0
    shown = lines(capsys.readouterr().out)
    assert "not compared: they differ in their honest clients." in shown and "*" not in shown
    assert "4 to 5 of 6 clients, the honest ones" in shown


@pytest.mark.usefixtures("no_figures")
def test_clients_set_aside_may_lack_test_rows_that_the_others_have(home: Path) -> None:
    """The run ends, and its folder has numbers of those clients for the splits that they have."""
    rows = [f"big,{i},{int(i > 5)}" for i in range(10)] + [f"solo{k},{k},{k % 2}" for k in range(6)]
    (home / "mixed.csv").write_text("\n".join(["client,a,label", *rows, ""]))
    seen = set[bool]()
    for seed in range(4):  # whichever clients are drawn
        words = ["--data", "mixed.csv", "--rounds", "1", "--unseen", "0.3", "--data-seed", str(seed)]
        assert main(["run", "fedavg", *words, "--seed", str(seed), "--out", f"w{seed}", "--quiet"]) == 0
        summary = json.loads(Path(f"w{seed}/summary.json").read_text())
        assert "train_unseen" in summary
        seen.add("test_unseen" in summary)
    assert False in seen
