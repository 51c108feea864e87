"""``evenhand resume``: where it continues, how it ends, and what it says where it cannot continue."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

import evenhand as eh
from evenhand.cli import main
from evenhand.simulation import folder as folder_module
from evenhand.simulation._checkpoint import resealed
from evenhand.simulation.folder import condition_of

ROUNDS, EVERY = 6, 2
NAMES = ("config.json", "metrics.jsonl", "clients.csv", "params.npz", "results.npz")
RESULTS = {*NAMES, "features.json", "summary.json", "report.html", "checksums.json", "checkpoint"}
pytestmark = pytest.mark.usefixtures("no_figures", "shared_programs")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "table.csv"
    rng = np.random.default_rng(0)
    rows = [f"{'abcd'[i % 4]},{rng.normal():.3f},{rng.normal():.3f},{i % 3}" for i in range(120)]
    path.write_text("\n".join(["client,size,age,label", *rows]))
    return path


def run(out: Path, table: Path, *words: str) -> None:
    settings = ["--cohort", "2", "--eval-every", str(EVERY)]
    for option, value in (("--rounds", str(ROUNDS)), ("--checkpoint", "0")):
        settings += [] if option in words else [option, value]
    command = ["run", "scaffold", "--data", str(table), *settings, "--out", str(out), "--quiet", *words]
    assert main(command) == 0


@pytest.fixture(scope="module")
def finished(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    run(out, table)
    return out


def stopped(finished: Path, folder: Path) -> Path:
    """A copy of the run as a kill after its last evaluation but one would leave it."""
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "checkpoint" / str(ROUNDS))
    for name in ("clients.csv", "params.npz", "results.npz", "summary.json", "report.html"):
        (folder / name).unlink()
    sums = json.loads((folder / "checksums.json").read_text())
    (folder / "checksums.json").write_text(json.dumps({"config.json": sums["config.json"]}))
    return folder


def assert_same_folder(one: Path, other: Path) -> None:
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()} == RESULTS
    assert condition_of(one) == condition_of(other)
    assert (
        condition_of(one).results == "sealed"
        and not condition_of(one).damaged
        and not condition_of(one).is_edited
    )
    for name in NAMES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, other)]
    for summary in summaries:
        del summary["seconds"], summary["examples_per_second"]
    assert summaries[0] == summaries[1]


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(words) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    return shown.err


def test_a_stopped_run_ends_as_one_that_was_not_stopped(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stopped(finished, tmp_path / "a")
    assert main(["resume", str(folder)]) == 0
    shown = capsys.readouterr()
    assert "round 4 of 6" in shown.err and "round 2 of 6" not in shown.err
    assert "Report: " in shown.out
    assert_same_folder(folder, finished)


@pytest.mark.parametrize("tail", ['{"round": 6, "train_lo', "{}\n{}\n", None])
def test_lines_beyond_the_checkpoint_are_dropped(finished: Path, tmp_path: Path, tail: str | None) -> None:
    folder = stopped(finished, tmp_path / "a")
    metrics = folder / "metrics.jsonl"
    if tail is None:
        metrics.unlink()
    else:
        metrics.write_text(metrics.read_text() + tail)
    (folder / ".clients.csv.part").write_text("half a fi")
    assert main(["resume", str(folder), "--quiet"]) == 0
    assert_same_folder(folder, finished)


def test_a_run_killed_before_its_first_save_starts_over(finished: Path, tmp_path: Path) -> None:
    folder = stopped(finished, tmp_path / "a")
    shutil.rmtree(folder / "checkpoint")
    (folder / "checkpoint").mkdir()
    assert main(["resume", str(folder), "--quiet"]) == 0
    assert_same_folder(folder, finished)


def interrupted(table: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains until Ctrl-C in the evaluation of round 4, before any state is saved."""
    append = folder_module.append_metrics

    def press(of: Path, history: dict[str, np.ndarray]) -> None:
        append(of, history)
        if history["round"][-1] == 4:
            raise KeyboardInterrupt

    words = ["--cohort", "2", "--rounds", str(ROUNDS), "--eval-every", str(EVERY), "--checkpoint", "1000"]
    with monkeypatch.context() as patch:
        patch.setattr("evenhand.simulation.folder.append_metrics", press)
        assert main(["run", "scaffold", "--data", str(table), *words, "--out", str(folder)]) == 130


