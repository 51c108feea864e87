"""The personal models in a run folder: which files hold them, when they are kept, and that damage is noticed."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from rich.console import Console

import evenhand as eh
from evenhand.cli import main
from evenhand.cli._run import Place, record
from evenhand.errors import EvenhandError
from evenhand.simulation import folder as folder_module
from evenhand.simulation.folder import personal_models, read_index

METHOD = "ditto(fedavg(), lam=0.1)"
WORDS = ["--eval-every", "2", "--checkpoint", "0", "--batch-size", "5", "--lr", "0.5"]
NAMES = ("north / A", "north / B", "=1+1", "Zoë")
pytestmark = pytest.mark.usefixtures("no_figures", "shared_programs")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "table.csv"
    rng = np.random.default_rng(0)
    rows = [f"{NAMES[i % 4]},{rng.normal():.3f},{(i + i // 4) % 3}" for i in range(48)]
    path.write_text("\n".join(["client,size,label", *rows]), encoding="utf-8")
    return path


def train(table: Path, out: Path, *words: str, method: str = METHOD, rounds: int = 4) -> int:
    given = ["--data", str(table), "--rounds", str(rounds), "--out", str(out), *WORDS, *words]
    return main(["run", method, *given])


@pytest.fixture(scope="module")
def finished(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evenhand.cli._run.write_report", lambda path, views: path.write_text("page"))
        out = tmp_path_factory.mktemp("finished") / "run"
        assert train(table, out, "--quiet") == 0
    return out


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def models(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "personal").iterdir()}


def in_python(table: Path) -> eh.Run:
    data = eh.data.load(table)
    work = eh.local.sgd(eh.models.softmax_regression(1, classes=3), 0.5, epochs=1, batch_size=5)
    method = eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=0.1)
    return eh.simulate(method, data, rounds=4, eval_every=2)


def test_each_client_has_a_file_that_numpy_opens(finished: Path, table: Path) -> None:
    """The same run in Python, with the same seed, has the same personal models; all of them differ."""
    with (finished / "personal" / "index.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["client"] for line in lines] == ["'=1+1", "Zoë", "north / A", "north / B"]
    files = ["0-1-1.npz", "1-Zoë.npz", "2-north-A.npz", "3-north-B.npz"]
    assert [line["file"] for line in lines] == files
    assert {path.name for path in (finished / "personal").iterdir()} == {"index.csv", *files}
    run = in_python(table)
    shared = np.load(finished / "params.npz")["kernel"]
    for k, line in enumerate(lines):
        with np.load(finished / "personal" / line["file"]) as arrays:
            own = run.personal_params(k)
            assert set(arrays.files) == {"kernel", "bias"}
            for name in arrays.files:
                np.testing.assert_array_equal(arrays[name], np.asarray(own[name]))
            assert not np.allclose(arrays["kernel"], shared)


def test_many_clients_share_files(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is 24 bytes, and a file holds two of them here; the index says where each is."""
    monkeypatch.setattr("evenhand.simulation.folder._MOST_FILES", 3)
    monkeypatch.setattr("evenhand.simulation.folder._BLOCK", 48)
    assert train(table, tmp_path / "a", "--quiet") == 0
    entries = read_index(tmp_path / "a")
    assert [(entry.client, entry.file, entry.row) for entry in entries] == [
        ("=1+1", "0-1.npz", 0),
        ("Zoë", "0-1.npz", 1),
        ("north / A", "2-3.npz", 0),
        ("north / B", "2-3.npz", 1),
    ]
    run = in_python(table)
    found = {
        entry.client: params for entry, params in personal_models(tmp_path / "a", entries[::-1], run.params)
    }
    for k, entry in enumerate(entries):
        with np.load(tmp_path / "a" / "personal" / entry.file) as arrays:
            assert arrays["kernel"].shape == (2, 1, 3)
        own = run.personal_params(k)
        np.testing.assert_array_equal(found[entry.client]["kernel"], np.asarray(own["kernel"]))
        np.testing.assert_array_equal(found[entry.client]["bias"], np.asarray(own["bias"]))


