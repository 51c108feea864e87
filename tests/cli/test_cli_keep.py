"""``--keep``: the folder describes the best evaluated round, by validation examples, also after a kill."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenhand.cli import main
from evenhand.cli._keep import rule_of
from evenhand.simulation import folder as folder_module

ROUNDS = 8
FILES = ("metrics.jsonl", "clients.csv", "params.npz", "results.npz")
pytestmark = pytest.mark.usefixtures("no_figures", "shared_programs")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noisy labels, so that a large step leaves the metrics going up and down."""
    path = tmp_path_factory.mktemp("data") / "table.csv"
    rng = np.random.default_rng(3)
    rows = [
        f"{'abc'[i % 3]},{(x := rng.normal()):.3f},{rng.normal():.3f},{int(x + rng.normal() > 0)}"
        for i in range(120)
    ]
    path.write_text("\n".join(["client,size,age,label", *rows]))
    return path


def train(
    table: Path, out: Path, *words: str, method: str = "ditto(fedavg(), lam=0.1)", rounds: int = ROUNDS
) -> int:
    given = [
        "--data",
        str(table),
        "--rounds",
        str(rounds),
        "--eval-every",
        "1",
        "--checkpoint",
        "0",
        "--lr",
        "5",
    ]
    given += ["--valid-fraction", "0.2", "--out", str(out)]
    return main(["run", method, *given, *words])


@pytest.fixture(scope="module")
def best(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evenhand.cli._run.write_report", lambda path, views: path.write_text("page"))
        out = tmp_path_factory.mktemp("best") / "run"
        assert train(table, out, "--keep", "best:valid:mean", "--keep-personal", "--quiet") == 0
    return out


def summary(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "summary.json").read_text())
    del found["seconds"], found["examples_per_second"]
    return found


def history(folder: Path, name: str) -> list[float]:
    return [json.loads(line)[name] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def models(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "personal").iterdir()}


def assert_same(one: Path, other: Path) -> None:
    for name in FILES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert summary(one) == summary(other)
    assert models(one) == models(other)


def test_the_folder_describes_the_best_round_and_the_metrics_all_of_them(
    best: Path, table: Path, tmp_path: Path
) -> None:
    """A run that ends at the best round, without the option, has the same clients, model and statistics."""
    values = history(best, "valid_accuracy_mean")
    round_ = int(np.argmax(values))
    assert len(values) == ROUNDS + 1 and 0 < round_ < ROUNDS and values[round_] > values[-1]
    kept = summary(best)["kept"]
    assert kept["round"] == round_ and kept["score"] == pytest.approx(values[round_])
    assert kept["words"] == f"kept round {round_} of {ROUNDS}: best validation mean over clients"
    assert train(table, tmp_path / "short", "--quiet", rounds=round_) == 0
    for name in ("clients.csv", "params.npz"):
        assert (best / name).read_bytes() == (tmp_path / "short" / name).read_bytes()
    assert models(best) == models(tmp_path / "short")
    short, found = summary(tmp_path / "short"), summary(best)
    for name in ("train", "valid", "test", "by_class", "findings"):
        assert found[name] == short[name]
    assert found["rounds"] == found["rounds_asked"] == ROUNDS
    assert found["last"]["valid_accuracy_mean"] == values[-1]


@pytest.mark.parametrize("text", ["best:valid:worst10", "best:train:variance", "best:valid:mean:loss"])
def test_each_statistic_has_its_direction(text: str, table: Path, tmp_path: Path) -> None:
    """The first of equally good rounds; the variance and the loss are better the smaller they are."""
    assert train(table, tmp_path / "a", "--keep", text, "--quiet") == 0
    rule = rule_of(text)
    assert rule is not None
    if rule.metric == "loss":
        rounds = []
        for done in range(ROUNDS + 1):  # the history has only the accuracy of each client summarised
            assert train(table, tmp_path / f"{done}", "--quiet", "--overwrite", rounds=done) == 0
            rounds.append(summary(tmp_path / f"{done}")["valid"]["loss"]["mean"])
        expected = int(np.argmin(rounds))
    else:
        values = history(tmp_path / "a", f"{rule.split}_accuracy_{rule.statistic}")
        expected = int(np.argmin(values) if rule.statistic == "variance" else np.argmax(values))
    assert summary(tmp_path / "a")["kept"]["round"] == expected