def test_ctrl_c_before_the_first_save(
    finished: Path,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "a"
    interrupted(table, folder, monkeypatch)
    assert f"`evenhand resume {folder}` continues" in capsys.readouterr().out
    assert main(["resume", str(folder)]) == 0
    assert "stopped before its first state was saved: the run starts over" in capsys.readouterr().err
    for name in ("metrics.jsonl", "clients.csv", "params.npz", "results.npz"):
        assert (folder / name).read_bytes() == (finished / name).read_bytes(), name


def test_an_edited_configuration_never_trains_fewer_rounds_over_those_of_an_interrupted_run(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a"
    interrupted(table, folder, monkeypatch)
    (folder / "checkpoint").mkdir(exist_ok=True)
    config = folder / "config.json"
    config.write_text(config.read_text().replace(f'"rounds": {ROUNDS}', '"rounds": 1'))
    before = contents(folder)
    assert "has already done 2 rounds, more than the 1" in refused(["resume", str(folder)], capsys)
    assert contents(folder) == before


@pytest.mark.parametrize("damage", ["summary.json", "clients.csv"])
def test_damaged_results_without_a_state_are_not_rebuilt_from_the_start(
    finished: Path, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a"
    shutil.copytree(finished, folder, ignore=shutil.ignore_patterns("checkpoint"))
    (folder / "checkpoint").mkdir()
    (folder / damage).unlink()
    before = contents(folder)
    assert "has no checkpoint to continue from" in refused(["resume", str(folder)], capsys)
    assert contents(folder) == before


def test_a_run_continues_from_the_saved_state_and_not_from_the_seed_alone(
    finished: Path, tmp_path: Path
) -> None:
    """A wrong number of rounds in the state must change the results; else equal folders would prove nothing."""
    folder = stopped(finished, tmp_path / "a")
    (folder / "checkpoint" / "4").rename(folder / "checkpoint" / "2")
    about = folder / "checkpoint" / "2" / "about" / "metadata"
    about.write_text(json.dumps(resealed({**json.loads(about.read_text()), "done": 2})))
    assert main(["resume", str(folder), "--quiet"]) == 0
    with pytest.raises(AssertionError):
        assert_same_folder(folder, finished)


def test_a_finished_run_is_left_alone(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    for words in ([], ["--rounds", str(ROUNDS)]):
        assert main(["resume", str(finished), *words]) == 0
        shown = capsys.readouterr()
        assert shown.out.count("\n") == 1 and "is finished after 6 rounds" in shown.out
        assert shown.err == ""
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before
    # A missing page is written again, without training.
    folder = tmp_path / "a"
    shutil.copytree(finished, folder)
    (folder / "report.html").unlink()
    assert main(["resume", str(folder), "--quiet"]) == 0
    assert_same_folder(folder, finished)


def test_more_rounds_train_the_run_further(
    finished: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = tmp_path / "longer"
    run(longer, table, "--rounds", "10")
    folder = tmp_path / "a"
    shutil.copytree(finished, folder)
    assert main(["resume", str(folder), "--rounds", "10", "--quiet"]) == 0
    assert_same_folder(folder, longer)


def test_adding_rounds_does_not_change_how_often_a_run_is_evaluated(table: Path, tmp_path: Path) -> None:
    words = ["run", "fedavg", "--data", str(table), "--quiet"]
    assert main([*words, "--rounds", "100", "--out", str(tmp_path / "a")]) == 0
    assert main(["resume", str(tmp_path / "a"), "--rounds", "104", "--quiet"]) == 0
    assert main([*words, "--rounds", "104", "--eval-every", "2", "--out", str(tmp_path / "b")]) == 0
    assert_same_folder(tmp_path / "a", tmp_path / "b")


def test_short_runs_save_their_last_state(table: Path, tmp_path: Path) -> None:
    run(tmp_path / "short", table, "--checkpoint", "1000")
    assert {path.name for path in (tmp_path / "short" / "checkpoint").iterdir()} == {str(ROUNDS)}
    assert main(["resume", str(tmp_path / "short"), "--rounds", "10", "--quiet"]) == 0
    run(tmp_path / "long", table, "--checkpoint", "1000", "--rounds", "10")
    assert_same_folder(tmp_path / "short", tmp_path / "long")


def test_off_saves_no_state(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "off"
    run(folder, table, "--checkpoint", "off")
    assert not (folder / "checkpoint").exists()
    before = contents(folder)
    sentence = refused(["resume", str(folder), "--rounds", "10"], capsys)
    assert "has no checkpoint" in sentence and f"--config {folder} --rounds 10 --out NEW" in sentence
    assert contents(folder) == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_checkpoint(finished: Path, folder: Path) -> Path:
    """A short run of an earlier version: finished, with an empty folder for states."""
    shutil.copytree(finished, folder, ignore=shutil.ignore_patterns("checksums.json", "checkpoint"))
    (folder / "checkpoint").mkdir()
    return folder


@pytest.mark.parametrize("rounds", [2, 5, 10])
def test_a_finished_run_without_a_state_is_never_overwritten(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], rounds: int
) -> None:
    folder = without_checkpoint(finished, tmp_path / "a")
    before = contents(folder)
    sentence = refused(["resume", str(folder), "--rounds", str(rounds)], capsys)
    assert ("has already done 6 rounds" if rounds < ROUNDS else "has no checkpoint") in sentence
    assert contents(folder) == before


@pytest.mark.parametrize("is_finished", [True, False])
def test_fewer_rounds_are_refused(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_finished: bool
) -> None:
    folder = tmp_path / "a"
    shutil.copytree(finished, folder) if is_finished else stopped(finished, folder)
    before = contents(folder)
    sentence = refused(["resume", str(folder), "--rounds", "5"], capsys)
    assert "has already done 6 rounds, more than the 5 asked for" in sentence
    # As many rounds as the saved state has would still lose the metrics of later ones.
    refused(["resume", str(folder), "--rounds", "4"], capsys)
    assert contents(folder) == before


def test_a_configuration_edited_to_fewer_rounds_loses_nothing(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a"
    shutil.copytree(finished, folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"rounds": 6', '"rounds": 4'))
    before = contents(folder)
    assert "has already done 6 rounds" in refused(["resume", str(folder)], capsys)
    assert contents(folder) == before


def test_old_results_stay_readable_until_the_new_ones_are_complete(
    finished: Path,
    table: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    longer, folder = tmp_path / "longer", tmp_path / "a"
    run(longer, table, "--rounds", "10")
    shutil.copytree(finished, folder)
    main(["compare", str(finished)])
    before = capsys.readouterr()

    def killed(*whatever: object, **named: object) -> None:
        raise SystemExit(9)

    monkeypatch.setattr("evenhand.cli._run._finish", killed)
    with pytest.raises(SystemExit):
        main(["resume", str(folder), "--rounds", "10", "--quiet"])
    monkeypatch.undo()
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 6
    capsys.readouterr()
    assert main(["compare", str(folder)]) == 0
    after = capsys.readouterr()
    assert after.out == before.out
    assert "was stopped while it was: these are its last complete results" in after.err and before.err == ""
    monkeypatch.setattr("evenhand.cli._run.write_report", lambda path, views: path.write_text("page"))
    assert main(["resume", str(folder), "--quiet"]) == 0
    assert_same_folder(folder, longer)


def test_overwrite_starts_over(finished: Path, table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    run(folder, table, "--seed", "5", "--rounds", "8")
    run(folder, table, "--overwrite")
    assert_same_folder(folder, finished)
    assert {path.name for path in (folder / "checkpoint").iterdir()} == {"4", "6"}


def test_the_saved_parameters_have_the_last_metrics(finished: Path, table: Path) -> None:
    params = unflatten_dict(dict(np.load(finished / "params.npz")), sep="/")
    data = eh.data.load(table)
    model = eh.models.softmax_regression(features=2, classes=3)
    outputs = model.apply(params, jnp.asarray(data.test.x))
    accuracy = float(model.metrics["accuracy"](outputs, jnp.asarray(data.test.y)).mean())
    last = json.loads((finished / "metrics.jsonl").read_text().splitlines()[-1])
    assert accuracy == pytest.approx(last["test_accuracy"], rel=1e-6)
    assert set(np.load(finished / "params.npz").files) == {"kernel", "bias"}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not JSON"),
        ("\x80garbage", "is not JSON"),
        ("[]", "holds no JSON object"),
        ("{}", "is not the configuration of a run"),
        ('{"method": "fedavg()", "options": {"rounds": "many"}}', "config.json is damaged: "),
        (
            '{"method": "fedavg()", "options": {"help": true}}',
            "config.json is damaged: run has no option --help",
        ),
        ('{"method": {"name": "fedavg"}, "options": {}}', "is not the configuration of a run"),
        (
            '{"method": "--help", "options": {}}',
            "config.json is damaged: '--help', column 1: a method belongs",
        ),
        (
            '{"method": "fedporx()", "options": {}}',
            "config.json is damaged: 'fedporx()', column 1: there is no ",
        ),
        ('{"method": "fedavg(", "options": {}}', "config.json is damaged: 'fedavg(' is not an expression"),
        ('{"method": "fedavg()", "options": {"rounds": 9}}', "are not those that"),
    ],
)
def test_a_damaged_configuration(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, sentence: str
) -> None:
    folder = stopped(finished, tmp_path / "a")
    (folder / "config.json").write_bytes(content.encode("latin-1"))
    assert sentence in refused(["resume", str(folder)], capsys)


def test_folders_that_no_run_can_continue_from(
    finished: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nowhere is not a run folder" in refused(["resume", str(tmp_path / "nowhere")], capsys)
    assert "is not a run folder" in refused(["resume", str(tmp_path)], capsys)
    assert "is not a run folder" in refused(["resume", str(table)], capsys)
    folder = stopped(finished, tmp_path / "a")
    shutil.rmtree(folder / "checkpoint" / "4" / "state")
    assert "is damaged" in refused(["resume", str(folder)], capsys)


def test_data_that_are_missing_or_changed(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, folder = tmp_path / "copy.csv", tmp_path / "a"
    shutil.copy(table, copy)
    run(folder, copy, "--rounds", "2")
    copy.write_text(copy.read_text() + "\na,1,1,0")
    assert "are not those that" in refused(["resume", str(folder), "--rounds", "4"], capsys)
    copy.unlink()
    assert "copy.csv" in refused(["resume", str(folder), "--rounds", "4"], capsys)


def test_a_checkpoint_of_other_settings(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stopped(finished, tmp_path / "a")
    config = json.loads((folder / "config.json").read_text())
    for option, value, sentence in (("seed", 9, "its seed is 0, not 9"), ("lr", 0.2, "of another run")):
        changed = {**config, "options": {**config["options"], option: value}}
        (folder / "config.json").write_text(json.dumps(changed))
        assert sentence in refused(["resume", str(folder)], capsys)
    assert json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["round"] == ROUNDS


def test_damage_to_the_features_of_a_table_is_found(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    path = folder / "features.json"
    path.write_text(path.read_text().replace('"mean"', '"maen"', 1))
    assert main(["compare", str(folder)]) == 2
    assert f"{path} is damaged" in capsys.readouterr().err
