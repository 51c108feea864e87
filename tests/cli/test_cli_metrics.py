"""``--metrics`` on the command line: in every file of a run, when it is resumed, in comparisons and in studies."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

import evenhand as eh
from evenhand.cli import main
from evenhand.evaluation.metrics import BUILT_IN
from evenhand.report import may_win, read_clients_csv
from evenhand.simulation import load_run

pytestmark = pytest.mark.usefixtures("shared_programs")

ROUNDS = ["--rounds", "4", "--eval-every", "2", "--lr", "0.3"]
METRICS = ["--metrics", "auc,macro_f1"]


def table(path: Path) -> Path:
    """Twelve clients of 20 rows; the label of the first four is always 0."""
    rng = np.random.default_rng(0)
    lines = ["client,a,b,label"]
    for client in range(12):
        for a, b in rng.normal(size=(20, 2)):
            lines.append(f"c{client},{a:.4f},{b:.4f},{int(client > 3 and a + b + rng.normal() > 0)}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table, and two runs on it."""
    folder = tmp_path_factory.mktemp("metrics")
    options = ["--data", str(table(folder / "t.csv")), *ROUNDS, *METRICS, "--quiet", "--checkpoint", "0"]
    assert main(["run", "fedavg", *options, "--out", str(folder / "a")]) == 0
    assert main(["run", "ditto(fedavg(), lam=0.1)", *options, "--out", str(folder / "b")]) == 0
    return folder


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_files_of_a_run_have_what_python_measures(root: Path) -> None:
    saved, config = load_run(root / "a"), json.loads((root / "a" / "config.json").read_text())
    assert config["options"]["metrics"] == "auc,macro_f1"
    data = eh.data.load(str(root / "t.csv"))
    work = eh.local.sgd(eh.models.softmax_regression(features=2, classes=2), 0.3, epochs=1, batch_size=10)
    run = eh.simulate(eh.algorithms.fedavg(work), data, rounds=4, eval_every=2, metrics=("auc", "macro_f1"))
    values, clients = run.client_metrics()["auc"], read_clients_csv(root / "a" / "clients.csv").clients
    np.testing.assert_allclose(clients["test"]["auc"], values, rtol=1e-5)
    assert set(clients["train"]) >= {"auc", "macro_f1"}
    summary = json.loads((root / "a" / "summary.json").read_text())
    assert np.isnan(values).sum() >= 4
    assert summary["test"]["auc"]["clients"] == 12 - np.isnan(values).sum()
    assert summary["test"]["auc"]["mean"] == pytest.approx(np.nanmean(values), rel=1e-5)
    assert summary["metrics"]["auc"] == "have examples of one class only"
    assert may_win(saved.view())
    assert "global_auc" in read_clients_csv(root / "b" / "clients.csv").clients["test"]


