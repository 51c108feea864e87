"""``evenhand compare``, ``report`` and ``list``: what they print, and how they refuse damaged folders."""

from __future__ import annotations

import inspect
import io
import json
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import evenhand as eh
from evenhand.cli import main
from evenhand.cli._show import TOPICS
from evenhand.cli._terminal import tally
from evenhand.report import RunView, compare
from evenhand.report.formatting import size
from evenhand.simulation import load_run

pytestmark = pytest.mark.usefixtures("shared_programs")

QUICK = ["--data", "digits", "--clients", "6", "--rounds", "2", "--quiet"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    assert main(["run", "fedavg", *QUICK, "--out", str(root / "a")]) == 0
    assert main(["run", "fedprox", "--mu", "2", *QUICK, "--out", str(root / "b")]) == 0
    return root


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def test_compare_shows_both_and_marks_the_better(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs / "a"), str(runs / "b"), "--out", str(runs / "page.html")]) == 0
    shown = capsys.readouterr().out
    means = [summary(runs / name)["test"]["accuracy"]["mean"] for name in ("a", "b")]
    assert means[0] != means[1]
    served, sent = shown.split("what a client receives (down) and sends (up)")
    lines = [line for line in served.splitlines() if line.startswith((" fedavg ", " fedprox(mu=2) "))]
    for line, mean in zip(lines, means, strict=True):
        assert f" {100 * mean:.1f}" + ("*" if mean == max(means) else " ") in line
    for name, method in (("a", "fedavg"), ("b", "fedprox(mu=2)")):
        up = summary(runs / name)["communication"]["total"]["up"]["bytes"]
        assert re.search(rf"^ {re.escape(method)} .* {re.escape(size(up))} +0 $", sent, re.MULTILINE)
    assert "clients better than fedavg" in shown
    assert max(map(len, shown.splitlines())) <= 80 or str(runs) in shown
    assert "<!doctype html>" in (runs / "page.html").read_text()


def test_compare_shows_the_worst_off_clients_of_the_first_run(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(runs / "a"), "--clients", "2"]) == 0
    shown = capsys.readouterr().out
    assert "2 clients worst off" in shown
    data = eh.data.load("digits", clients=6)
    lines = (runs / "a" / "clients.csv").read_text().splitlines()
    column = lines[0].split(",").index("test_accuracy")
    worst = min(range(6), key=lambda k: float(lines[k + 1].split(",")[column]))
    table = shown[shown.index("worst off") :].splitlines()
    first = next(line for line in table[1:] if line.split() and line.split()[0] in data.client_ids)
    assert first.split()[:2] == [data.client_ids[worst], str(data.test.sizes[worst])]


