"""``--private-metrics`` on the command line: in every file of a run, on the terminal, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from evenhand.cli import main
from evenhand.simulation import load_run

pytestmark = pytest.mark.usefixtures("shared_programs")

DIGITS = ["--rounds", "3", "--eval-every", "1", "--clients", "12", "--alpha", "0.3"]
PRIVATE = ["--private-metrics", "--private-limit", "3", "--metrics", "auc,macro_f1"]


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def summary_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_numbers_are_in_the_summary_on_the_page_and_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a"
    assert main(["run", "fedavg", *DIGITS, *PRIVATE, "--out", str(folder)]) == 0
    summary, shown = summary_of(folder), words(capsys.readouterr().out)
    private, saved = summary["private_metrics"], load_run(folder)
    assert private["refused"] == "" and list(private["metrics"]) == ["accuracy", "macro_f1", "loss"]
    for name, numbers in private["metrics"].items():
        assert (numbers["split"], numbers["bins"]) == ("test", 100)
        assert saved.private_summary(metric=name, largest=numbers["largest"]).to_json() == numbers
        for key, statistic in numbers["statistics"].items():
            assert key == "clipped" or statistic["exact"] == summary["test"][name][key]
            assert key == "clipped" or abs(statistic["exact"] - statistic["estimate"]) <= statistic["bound"]
        title = f"est {name.replace('_', ' ')} over {numbers['clients']}, from a"
        assert f"private t{title} secure histogram of 100 bins" in shown
        assert f"T{title} histogram of 100 bins under a secure sum" in (folder / "report.html").read_text()
    mean = private["metrics"]["accuracy"]["statistics"]["mean"]
    row = re.search(r"% mean .*? estimate ([\d.]+) .*? error at most ([\d.]+) .*? exact ([\d.]+) ", shown)
    assert row is not None and [float(x) for x in row.groups()] == [
        pytest.approx(100 * mean[key], abs=0.005) for key in ("estimate", "bound", "exact")
    ]
    page = tmp_path / "again.html"
    assert main(["report", str(folder), "--out", str(page)]) == 0
    assert "<h2>Private metrics</h2>" in page.read_text()


def test_a_run_that_did_not_ask_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fedavg", *DIGITS, "--out", str(tmp_path / "a")]) == 0
    assert "histogram" not in capsys.readouterr().out
    assert "private_metrics" not in summary_of(tmp_path / "a")
    assert "<h2>Private metrics" not in (tmp_path / "a" / "report.html").read_text()


def test_of_the_best_round_where_that_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    words = ["--lr", "1", "--keep", "best:train:worst10", "--private-metrics", "--quiet"]
    assert main(["run", "fedavg", *DIGITS, *words, "--out", str(folder)]) == 0
    summary = summary_of(folder)
    exact = summary["private_metrics"]["metrics"]["accuracy"]["statistics"]["mean"]["exact"]
    assert exact == summary["test"]["accuracy"]["mean"] != summary["last"]["test_accuracy_mean"]


def test_a_resumed_run_has_them_and_they_make_no_other_method(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    assert main(["run", "fedavg", *DIGITS, "--private-metrics", "--quiet", "--out", str(first)]) == 0
    before = summary_of(first)["private_metrics"]
    assert main(["resume", str(first), "--rounds", "5", "--quiet"]) == 0
    assert summary_of(first)["private_metrics"] != before
    words = ["--rounds", "5", "--seed", "1", "--quiet", "--out", str(second)]
    assert main(["run", "fedavg", *DIGITS, *words]) == 0
    assert main(["compare", str(first), str(second)]) == 0
    assert "± over 2 seeds" in capsys.readouterr().out


def test_too_few_clients_lose_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a"
    assert main(["run", "fedavg", *DIGITS, "--clients", "3", "--private-metrics", "--out", str(folder)]) == 0
    sentence = "3 clients with a value: a histogram of fewer than 5 would show single clients."
    assert sentence in words(capsys.readouterr().out)
    assert sentence in (folder / "report.html").read_text()
    assert summary_of(folder)["private_metrics"]["metrics"] == {}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--private-limit", "3"], "--private-limit has no effect without --private-metrics"),
        (["--private-metrics", "--private-limit", "0"], "--private-limit 0: give a finite number above 0"),
        (["--private-metrics", "--data", "{table}", "--regression"], "has no accuracy.* --private-limit 10"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_training(
    options: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, folder = tmp_path / "t.csv", tmp_path / "a"
    rows = [f"c{k % 6},{k % 7},{0.5 * k}" for k in range(60)]
    table.write_text("\n".join(["client,x,label", *rows]) + "\n")
    options = [option.format(table=table) for option in options]
    assert main(["run", "fedavg", "--rounds", "1", *options, "--out", str(folder)]) == 2
    assert re.search(sentence, words(capsys.readouterr().err)) and not folder.exists()
    if "--regression" in options:
        options += ["--private-limit", "1000", "--quiet"]
        assert main(["run", "fedavg", "--rounds", "1", *options, "--out", str(folder)]) == 0
        assert list(summary_of(folder)["private_metrics"]["metrics"]) == ["loss"]