def test_the_terminal_and_the_page_show_them_and_whom_they_cover(
    root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    undefined = int(np.isnan(read_clients_csv(root / "a" / "clients.csv").clients["test"]["auc"]).sum())
    sentence = (
        f"The test auc is undefined for {undefined} of 12 clients, which have examples of one class only."
    )
    options = ["--data", str(root / "t.csv"), *ROUNDS, *METRICS, "--out", str(tmp_path / "c")]
    assert main(["run", "fedavg", *options]) == 0
    shown = words(capsys.readouterr().out)
    assert sentence in shown
    assert re.search(
        rf"more test metrics over 12 clients, where defined .* auc 0\.\d+ 0\.\d+ \S+ {12 - undefined} macro_f1, %",
        shown,
    )
    assert main(["compare", str(root / "a"), str(root / "b"), "--out", str(tmp_path / "x.html")]) == 0
    shown = words(capsys.readouterr().out)
    assert sentence in shown and "auc fedavg" in shown
    page = (root / "b" / "report.html").read_text("utf-8")
    section = re.search("<h2>More metrics.*?</section>", page, re.DOTALL)
    assert section is not None and "global" not in words(section[0])
    for page in (root / "a" / "report.html", tmp_path / "x.html"):
        section = re.search("<h2>More metrics</h2>.*?</section>", page.read_text("utf-8"), re.DOTALL)
        assert section is not None
        assert sentence in section[0] and f'<td class="number">{12 - undefined}</td>' in section[0]
        assert ("best" in section[0]) == (page.name == "x.html")
    means = [load_run(root / name).view().clients["test"]["macro_f1"] for name in ("a", "b")]
    better = f"{100 * max(map(np.mean, means)):.1f}\u202f%"
    assert np.mean(means[0]) != np.mean(means[1])
    assert f'<td class="number best">{better}</td>' in section[0]


@pytest.fixture(scope="module")
def by_auc(root: Path) -> Path:
    """The run "a" again, and one with another step size, with the AUC as their headline."""
    options = ["--data", str(root / "t.csv"), *ROUNDS, *METRICS, "--headline", "auc", "--quiet"]
    assert main(["run", "fedavg", *options, "--out", str(root / "c")]) == 0
    assert main(["run", "fedavg", *options, "--out", str(root / "d"), "--lr", "0.01"]) == 0
    return root


def section_of(path: Path, title: str) -> str:
    found = re.search(f"<h2>{title}</h2>.*?</section>", path.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return words(re.sub(r"<[^>]+>", " ", found[0]))


def test_the_headline_is_the_metric_that_was_asked_for(
    by_auc: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The page, its order of clients, and a comparison of two runs; the numbers are those of the run without it."""
    values = load_run(by_auc / "a").client_metrics("test")["auc"]
    np.testing.assert_array_equal(load_run(by_auc / "c").client_metrics("test")["auc"], values)
    page = (by_auc / "c" / "report.html").read_text("utf-8")
    assert f"the average client gets a test auc of {np.nanmean(values):.4f}" in page
    assert "accuracy" in section_of(by_auc / "c" / "report.html", "More metrics")
    clients = section_of(by_auc / "c" / "report.html", "The clients, worst served first")
    assert "Ordered by test auc, of 8 of 12 clients" in clients
    assert "test auc test accuracy test macro f1" in clients
    ids = load_run(by_auc / "c").view().client_ids
    order = [ids[k] for k in np.argsort(values, kind="stable")]  # undefined ones last
    assert re.findall(r"\bc\d+\b", clients) == order
    assert f"c0 16 4 – {100 * load_run(by_auc / 'a').client_metrics('test')['accuracy'][0]:.1f}" in clients
    assert main(["compare", str(by_auc / "c"), str(by_auc / "d"), "--out", str(tmp_path / "x.html")]) == 0
    shown = words(capsys.readouterr().out)
    assert "test auc over 8 of 12 clients" in shown and "(test auc 0." in shown and "accuracy, %" in shown
    assert "test auc of the 8 clients worst off" in shown
    assert "more test metrics over 12 clients, where defined" in shown
    assert "(test auc" in (tmp_path / "x.html").read_text("utf-8")


def test_compare_and_report_take_another_headline(
    by_auc: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of runs with and without one it is the accuracy, unless it is given."""
    pair = ["compare", str(by_auc / "a"), str(by_auc / "d")]
    assert main(pair) == 0
    assert "test accuracy in %" in words(capsys.readouterr().out)
    assert main([*pair, "--headline", "macro_f1", "--out", str(tmp_path / "x.html")]) == 0
    assert "test macro_f1 in %" in words(capsys.readouterr().out)
    assert "test macro_f1 per client" in (tmp_path / "x.html").read_text("utf-8")
    path = tmp_path / "r.html"
    assert main(["report", str(by_auc / "a"), "--headline", "auc", "--out", str(path)]) == 0
    assert "gets a test auc of" in path.read_text("utf-8")
    assert main(["report", str(by_auc / "a"), "--headline", "brier", "--out", str(path)]) == 2
    assert (
        "No split has the metric brier per client in every run ('fedavg' has none)" in capsys.readouterr().err
    )


def test_the_table_of_clients_has_each_metric_and_the_remark_who_has_few_examples(by_auc: Path) -> None:
    """All twelve clients, though more than ten; four test rows each: every client with both classes has few of one."""
    clients = section_of(by_auc / "a" / "report.html", "The clients, worst served first")
    assert "test accuracy test auc test macro f1" in clients
    assert sorted(re.findall(r"\bc\d+\b", clients)) == sorted(f"c{k}" for k in range(12))
    saved = load_run(by_auc / "a")
    for name in ("auc", "macro_f1"):
        lowest = np.nanmin(saved.client_metrics("test")[name])
        assert (f"{lowest:.4f}" if name == "auc" else f"{100 * lowest:.1f}") in clients
    remark = "Of 8 clients with test examples of several classes, 8 have fewer than 10 of their rarest class"
    assert f"{remark}: their auc and macro_f1 rest on few examples and are noisy." in section_of(
        by_auc / "a" / "report.html", "More metrics"
    )


def test_a_run_without_metrics_has_no_section(
    root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Beside a run that has them, a sentence says that they cannot be compared."""
    options = ["--data", str(root / "t.csv"), *ROUNDS, "--out", str(tmp_path / "a")]
    assert main(["run", "fedprox", "--mu", "1", *options]) == 0
    assert "more test metrics" not in capsys.readouterr().out
    assert "More metrics" not in (tmp_path / "a" / "report.html").read_text("utf-8")
    assert main(["compare", str(root / "b"), str(tmp_path / "a")]) == 0
    shown = words(capsys.readouterr().out)
    assert (
        "Not every run has the auc and macro_f1 of its clients" in shown and "more test metrics" not in shown
    )


@pytest.mark.usefixtures("no_figures")
def test_a_resumed_run_has_them_too(root: Path, tmp_path: Path) -> None:
    """As at its last round in one go; the numbers of the training are the same bytes."""
    options = [
        "--data",
        str(root / "t.csv"),
        *ROUNDS,
        *METRICS,
        "--quiet",
        "--checkpoint",
        "0",
        "--eval-every",
        "1",
    ]
    assert main(["run", "fedavg", *options, "--out", str(tmp_path / "part"), "--rounds", "2"]) == 0
    assert main(["resume", str(tmp_path / "part"), "--rounds", "4", "--quiet"]) == 0
    assert main(["run", "fedavg", *options, "--out", str(tmp_path / "whole")]) == 0
    for name in ("clients.csv", "metrics.jsonl"):
        assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert "test_auc" in (tmp_path / "part" / "clients.csv").read_text()


def test_a_study_chooses_by_a_metric(root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words_of = ["study", "fedavg", "fedprox(mu=0.1)", "--data", str(root / "t.csv"), "--lr", "0.01,0.3"]
    words_of += ["--rounds", "2", "--seeds", "2", "--out", str(tmp_path / "s")]
    by_auc = ["--select", "valid:worst10:auc", "--metrics", "macro_f1"]
    assert main([*words_of, *by_auc]) == 0
    shown = words(capsys.readouterr().out)
    assert re.search(r"test auc over \d+ of 12 clients, those for which it is defined", shown)
    assert "macro_f1, % fedavg" in shown and "accuracy, % fedavg" in shown
    assert re.search(r"rarest class: their auc, by which settings were chosen, rests on few examples", shown)
    assert re.search(
        r"The validation auc, by which settings were chosen, is undefined for \d+ of 12 clients", shown
    )
    study = eh.studies.load(tmp_path / "s")
    assert study.rule.metric == study.metric == "auc"
    for method in study.methods:
        tried = [each for each in study.tried if each.setting.method == method]
        best = max(tried, key=lambda each: each.mean("valid_worst10"))
        assert best.chosen
        for each in tried:  # by hand, over the clients whose AUC is defined
            of_runs = [np.sort(view.clients["valid"]["auc"]) for view in each.views]
            assert each.mean("valid_worst10") == pytest.approx(np.mean([of[0] for of in of_runs]))
            assert each.mean("valid_auc_worst10") == each.mean("valid_worst10")
    frame = study.frame()
    assert {"test_auc_mean", "test_macro_f1_worst10", "valid_macro_f1_clients"} <= set(frame)
    header = next(csv.reader((tmp_path / "s" / "settings.csv").read_text().splitlines()))
    assert "test_macro_f1_mean" in header and "test_macro_f1_mean_std" in header
    page = (tmp_path / "s" / "study.html").read_text("utf-8")
    assert "More metrics" in page and "chosen by the validation auc (worst10)" in page
    assert "Test auc per client, over 8 of 12 clients, those for which it is defined" in page
    assert main(["compare", str(tmp_path / "s")]) == 0
    shown = words(capsys.readouterr().out)
    assert "test auc over 8 of 12 clients, those for which it is defined" in shown
    assert "test auc of the 8 clients worst off" in shown
    assert main(["report", str(tmp_path / "s"), "--headline", "accuracy"]) == 2
    assert (
        "the page of a study is about the metric by which its settings were chosen" in capsys.readouterr().err
    )
    assert main([*words_of, *by_auc[:2], "--metrics", "balanced_accuracy"]) == 2
    assert "its metrics is" in capsys.readouterr().err


def test_list_shows_each_metric(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "metrics"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in BUILT_IN)


def test_figures_of_runs_with_such_a_headline_have_the_loss_by_round(
    by_auc: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert (
        main(["figures", str(by_auc / "c"), str(by_auc / "d"), "--out", str(tmp_path), "--format", "svg"])
        == 0
    )
    names = [Path(line).stem for line in capsys.readouterr().out.splitlines()]
    assert names == ["training_loss", "client_curve", "client_histogram", "size_scatter"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["run", "fedavg", "--metrics", "auc,macro_f"],
            "There is no metric 'macro_f' (perhaps you meant macro_f1)",
        ),
        (["run", "fedavg", "--headline", "auc"], "--headline auc: it is not measured: add --metrics auc."),
        (
            ["run", "fedavg", "--metrics", "auc", "--headline", "macro_f1"],
            "--headline macro_f1: it is not measured: add --metrics auc,macro_f1.",
        ),
        (["run", "fedavg", "--headline", "acuracy"], "(perhaps you meant accuracy)"),
        (
            ["run", "fedavg", "--metrics", "auc", "--headline", "auc", "--keep", "best:train:mean"],
            "--headline auc with --keep best:train:mean",
        ),
        (["run", "fedavg", "--metrics", "r2"], "r2 needs targets that are numbers"),
        (["study", "fedavg", "--metrics", "auc,"], "There is no metric ''"),
        (["study", "fedavg", "--select", "valid:mean:macro_f"], "There is no metric 'macro_f' to select by"),
        (["study", "fedavg", "--select", "valid:mean:auc:x"], "SPLIT:STATISTIC:METRIC"),
        (["study", "fedavg", "--select", "test:mean:auc"], "must not choose"),
    ],
)
def test_slips_get_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*arguments, "--data", "digits", "--clients", "5", "--out", str(tmp_path / "x")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