def test_a_study_that_has_not_ended_has_no_results(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command that reads results says so; a folder that holds runs in a folder of that name is none."""
    (tmp_path / "study" / "runs").mkdir(parents=True)
    for words in (["report"], ["compare"], ["figures"]):
        assert main([*words, str(tmp_path / "study")]) == 2
        assert "is a study that is still running or was stopped" in capsys.readouterr().err
        assert main([*words, str(tmp_path / "none")]) == 2
        assert (
            "none does not exist: name a folder that `evenhand run` or `evenhand study`"
            in capsys.readouterr().err
        )


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (["--data-seed", "1"], "data (data seed 0, 1)"),
        (["--seed", "1"], "seeds (0; 1)"),
        (["--cohort", "3"], "cohorts (6, 3)"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_runs_that_do_not_compare_are_only_shown(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], other: list[str], difference: str
) -> None:
    assert main(["run", "fedprox", "--mu", "2", *QUICK, *other, "--out", str(tmp_path / "b")]) == 0
    page = tmp_path / "page.html"
    assert main(["compare", str(runs / "a"), str(tmp_path / "b"), "--out", str(page)]) == 0
    shown, text = capsys.readouterr().out, page.read_text()
    assert f"side by side, not compared: they differ in their {difference}." in shown
    assert f"side by side, not compared: they differ in their {difference}." in text
    for claim in ("*", "better", "served best", "best of"):
        assert claim not in shown
    assert 'class="number best"' not in text and "served best" not in text


@pytest.mark.usefixtures("no_figures")
def test_seeds_of_a_method_are_one_row(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = {"fedavg": [runs / "a", tmp_path / "a1"], "fedprox(mu=2)": [runs / "b", tmp_path / "b1"]}
    assert main(["run", "fedavg", *QUICK, "--seed", "1", "--out", str(tmp_path / "a1")]) == 0
    assert main(["run", "fedprox", "--mu", "2", *QUICK, "--seed", "1", "--out", str(tmp_path / "b1")]) == 0
    folders = [folders[i] for i in (1, 0) for folders in seeds.values()]
    assert main(["compare", *map(str, folders)]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, two in seeds.items():
        means = [100 * summary(folder)["test"]["accuracy"]["mean"] for folder in two]
        at = next(i for i, line in enumerate(lines) if line.startswith(f" {name} "))
        assert lines[at].removeprefix(f" {name}").split()[0].rstrip("*") == f"{np.mean(means):.1f}"
        assert lines[at + 1].split()[0] == f"±{np.std(means, ddof=1):.1f}"
    assert not [line for line in lines if str(tmp_path) in line or "seed 1" in line]
    (sentence,) = [line for line in lines if line.startswith("In each of 2 seeds, fedprox(mu=2) serves")]
    gains = []
    for first, second in zip(*seeds.values(), strict=True):
        a, b = (load_run(folder).view().clients["test"]["accuracy"] for folder in (first, second))
        gains.append(b - a)
    better, worse = (int((sign * np.stack(gains) > 0).all(axis=0).sum()) for sign in (1, -1))
    equal = int((np.stack(gains) == 0).all(axis=0).sum())
    assert f"serves {better} clients better than fedavg, {worse} worse and {equal} equally well" in sentence
    if rest := 6 - better - worse - equal:
        assert sentence.endswith(f"; for the other {rest} it depends on the seed.")


def test_clients_that_are_served_alike_at_every_seed_do_not_depend_on_it() -> None:
    """Four clients: better at both seeds, equal at both, better at one and equal at the other, and unknown."""
    values = {"a": [[0.5, 0.5, 0.5, np.nan]] * 2, "b": [[0.6, 0.5, 0.5, np.nan], [0.6, 0.5, 0.7, np.nan]]}
    runs = {
        name: [
            RunView(
                name,
                {"round": np.array([0])},
                {"test": np.array([5, 5, 5, 0])},
                tuple("wxyz"),
                {"test": {"accuracy": np.array(row)}},
                {"seed": seed, "rounds": 0},
                {"method": name},
            )
            for seed, row in enumerate(rows)
        ]
        for name, rows in values.items()
    }
    sentence = "In each of 2 seeds, b serves 1 client better than a, 0 worse and 1 equally well"
    assert tally(compare(runs)) == f"{sentence}; for the other 1 it depends on the seed."
    runs["b"][1] = runs["b"][1]._replace(clients=runs["b"][0].clients)
    assert (
        tally(compare(runs))
        == "In each of 2 seeds, b serves 1 client better than a, 0 worse and 2 equally well."
    )


def test_names_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["[/]", "[bold]b", "=1+1", "\x1b[31mred", ":smile:", "\u202eדרום"]
    rng = np.random.default_rng(0)
    table = tmp_path / "[red]\x1b[1m.csv"
    rows = [f"{name},{x:.3f},{int(x > 0)}\n" for name in names for x in rng.normal(size=12)]
    table.write_text("client,x,label\n" + "".join(rows), encoding="utf-8")
    folders = [tmp_path / f"[{i}] [/bold] \x1b[31m" for i in range(2)]
    for folder, method in zip(folders, ("fedavg", "fedprox(mu=1)"), strict=True):
        assert main(["run", method, "--data", str(table), "--rounds", "1", "--out", str(folder)]) == 0
    assert main(["compare", *map(str, folders), "--out", str(tmp_path / "page.html")]) == 0
    assert main(["report", str(folders[0])]) == 0
    assert main(["compare", str(folders[0] / "none")]) == 2
    printed = capsys.readouterr()
    for text in (
        printed.out,
        printed.err,
        (tmp_path / "page.html").read_text(),
        (folders[0] / "report.html").read_text(),
    ):
        assert not set("\x1b\u202e") & set(text)
    lines = {line.split("  ")[0].strip() for line in printed.out.splitlines()}
    assert {"[/]", "[bold]b", "=1+1", r"\x1b[31mred", ":smile:", r"\u202eדרום"} <= lines
    assert r"[/bold] \x1b[31m" in printed.err and r"Report: " in printed.out
    assert "'=1+1," in (folders[0] / "clients.csv").read_text(encoding="utf-8")
    assert set(load_run(folders[0]).view().client_ids) == set(names)


def test_a_page_replaces_pages_alone(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a table nor what belongs to a run; a page that was written before is replaced."""
    run, page, table = runs / "a", tmp_path / "page.html", tmp_path / "d.csv"
    table.write_text("client,x,label")
    for command in ("compare", "report"):
        assert main([command, str(run), "--out", str(page)]) == 0
        assert main([command, str(run), "--out", str(table)]) == 2
        assert "is there already, and is not a page: name another file" in capsys.readouterr().err
    for other in ("metrics.jsonl", "report.html"):
        assert main(["compare", str(run), "--out", str(run / other)]) == 2
        assert "belongs to the run in" in capsys.readouterr().err
    assert main(["predict", str(run), "--data", str(table), "--out", str(run / "metrics.jsonl")]) == 2
    assert "belongs to the run in" in capsys.readouterr().err
    assert table.read_text() == "client,x,label"


def test_report_writes_the_page_again(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = runs / "a" / "report.html"
    before = page.read_text()
    page.unlink()
    assert main(["report", str(runs / "a")]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    assert page.read_text() == before


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("config.json", None, "does not exist"),
        ("config.json", "[]", "holds no JSON object"),
        ("config.json", "{}", "not what `evenhand run` writes"),
        ("summary.json", "{", "is not JSON"),
        ("metrics.jsonl", "nonsense", "line 1 is not JSON"),
        ("metrics.jsonl", None, "does not exist"),
        ("metrics.jsonl", "", "holds no evaluation"),
        ("metrics.jsonl", '{"round": "two"}', "is not a number"),
        ("clients.csv", None, "does not exist"),
        ("clients.csv", "", "holds no client"),
        ("clients.csv", "client,test_rows\na,1,2", "line 2 has 3 fields"),
        ("clients.csv", "client,test_rows\na,many", "not a number"),
    ],
)
def test_a_damaged_folder_is_one_sentence(
    runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: str | None,
    sentence: str,
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(runs / "a", folder)
    # As earlier versions left it; otherwise the checksums would show the damage before anything is read.
    (folder / "checksums.json").unlink()
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    for words in (["compare", str(folder)], ["report", str(folder)]):
        assert main(words) == 2
        shown = capsys.readouterr()
        assert sentence in shown.err
        assert shown.err.count("\n") == 1
        assert shown.out == ""


def test_list_names_what_exists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for entries in (list(entries()) for entries in TOPICS.values()):
        for entry in entries:
            assert entry.name in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    assert main(["list", "models"]) == 0
    assert "fedavg" not in capsys.readouterr().out
    assert {entry.name.partition("(")[0] for entry in TOPICS["aggregators"]()} <= {
        *eh.aggregators.__all__,
        *eh.privacy.__all__,
    }
    assert "superquantile(theta=)" in {entry.name for entry in TOPICS["risks"]()}


def test_list_names_what_only_python_has(capsys: pytest.CaptureFixture[str]) -> None:
    """Each public function of these packages, with its arguments, in a list of its own or in that of weightings."""
    listed = {entry.name.partition("(")[0] for entries in TOPICS.values() for entry in entries()}
    for name, module in (("centralized", eh.centralized), ("theory", eh.theory)):
        functions = {each for each in module.__all__ if inspect.isfunction(vars(module)[each])}
        assert functions and {f for f in functions if not {f"eh.{name}.{f}", f} & listed} == set()
    assert main(["list", "diagnostics"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "eh.evaluation.dissimilarity(model, params, rows) Measures heterogeneity: the dissimilarity" in shown
    )
    assert "eh.evaluation.inexactness(model, start, end, rows, client, mu=0.0)" in shown


def test_folders_of_versions_without_metrics_of_classes_still_load(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("classes", "class_spread", "worst_class")
    lines = [line.split(",") for line in (runs / "a" / "clients.csv").read_text().splitlines()]
    assert {f"{split}_{name}" for split in ("train", "test") for name in names} <= set(lines[0])
    new = summary(runs / "a")["test"]
    assert set(names[1:]) <= set(new["accuracy"]) and not set(names) & set(new)

    old = shutil.copytree(runs / "a", tmp_path / "old")
    (old / "checksums.json").unlink()
    kept = [i for i, name in enumerate(lines[0]) if not name.endswith(names)]
    (old / "clients.csv").write_text("\n".join(",".join(line[i] for i in kept) for line in lines))
    assert main(["report", str(old)]) == 0
    assert "Spread over a client" not in (old / "report.html").read_text()
    page = tmp_path / "page.html"
    assert main(["compare", str(old), str(runs / "b"), "--out", str(page)]) == 0
    assert "Spread over a client" in page.read_text()
    assert main(["report", str(runs / "a"), "--out", str(page)]) == 0
    shown = f"{100 * new['accuracy']['class_spread']:.1f} points"
    assert f'classes</th>\n<td class="number">{shown}</td>' in page.read_text()
    assert "The same for: class" not in page.read_text()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_list_and_help_on_a_terminal_that_cannot_show_all_characters(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    for words in (["list"], ["run", "qfedsgd", "--help"]):
        terminal = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", terminal)
        with suppress(SystemExit):
            assert main(words) == 0
        terminal.flush()
        shown.append(terminal.buffer.getvalue().decode(encoding))
    assert "1,797 real handwritten digits (8 " in shown[0] and "superquantile(theta=)" in shown[0]
    assert r"w + \u03b7 v" in shown[0] and (r"(28 \xd7 28)" in shown[0]) == (encoding == "ascii")
    assert "--step-size FLOAT" in shown[1] and r"step size \u03b7" in shown[1]
