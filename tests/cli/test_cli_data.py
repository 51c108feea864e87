"""Data of the sources on the command line: which clients, text, and models that fit them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli_errors import refused

import evenhand as eh
import published
from evenhand.cli import main
from evenhand.cli._run import RunCommand

pytestmark = pytest.mark.usefixtures("shared_programs")

QUICK = ["--rounds", "1", "--checkpoint", "off"]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, Any]]:
    """``words -> (data, model)`` of a run that stops before it trains."""
    caught = list[tuple[Any, Any]]()

    def train(command: RunCommand, data: Any, place: object) -> int:
        caught.append((command._divided(data), command.model.build(data.form)))
        return 0

    monkeypatch.setattr(RunCommand, "train", train)

    def of(*words: str) -> tuple[Any, Any]:
        assert main(["run", "fedavg", *words, "--quiet", "--overwrite", "--out", "r"]) == 0
        return caught[-1]

    return of


def size(model: Any) -> int:
    import jax

    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))


def test_clients_are_kept_by_their_examples_and_by_name(loaded) -> None:
    digits = eh.data.load("digits")
    (data, _), _ = loaded("--min-examples", "60")
    assert data.client_ids == digits.min_examples(60).client_ids
    Path("ids.txt").write_text("7\n 2 \n\n11\n", encoding="utf-8-sig")
    (data, _), _ = loaded("--clients-from", "ids.txt")
    assert data.client_ids == ("2", "7", "11")
    least = sorted(digits.select(["2", "7", "11"]).train.sizes + digits.select(["2", "7", "11"]).test.sizes)[
        1
    ]
    (data, _), _ = loaded("--clients-from", "ids.txt", "--min-examples", str(least))
    assert data.num_clients == 2
    (data, _), _ = loaded("--data", "synthetic:1,1", "--min-examples", "100")
    assert 0 < data.num_clients < 30


def test_half_of_the_clients_are_unseen_and_a_seed_draws_others(loaded) -> None:
    (seen, unseen), _ = loaded("--min-examples", "20", "--unseen", "0.5")
    assert abs(seen.num_clients - unseen.num_clients) <= 1
    (other, _), _ = loaded("--min-examples", "20", "--unseen", "0.5", "--unseen-seed", "1")
    assert other.num_clients == seen.num_clients and other.client_ids != seen.client_ids
    data = eh.data.load("digits", min_examples=20)
    assert other.client_ids == eh.data.hold_out_clients(data, 0.5, seed=1)[0].client_ids


def test_mean_vectors_vectors_and_counts(loaded) -> None:
    published.tweets(Path("tweets"))
    published.vectors(Path())
    vectors = ("--data", "tweets", "--vectors", "glove.tiny.txt")
    (data, _), model = loaded(*vectors, "--words", "mean", "--min-examples", "4")
    assert data.feature_shape == (3,) and data.client_ids == ("ann",) and size(model) == 8
    (data, _), model = loaded(*vectors, "--words", "4", "--model", "lstm_classifier")
    known = eh.data.load_vectors("glove.tiny.txt")
    expected = eh.data.load("tweets", encode=eh.data.encode_vectors(known, length=4))
    assert data.fingerprint == expected.fingerprint and data.feature_shape == (4, 3)
    assert size(model) == size(eh.models.lstm_classifier(3))
    (data, _), _ = loaded("--data", "tweets", "--vocabulary", "3")
    assert data.fingerprint == eh.data.load("tweets", vocabulary=3).fingerprint


def test_models_of_the_sources(loaded, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    published.emnist(tmp_path / "emnist")
    classes = eh.data.load("emnist").num_classes
    assert classes is not None
    for words, count in (
        (["--model", "cnn_femnist_small"], 832 + 51_264 + 1025 * classes),
        (["--no-bias"], 784 * classes),
        (["--model", "mlp", "--hidden", "30,20"], 785 * 30 + 31 * 20 + 21 * classes),
        (["--model", "mlp", "--hidden", "30"], 785 * 30 + 31 * classes),
    ):
        assert size(loaded("--data", "emnist", *words)[1]) == count
    published.movielens(tmp_path / "films")
    assert size(loaded("--data", "films", "--model", "factors")[1]) == 2 * 4 * 100


def test_runs_end_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of each new form, trained, with the sentence about the clients that were kept."""
    published.tweets(tmp_path / "tweets")
    published.vectors(tmp_path)
    published.movielens(tmp_path / "films")
    words = ["--data", "tweets", "--vectors", "glove.tiny.txt", "--words", "5", "--min-examples", "4"]
    assert main(["run", "fedavg", *words, "--model", "lstm_classifier", *QUICK, "--out", "a"]) == 0
    assert "Kept 1 of 2 clients: those with at least 4 examples." in " ".join(capsys.readouterr().err.split())
    options = json.loads(Path("a/config.json").read_text())["options"]
    # Absolute, so that the run can be repeated from anywhere.
    assert options["vectors"] == str(tmp_path / "glove.tiny.txt") and options["words"] == 5
    assert main(["run", "fedavg", "--data", "films", "--model", "factors", *QUICK, "--out", "c"]) == 0
    assert json.loads(Path("c/summary.json").read_text())["test"]["squared_error"]["mean"] > 0