@pytest.mark.parametrize("killed", [2, 5, 7])
def test_the_best_so_far_survives_a_kill(
    killed: int, best: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at an evaluation, before its state is saved, so that these rounds are trained again."""
    append = folder_module.append_metrics

    def stop(of: Path, rows: dict[str, np.ndarray]) -> None:
        append(of, rows)
        if rows["round"][-1] == killed:
            raise SystemExit(9)

    out = tmp_path / "a"
    with monkeypatch.context() as patch:
        patch.setattr("evenhand.simulation.folder.append_metrics", stop)
        with pytest.raises(SystemExit):
            train(table, out, "--keep", "best:valid:mean", "--keep-personal", "--quiet")
    shutil.rmtree(out / "checkpoint" / str(killed), ignore_errors=True)
    (out / "best" / ".9.part").mkdir()
    assert main(["resume", str(out), "--quiet"]) == 0
    assert_same(out, best)
    assert [path.name for path in (out / "best").iterdir()] == [str(summary(best)["kept"]["round"])]


def test_further_rounds_continue_from_the_last_state_and_compare_with_the_best(
    best: Path, table: Path, tmp_path: Path
) -> None:
    longer = tmp_path / "longer"
    words = ["--keep", "best:valid:mean", "--keep-personal", "--quiet"]
    assert train(table, longer, *words, rounds=ROUNDS + 3) == 0
    folder = Path(shutil.copytree(best, tmp_path / "a"))
    assert main(["resume", str(folder), "--rounds", str(ROUNDS + 3), "--quiet"]) == 0
    assert_same(folder, longer)


def test_a_damaged_best_round_is_refused(
    best: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = str(summary(best)["kept"]["round"])
    for file in (
        "params.npz",
        "results.npz",
        "summary.json",
        "clients.csv",
        "personal/0-a.npz",
        "personal/index.csv",
    ):
        folder = Path(shutil.copytree(best, tmp_path / file.replace("/", "-") / "a"))
        path = folder / "best" / name / file
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
        capsys.readouterr()
        assert main(["resume", str(folder), "--rounds", str(ROUNDS + 1), "--quiet"]) == 2
        assert "is damaged, and with it the best round so far: repeat the run" in capsys.readouterr().err


def test_another_rule_begins_anew(best: Path, tmp_path: Path) -> None:
    """The best round by the old rule is no candidate; the first that is evaluated is the last one."""
    folder = Path(shutil.copytree(best, tmp_path / "a"))
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"best:valid:mean"', '"best:train:worst10"'))
    assert main(["resume", str(folder), "--rounds", str(ROUNDS + 1), "--quiet"]) == 0
    assert summary(folder)["kept"]["round"] >= ROUNDS
    assert summary(folder)["kept"]["rule"] == "best:train:worst10"


def test_without_a_rule_the_best_round_is_dropped(best: Path, table: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(best, tmp_path / "a"))
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"best:valid:mean"', '"last"'))
    (folder / "report.html").unlink()
    assert main(["resume", str(folder), "--quiet"]) == 0
    assert not (folder / "best").exists() and "kept" not in summary(folder)
    assert train(table, tmp_path / "plain", "--quiet") == 0
    assert_same(folder, tmp_path / "plain")


def test_the_terminal_and_the_page_say_which_round(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    assert train(table, tmp_path / "a", "--keep", "best:valid:worst10") == 0
    shown = capsys.readouterr().out
    words = summary(tmp_path / "a")["kept"]["words"]
    assert words.endswith(f"of {ROUNDS}: best validation worst 10 %")
    assert f"K{words[1:]}." in shown and "has not settled" not in shown
    page = (tmp_path / "a" / "report.html").read_text()
    assert words in page and "has not settled" not in page
    assert main(["report", str(tmp_path / "a"), "--out", str(tmp_path / "again.html")]) == 0
    assert words in (tmp_path / "again.html").read_text()
    assert main(["compare", str(tmp_path / "a")]) == 0
    assert f"ditto(fedavg(), lam=0.1): {words}." in capsys.readouterr().out


def test_honest_clients_choose(table: Path, tmp_path: Path) -> None:
    """One of three clients flips its labels; its own accuracy does not count."""
    words = ["--attack", "label_flip(fraction=0.34)", "--keep", "best:valid:mean", "--quiet"]
    assert train(table, tmp_path / "a", *words, method="fedavg()") == 0
    kept = summary(tmp_path / "a")["kept"]
    with (tmp_path / "a" / "clients.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    honest = [float(line["valid_accuracy"]) for line in lines if line["malicious"] == "0"]
    assert len(honest) == 2 and kept["score"] == pytest.approx(np.mean(honest))
    assert kept["score"] != pytest.approx(np.mean([float(line["valid_accuracy"]) for line in lines]))


def test_where_nothing_is_finite_the_last_round_is_kept(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the evaluated clients none has validation examples."""
    few = tmp_path / "few.csv"
    few.write_text("client,v,label\n" + "a,1,0\n" * 20 + "b,2,1\n" + "b,3,0\n")
    words = ["--keep", "best:valid:mean", "--eval-clients", "1", "--keep-personal", "--seed"]
    for seed in range(9):
        assert train(few, tmp_path / "a", *words, str(seed), "--overwrite", rounds=2) == 0
        shown = capsys.readouterr().out
        if (tmp_path / "a" / "clients.csv").read_text().splitlines()[1].startswith("b,"):
            assert "no round has a finite value, so the results are those of the last round" in shown
            assert "kept" not in summary(tmp_path / "a")
            assert len(models(tmp_path / "a")) == 3
            return
    raise AssertionError("client b was never drawn")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("best:test:mean", "test examples must not choose the round that is tested on them"),
        ("best:test:worst10", "best:valid:worst10 or best:train:worst10"),
        ("best", "is not understood: write last, or best:SPLIT:STATISTIC"),
        ("first", "is not understood"),
        ("best:valid:mean:loss:more", "is not understood"),
        ("best:all:mean", "there is no split 'all': write valid or train"),
        ("best:valid:worst1", "there is no statistic 'worst1' (perhaps you meant worst10)"),
        ("best:valid:mean:auc", "there is no metric 'auc' among accuracy, loss"),
    ],
)
def test_what_cannot_choose_is_one_sentence(
    text: str, sentence: str, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(table, tmp_path / "a", "--keep", text, "--quiet", method="fedavg()") == 2
    shown = capsys.readouterr().err
    assert sentence in shown and shown.count("\n") == 1
    assert not any(path.name != ".lock" for path in tmp_path.glob("a/*"))


def test_data_without_validation_examples_are_refused(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--keep", "best:valid:worst10", "--valid-fraction", "0", "--quiet"]
    assert train(table, tmp_path / "a", *words) == 2
    sentence = capsys.readouterr().err
    assert "needs validation examples" in sentence and "--valid-fraction 0.2" in sentence
    assert not any(path.name != ".lock" for path in tmp_path.glob("a/*"))


def test_a_metric_of_the_last_round_cannot_choose(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--metrics", "auc", "--quiet", "--keep"]
    assert train(table, tmp_path / "run", *words, "best:valid:worst10:auc") == 2
    assert "auc of --metrics is measured after the last round only" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert train(table, tmp_path / "run", *words, "best:valid:worst10", rounds=1) == 0


def test_metrics_of_the_last_round_are_not_those_of_the_kept_one(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--keep", "best:valid:mean", "--metrics", "auc"]
    assert train(table, tmp_path / "a", *words, method="fedavg") == 0
    shown, clients = capsys.readouterr().out, (tmp_path / "a" / "clients.csv").read_text()
    is_last = summary(tmp_path / "a")["kept"]["round"] == ROUNDS
    assert not is_last and "test_auc" not in clients
    assert "auc: not measured, because --metrics are of the last round only" in shown


def test_the_best_round_of_settings_that_were_edited_is_no_candidate(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before any state was saved: the run starts over, by the settings that its file has now."""
    append = folder_module.append_metrics

    def stop(of: Path, rows: dict[str, np.ndarray]) -> None:
        append(of, rows)
        if rows["round"][-1] == 3:
            raise SystemExit(9)

    out = tmp_path / "a"
    words = ["--keep", "best:train:mean:loss", "--quiet", "--checkpoint", "1000", "--lr", "0.3"]
    with monkeypatch.context() as patch:
        patch.setattr("evenhand.simulation.folder.append_metrics", stop)
        with pytest.raises(SystemExit):
            train(table, out, *words)
    assert list((out / "best").iterdir()) and not (out / "checkpoint").exists()
    config = out / "config.json"
    [best] = (out / "best").iterdir()
    assert int(best.name) > 0  # which later rounds by far smaller steps do not reach
    text = config.read_text()
    assert '"lr": 0.3' in text
    config.write_text(text.replace('"lr": 0.3', '"lr": 1e-07'))
    assert main(["resume", str(out), "--quiet"]) == 0
    assert main(["run", "--config", str(config), "--out", str(tmp_path / "fresh"), "--quiet"]) == 0
    assert summary(out)["kept"] == summary(tmp_path / "fresh")["kept"]
    assert (out / "params.npz").read_bytes() == (tmp_path / "fresh" / "params.npz").read_bytes()