@pytest.mark.parametrize("stopped", [False, True])
def test_states_in_files_are_kept_too(
    stopped: bool, table: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line moves states to files only above 1 GB, so this records a run that was told to.

    After Ctrl-C the files hold the states of later rounds, so nothing is kept.
    """
    append = folder_module.append_metrics

    def press(of: Path, history: dict[str, np.ndarray]) -> None:
        append(of, history)
        if history["round"][-1] == 4:
            raise KeyboardInterrupt

    if stopped:
        monkeypatch.setattr("evenhand.simulation.folder.append_metrics", press)
    data = eh.data.load(table)
    work = eh.local.sgd(eh.models.softmax_regression(1, classes=3), 0.5, epochs=1, batch_size=5)
    method = eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=0.1)
    runs = eh.simulation.iterate(method, data, rounds=4, eval_every=2, offload=tmp_path / "states")
    config = json.loads((finished / "config.json").read_text())
    place = Place(tmp_path / "a", config, resumed=False)
    assert record(runs, place, rounds=4, console=Console(quiet=True)) == (130 if stopped else 0)
    if stopped:
        assert not (tmp_path / "a" / "personal").exists() and (tmp_path / "a" / "params.npz").exists()
    else:
        assert models(tmp_path / "a") == models(finished)


def test_resume_gives_the_same_models_and_further_rounds_replace_them(
    table: Path, finished: Path, folder: Path, tmp_path: Path
) -> None:
    shutil.rmtree(folder / "checkpoint" / "4")
    shutil.rmtree(folder / "personal")
    for name in ("clients.csv", "params.npz", "summary.json", "report.html"):
        (folder / name).unlink()
    sums = json.loads((folder / "checksums.json").read_text())
    (folder / "checksums.json").write_text(json.dumps({"config.json": sums["config.json"]}))
    assert main(["resume", str(folder), "--quiet"]) == 0
    assert models(folder) == models(finished)
    assert main(["resume", str(folder), "--rounds", "6", "--quiet"]) == 0
    assert train(table, tmp_path / "longer", "--quiet", rounds=6) == 0
    assert models(folder) == models(tmp_path / "longer") != models(finished)


@pytest.mark.parametrize("name", ["index.csv", "2-north-A.npz"])
@pytest.mark.parametrize("how", ["digit", "removed"])
def test_damage_is_noticed_and_repaired(
    name: str, how: str, finished: Path, folder: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "personal" / name
    if how == "removed":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
    assert main(["predict", str(folder), "--data", str(table)]) == 2
    shown = capsys.readouterr()
    assert f"{path} is damaged" in shown.err and shown.err.count("\n") == 1 and not shown.out
    assert main(["resume", str(folder), "--quiet"]) == 0
    assert "is damaged: the results are rebuilt from the checkpoint" in capsys.readouterr().err
    assert models(folder) == models(finished)
    assert main(["predict", str(folder), "--data", str(table), "--quiet"]) == 0


def test_an_index_that_no_run_wrote_is_one_sentence(folder: Path) -> None:
    path = folder / "personal" / "index.csv"
    whole = path.read_text(encoding="utf-8")
    for text in (
        "",
        "client,file\n",
        whole.replace("2-north-A", "../2-north-A"),
        whole.replace(",,", ",one,"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(EvenhandError, match="is not what `evenhand run` writes"):
            read_index(folder)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--checkpoint", "off"], "(--checkpoint off)"),
        (["--keep", "best:train:mean"], "(--keep best:train:mean)"),
        ([], "(they would take 0.0 GB)"),
    ],
)
def test_where_none_are_kept_a_sentence_says_so(
    words: list[str],
    reason: str,
    table: Path,
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not words:
        monkeypatch.setattr("evenhand.cli._run._MOST_PERSONAL", 4 * 24 - 1)
    assert train(table, tmp_path / "a", *words) == 0
    sentence = f"Personal models are not kept {reason}: --keep-personal keeps them."
    assert sentence in capsys.readouterr().out
    assert not (tmp_path / "a" / "personal").exists()
    assert train(table, tmp_path / "b", *words, "--keep-personal") == 0
    assert f"Personal models: {tmp_path / 'b' / 'personal'}" in capsys.readouterr().out
    assert words[:1] == ["--keep"] or models(tmp_path / "b") == models(finished)


def test_methods_with_one_model_keep_none(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SCAFFOLD's clients have states, but no models."""
    assert train(table, tmp_path / "a", "--keep-personal", method="scaffold()") == 0
    shown = capsys.readouterr().out
    assert "--keep-personal has no effect: the method has one model for all clients." in shown
    assert "Personal" not in shown and not (tmp_path / "a" / "personal").exists()


@pytest.mark.parametrize("light", [True, False])
def test_an_interrupted_run_keeps_small_models(
    light: bool,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C after the evaluation of round 2: small states were copied at it, and large ones are gone."""
    append = folder_module.append_metrics

    def press(of: Path, history: dict[str, np.ndarray]) -> None:
        append(of, history)
        if history["round"][-1] == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("evenhand.simulation.folder.append_metrics", press)
    if not light:
        monkeypatch.setattr("evenhand.simulation.store._LIGHT", 0)
    assert train(table, tmp_path / "a", rounds=6) == 130
    shown = capsys.readouterr().out
    monkeypatch.undo()
    assert (tmp_path / "a" / "personal").is_dir() == light
    assert ("The personal models are written when the run ends" in shown) != light
    if light:
        monkeypatch.setattr("evenhand.cli._run.write_report", lambda path, views: path.write_text("page"))
        assert train(table, tmp_path / "b", "--quiet", rounds=2) == 0
        assert models(tmp_path / "a") == models(tmp_path / "b")


def test_overwriting_removes_models_that_a_run_wrote_and_no_others(
    table: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(table, folder, "--overwrite", "--quiet", method="fedavg()") == 0
    assert not (folder / "personal").exists()
    (tmp_path / "other" / "personal").mkdir(parents=True)
    (tmp_path / "other" / "personal" / "diary.txt").write_text("dear diary")
    assert train(table, tmp_path / "other", "--overwrite", "--quiet") == 2
    assert "was not written by `evenhand run`: move it away" in capsys.readouterr().err
    assert (tmp_path / "other" / "personal" / "diary.txt").exists()


@pytest.mark.parametrize(("untrained", "most_files"), [("global", 1000), ("global", 3), ("initial", 1000)])
def test_clients_that_never_trained_have_no_model_of_their_own(
    untrained: Literal["global", "initial"],
    most_files: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two of twelve clients train: only they are in the index, as in ``clients.csv``, unless all keep a model."""
    monkeypatch.setattr("evenhand.simulation.folder._MOST_FILES", most_files)
    rng = np.random.default_rng(0)
    rows = [f"c{i % 12},{rng.normal():.3f},{(i + i // 4) % 3}" for i in range(96)]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["client,size,label", *rows]))
    words = ["--cohort", "2", "--untrained", untrained, "--quiet"]
    assert train(table, tmp_path / "a", *words, rounds=1) == 0
    with (tmp_path / "a" / "clients.csv").open(newline="") as file:
        last = {line["client"]: int(line["last_round"]) for line in csv.DictReader(file)}
    trained = [name for name, done in last.items() if done]
    assert len(trained) == 2 and len(last) == 12
    entries = read_index(tmp_path / "a")
    own = trained if untrained == "global" else list(last)
    assert sorted(entry.client for entry in entries) == sorted(own)
    data = eh.data.load(table)
    work = eh.local.sgd(eh.models.softmax_regression(1, classes=3), 0.5, epochs=1, batch_size=5)
    method = eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=0.1)
    run = eh.simulate(method, data, rounds=1, cohort=2, untrained=untrained)
    for entry, params in personal_models(tmp_path / "a", entries, run.params):
        expected = run.personal_params(run.data.client_ids.index(entry.client))
        np.testing.assert_array_equal(params["kernel"], np.asarray(expected["kernel"]))
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "a"), "--data", str(table), "--quiet"]) == 0
    lines = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert {line["client"] for line in lines if line["model"] == "personal"} == set(own)
    first = lines[0]
    x = eh.data.encode_table(table, features=eh.data.load_features(tmp_path / "a"))[:1]
    logits = run.predict(x, client=first["client"])[0].astype(np.float64)
    shares = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose([float(first[f"probability_{k}"]) for k in range(3)], shares, atol=1e-6)


def test_fedbn_runs_from_the_command_line(tmp_path: Path) -> None:
    """On the one model of the command line that measures running statistics."""
    rng = np.random.default_rng(0)
    x, y = rng.random((24, 784), np.float32), rng.integers(0, 3, 24)
    np.savez(tmp_path / "images.npz", x=x, y=y, client=np.repeat(np.arange(4), 6))
    given = ["--data", str(tmp_path / "images.npz"), "--model", "cnn_batch_norm", "--rounds", "1", "--quiet"]
    out = ["--out", str(tmp_path / "run"), "--batch-size", "4"]
    assert main(["run", "fedbn", *given, *out]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert "fedbn" in json.dumps(config)
    assert (tmp_path / "run" / "personal").is_dir()