def test_what_does_not_fit_together_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    published.tweets(Path("tweets"))
    published.vectors(Path())
    text = "run fedavg --quiet --data tweets"
    for words, sentence in (
        (text, "count their words with --vocabulary 1000"),
        (f"{text} --vectors glove.tiny.txt --vocabulary 5", "--vectors and --vocabulary exclude each other"),
        (f"{text} --vectors no.txt", "no.txt: no such file"),
        (f"{text} --vectors glove.tiny.txt --words 0", "--words 0: give a whole number from 1"),
        (f"{text} --vocabulary 0", "count=0: give a whole number from 1"),
        (
            f"{text} --vocabulary 5 --min-examples 9",
            "no client has 9 examples: ask for fewer with --min-examples N",
        ),
        ("run fedavg --quiet --min-examples 9999", "ask for fewer"),
        ("run fedavg --quiet --min-examples 0", "--min-examples 0: give a whole number from 1"),
        ("run fedavg --quiet --clients-from no.txt", "--clients-from no.txt cannot be read (No such file"),
        ("run fedavg --quiet --clients-from glove.tiny.txt", "there is no client 'good 1 0.5 0'"),
        ("run fedavg --quiet --model lstm_classifier", "reads sequences of vectors"),
        ("run fedavg --quiet --model factors", "reads pairs of a user and an item"),
        ("run fedavg --quiet --model mlp --hidden 30,0", "--hidden 0: give a whole number from 1"),
        ("run fedavg --quiet --hidden 30,x", "--hidden takes whole numbers, as in 300,100, not '30,x'"),
    ):
        assert sentence in refused(words.split(), capsys), words


def test_options_without_effect_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RunCommand, "train", lambda *_: 0)
    published.vehicle(Path())
    words = "--data vehicle.mat --model svm --no-bias --words 9 --unseen-seed 4 --alpha 0.1 --clients 3"
    assert main(["run", "fedavg", *words.split()]) == 0
    lines = capsys.readouterr().err
    for line in (
        "--no-bias has no effect: it is for --model softmax only.",
        "--words 9 has no effect: it is for --vectors only.",
        "--unseen-seed 4 has no effect: it is for --unseen only.",
        "--alpha 0.1 has no effect: vehicle.mat has client ids.",
    ):
        assert line in lines
    assert "--clients 3" not in lines, "as many as there are"
    assert main(["run", "fedavg", "--vocabulary", "9", "--out", "z"]) == 0
    assert "--vocabulary 9 has no effect: digits holds no text." in capsys.readouterr().err


@pytest.mark.parametrize("form", ["folder", "c.tar.gz"])
def test_pictures_in_folders_and_archives_are_spread(loaded, form: str) -> None:
    folder = published.cifar(Path("made"))
    path = folder if form == "folder" else published.packed(folder, Path(form))
    (data, _), model = loaded("--data", str(path), "--clients", "4", "--alpha", "0.3")
    assert data.num_clients == 4 and size(model) == 3073 * 10
    np.testing.assert_array_equal(data.fingerprint, eh.data.load(path, clients=4, alpha=0.3).fingerprint)


def test_the_list_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "data"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in eh.data.loaders.NAMES if name not in shown] == []
    assert main(["list", "models"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("cnn_femnist_small", "lstm_classifier", "factors"))
