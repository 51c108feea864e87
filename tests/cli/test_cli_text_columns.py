"""Columns of free text on the command line: runs, predictions of later tables, deployments, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evenhand as eh
import published
from evenhand.cli import main
from evenhand.cli._deploy import builder, own_data
from evenhand.network import files
from evenhand.network.deployed import client_node, event_log, serve_run
from evenhand.network.in_process import LocalCarrier

PLAIN = ["the", "plot", "film", "with", "actors", "and", "music", "again"]
MOODS = {"bad": ["awful", "dull", "poor"], "good": ["great", "lovely", "fine"]}
SHOPS = ("lima", "oslo", "rome")

pytestmark = pytest.mark.usefixtures("no_figures", "shared_programs")


def rows(count: int, seed: int = 0) -> list[list[str]]:
    """Shop, price, review and label: one word of eight is the mood, and a third are bad."""
    random = np.random.default_rng(seed)
    made = list[list[str]]()
    for i in range(count):
        label = "bad" if random.random() < 1 / 3 else "good"
        text = " ".join(random.permutation([*random.choice(PLAIN, 7), random.choice(MOODS[label])]))
        made.append([SHOPS[i % 3], str(random.integers(1, 9)), f"{text}, really", label])
    return made


def written(path: Path, lines: list[list[str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["shop", "price", "review", "label"], *lines])
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("data") / "reviews.csv", rows(600))


def train(folder: Path, data: Path, *words: str) -> Path:
    given = ["--data", str(data), "--client-column", "shop", "--text-column", "review", "--rounds", "20"]
    assert main(["run", "fedavg", *given, "--lr", "2", "--out", str(folder / "run"), *words]) == 0
    return folder / "run"


def predicted(folder: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    capsys.readouterr()
    assert main(["predict", str(folder), "--data", str(data)]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def inputs(later: list[list[str]], features: dict[str, Any], encode: Any) -> np.ndarray:
    """The inputs of new rows, in NumPy: the standardised price and the encoded text."""
    price = features["columns"][0]
    texts = np.stack([encode(row[2]) for row in later])
    numbers = (np.array([float(row[1]) for row in later]) - price["mean"]) / price["deviation"]
    return np.column_stack([numbers, texts])


LATER = [["oslo", "3", "an awful plot", ""], ["mars", "4", "great, GREAT music", ""], ["rome", "5", "", ""]]


@pytest.mark.parametrize(
    ("words", "size", "shown"),
    [
        ((), 1024, "1 column of free text hashed into 1,024 inputs: review"),
        (("--buckets", "64"), 64, "1 column of free text hashed into 64 inputs: review"),
        (("--vocabulary", "30"), 16, "1 column of free text as shares of 16 words: review"),
    ],
)
def test_a_run_learns_from_reviews_and_predicts_later_ones(
    table: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    size: int,
    shown: str,
) -> None:
    """A third of the reviews are bad, so always guessing good is right in two of three."""
    folder = train(tmp_path, table, *words)
    assert shown in " ".join(capsys.readouterr().err.split())
    run = eh.load_run(folder)
    assert run.summary("test", metric="accuracy")["mean"] > 0.8
    stored = json.loads((folder / "features.json").read_text())
    assert [column["kind"] for column in stored["columns"]] == ["number", "text"]
    assert run.form.shape == (1 + size,)
    found = predicted(folder, written(tmp_path / "later.csv", LATER), capsys)
    encode: Any = eh.data.encode_hashed(size)
    if "--vocabulary" in words:
        encode = eh.data.encode_counts(stored["columns"][1]["words"])
    x = inputs(LATER, stored, encode)
    kernel, bias = run.params["kernel"], run.params["bias"]
    logits = x @ np.asarray(kernel, float) + np.asarray(bias, float)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose([float(row["probability_good"]) for row in found], shares[:, 1], rtol=1e-4)
    assert [row["prediction"] for row in found[:2]] == ["bad", "good"]
    again = run.predict_table(tmp_path / "later.csv")
    np.testing.assert_allclose(again["probability_good"], shares[:, 1], rtol=1e-4)


def test_vectors_of_words_are_read_again_for_predictions(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{word} {1 if label == 'good' else -1} 0" for label, moods in MOODS.items() for word in moods]
    (tmp_path / "glove.txt").write_text("\n".join([*lines, *(f"{word} 0 1" for word in PLAIN)]))
    words = ("--vectors", str(tmp_path / "glove.txt"), "--words", "mean", "--drop", "price", "--lr", "20")
    folder = train(tmp_path, table, *words)
    run = eh.load_run(folder)
    assert run.form.shape == (2,) and run.summary("test", metric="accuracy")["mean"] > 0.8
    found = predicted(folder, written(tmp_path / "later.csv", LATER), capsys)
    assert [row["prediction"] for row in found[:2]] == ["bad", "good"]
    with pytest.raises(eh.EvenhandError, match="encode=FUNCTION"):
        run.predict_table(tmp_path / "later.csv")
    encode = eh.data.encode_mean(eh.data.load_vectors(tmp_path / "glove.txt"))
    again = run.predict_table(tmp_path / "later.csv", encode=encode)
    assert again["prediction"].tolist()[:2] == ["bad", "good"]


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    return shown


def test_free_text_that_no_option_names_is_asked_about_in_one_sentence(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "fedavg", "--data", str(table), "--client-column", "shop", "--out", str(tmp_path / "x")]
    shown = refused(words, capsys)
    assert "learn from its words with --text-column review if it is free text" in shown
    assert "leave it out with --drop review" in shown
    many = [[*row[:2], f"answer {i % 25} to a question of ours", row[3]] for i, row in enumerate(rows(240))]
    path = written(tmp_path / "few.csv", many)
    shown = refused([*words[:3], str(path), *words[4:]], capsys)
    assert (
        "holds 25 different texts of 7 words on average" in shown
        and "--text-column review if it is free text" in shown
    )
    assert "make an input of each text with --categorical review" in shown


def test_options_for_text_exclude_each_other_and_do_nothing_without_text(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "fedavg", "--data", str(table), "--client-column", "shop", "--out", str(tmp_path / "x")]
    both = ["--text-column", "review", "--buckets", "8", "--vocabulary", "8"]
    assert "--vocabulary and --buckets exclude each other" in refused([*words, *both], capsys)
    shown = refused([*words, "--text-column", "price"], capsys)
    assert "column 'price' holds numbers, not text: leave it out of --text-column NAMES" in shown
    assert "--text reads LEAF's texts as characters" in refused(
        [*words, "--text-column", "review", "--text"], capsys
    )
    assert "--text-column is for tables" in refused(
        ["run", "fedavg", "--data", "synthetic:1,1", "--text-column", "x", "--out", str(tmp_path / "x")],
        capsys,
    )
    assert main([*words, "--drop", "review", "--buckets", "8", "--rounds", "0"]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "--buckets 8 has no effect: no column is named with --text-column." in shown


def test_reviews_of_films_are_hashed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = published.imdb(tmp_path)
    words = [
        "run",
        "fedavg",
        "--data",
        str(path),
        "--clients",
        "2",
        "--rounds",
        "1",
        "--out",
        str(tmp_path / "x"),
    ]
    assert "hash them with --buckets 1024" in refused(words, capsys)
    assert main([*words, "--buckets", "32"]) == 0
    assert eh.load_run(tmp_path / "x").form.shape == (32,)


# --- deployments ------------------------------------------------------------------------------------------------


DATA = """
label_column = "label"
classes = ["bad", "good"]
text_column = "review"
standardize = false
"""


def client_file(folder: Path, data: str) -> files.ClientFile:
    """The file of a client with these lines in ``[data]``."""
    assert main(["deploy", "init", str(folder), "--clients", "2", "--method", "fedavg"]) == 0
    place = files.client_folder(folder, 0)
    path = place / files.CLIENT
    path.write_text(path.read_text().partition("[data]")[0] + "[data]\n" + data)
    return files.read_client(place)


def test_clients_of_a_deployment_encode_texts_alone_as_a_simulation_does(table: Path, tmp_path: Path) -> None:
    file = client_file(tmp_path / "fed", DATA + 'buckets = 64\nnumbers = ["price"]\ntest_fraction = 0.0\n')
    options: dict[str, Any] = {"client": "shop", "text": "review", "buckets": 64, "test_fraction": 0.0}
    pooled = eh.data.load(table, standardize=False, **options)
    columns = set[str]()
    for k, shop in enumerate(SHOPS):
        path = written(tmp_path / f"{shop}.csv", [row for row in rows(600) if row[0] == shop])
        data = own_data(str(path), file)
        np.testing.assert_array_equal(data.train.x, pooled.train.client(k)[0])
        np.testing.assert_array_equal(data.train.y, pooled.train.client(k)[1])
        assert data.features is not None
        columns.add(json.dumps(data.features.to_json()["columns"]))
    assert len(columns) == 1, "the server compares the columns of all clients"


def test_a_client_may_have_text_as_its_only_column(table: Path, tmp_path: Path) -> None:
    data = own_data(str(table), client_file(tmp_path / "fed", DATA))
    assert data.feature_shape == (1024,) and data.classes == ("bad", "good")


def test_words_that_each_client_would_count_alone_are_refused(table: Path, tmp_path: Path) -> None:
    file = client_file(tmp_path / "fed", DATA + "vocabulary = 10\n")
    with pytest.raises(eh.EvenhandError, match=r"\[data\] vocabulary: .*write buckets = 1024"):
        own_data(str(table), file)


def test_a_deployment_trains_on_texts_and_a_client_predicts_later_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three clients encode their reviews alone, and what the model learnt from all is applied to new ones."""
    folder, nodes = tmp_path / "fed", list[Any]()
    words = (
        "--method",
        "fedavg",
        "--rounds",
        "15",
        "--lr",
        "2",
        "--batch-size",
        "10",
        "--metrics",
        "numbers",
    )
    assert main(["deploy", "init", str(folder), "--clients", "3", *words]) == 0
    for k, shop in enumerate(SHOPS):
        place = files.client_folder(folder, k)
        path = place / files.CLIENT
        path.write_text(path.read_text().partition("[data]")[0] + "[data]\n" + DATA)
        own = written(place / "data.csv", [row for row in rows(600) if row[0] == shop])
        file = files.read_client(place)
        log = event_log(place / "client.log", lambda sentence: None)
        nodes.append(
            client_node(place, file, builder(file.method, file.options), own_data(str(own), file), log)
        )
    server = files.read_server(folder)
    carrier = LocalCarrier({k: node.answer for k, node in enumerate(nodes)})
    log = event_log(folder / "server.log", lambda sentence: None)
    *_, last = serve_run(folder, builder(server.method, server.options), carrier, log, pause=0.0)
    assert last.summary("test", metric="accuracy")["mean"] > 0.8
    found = predicted(files.client_folder(folder, 1) / "run", written(tmp_path / "later.csv", LATER), capsys)
    assert [row["prediction"] for row in found[:2]] == ["bad", "good"]
