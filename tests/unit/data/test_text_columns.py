"""Columns of free text in a table: what they become, what is asked about, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

import evenhand as eh
from evenhand.errors import EvenhandError

N = 40
RANDOM = np.random.default_rng(3)
WORDS = ["the", "a", "film", "was", "good", "bad", "long", "short", "and", "not", "very", "plot"]
REVIEWS = [" ".join(RANDOM.choice(WORDS, 6)) + ("!" if i % 3 else ".") for i in range(N)]
REVIEWS[4] = REVIEWS[7] = ""
COLUMNS: dict[str, list[Any]] = {
    "shop": ["oslo", "rome"] * (N // 2),
    "price": RANDOM.normal(5, 2, N).round(2).tolist(),
    "review": REVIEWS,
    "kind": RANDOM.choice(["dvd", "tape", "New York"], N).tolist(),
    "label": RANDOM.choice(["no", "yes"], N).tolist(),
}
MISSING = {**COLUMNS, "review": [text or None for text in REVIEWS]}


def hashed(texts: list[str], buckets: int = 1024) -> np.ndarray:
    encode = eh.data.encode_hashed(buckets)
    return np.stack([encode(text) for text in texts])


def read(columns: dict[str, list[Any]] | None = None, **options: Any) -> eh.data.FederatedDataset:
    chosen = {"client": "shop", "text": "review", "test_fraction": 0.0} | options
    return eh.data.from_frame(pa.table(COLUMNS if columns is None else columns), **chosen)


def in_order(values: list[Any]) -> list[Any]:
    """Rows as a data set without test examples has them, client by client."""
    return [
        value
        for shop in ("oslo", "rome")
        for value, s in zip(values, COLUMNS["shop"], strict=True)
        if s == shop
    ]


def as_file(suffix: str, write: Callable[[Path], None]) -> Callable[[Path], Any]:
    def written(folder: Path) -> Path:
        path = folder / f"t{suffix}"
        write(path)
        return path

    return written


def jsonl(path: Path) -> None:
    rows = [dict(zip(MISSING, row, strict=True)) for row in zip(*MISSING.values(), strict=True)]
    path.write_text("\n".join(map(json.dumps, rows)))


SOURCES: dict[str, Callable[[Path], Any]] = {
    "pandas": lambda folder: pd.DataFrame(MISSING),
    "polars": lambda folder: pl.DataFrame(MISSING),
    "arrow": lambda folder: pa.table(MISSING),
    "csv": as_file(".csv", lambda path: pd.DataFrame(MISSING).to_csv(path, index=False)),
    "parquet": as_file(".parquet", lambda path: parquet.write_table(pa.table(MISSING), path)),
    "jsonl": as_file(".jsonl", jsonl),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_hashed_text_stands_beside_numbers_and_categories(tmp_path: Path, kind: str) -> None:
    """An empty text is a row of zeros, and not refused as an empty number is."""
    source = SOURCES[kind](tmp_path)
    load = eh.data.load if isinstance(source, Path) else eh.data.from_frame
    data = load(source, client="shop", text="review", test_fraction=0.0)
    prices = np.array(in_order(COLUMNS["price"]))
    kinds = np.array(in_order(COLUMNS["kind"]))
    expected = np.column_stack(
        [
            (prices - prices.mean()) / prices.std(),
            hashed(in_order(REVIEWS)),
            *(kinds == name for name in ("New York", "dvd", "tape")),
        ]
    )
    np.testing.assert_allclose(data.train.x, expected, atol=2e-6)
    assert (~data.train.x[:, 1:1025].any(axis=1)).sum() == 2
    assert data.features is not None
    names = data.features.inputs
    assert (
        len(names) == data.train.x.shape[1] and names[1] == "review [0]" and names[1025] == "kind = New York"
    )
    assert "1 column of free text hashed into 1,024 inputs: review" in data.features.describe()


def test_clients_that_encode_alone_give_the_rows_of_the_pooled_table() -> None:
    chosen = {"features": ["review"], "buckets": 64}
    pooled = read(**chosen)
    for k, shop in enumerate(("oslo", "rome")):
        rows = {
            name: [v for v, s in zip(c, COLUMNS["shop"], strict=True) if s == shop]
            for name, c in COLUMNS.items()
        }
        alone = read({**rows, "label": rows["label"]}, **chosen)
        np.testing.assert_array_equal(alone.train.x, pooled.train.client(k)[0])
        assert alone.features == pooled.features, "nothing is fitted"


def test_only_training_rows_say_which_words_are_counted() -> None:
    columns = {**COLUMNS, "review": [f"{text} rare{i}" for i, text in enumerate(REVIEWS)]}
    data = read(columns, vocabulary=200, test_fraction=0.5, features=["review"])
    assert data.features is not None and (text := data.features.columns[0].text) is not None
    assert sum(word.startswith("rare") for word in text.words) == data.train.rows
    tops = read(features=["review"], vocabulary=3)
    words = [word for text in REVIEWS for word in text.replace("!", " !").replace(".", " .").split()]
    values, counts = np.unique(words, return_counts=True)
    best = sorted(zip(-counts, values, strict=True))[:3]
    expected = [
        [text.replace("!", " !").replace(".", " .").split().count(word) for _, word in best]
        for text in in_order(REVIEWS)
    ]
    sizes = [max(1, len(text.replace("!", " !").replace(".", " .").split())) for text in in_order(REVIEWS)]
    np.testing.assert_allclose(tops.train.x, np.array(expected) / np.array(sizes)[:, None], rtol=1e-6)
    assert tops.features is not None and tops.features.inputs == tuple(f"review: {word}" for _, word in best)


def test_many_texts_are_encoded_in_blocks() -> None:
    """Twice the texts of a block, some of them repeated, in an order of their own."""
    texts = [f"text {RANDOM.integers(2500)} of many" for _ in range(3000)]
    table = pa.table({"client": ["a"] * 3000, "review": texts, "label": [0, 1] * 1500})
    data = eh.data.from_frame(table, text="review", buckets=32, test_fraction=0.0)
    assert len(set(texts)) > 1024
    np.testing.assert_array_equal(data.train.x, hashed(texts, 32))


def test_several_columns_of_text_have_inputs_of_their_own() -> None:
    columns = {**COLUMNS, "title": [text[:9] for text in REVIEWS]}
    data = read(columns, text=["review", "title"], features=["title", "review"], buckets=16)
    halves = [hashed(in_order(columns[name]), 16) for name in ("title", "review")]
    np.testing.assert_array_equal(data.train.x, np.hstack(halves))


def test_other_spellings_of_an_empty_cell_hold_for_text_and_rows_may_be_weighted() -> None:
    columns = {**COLUMNS, "review": [text or "n/a" for text in REVIEWS], "count": [2] * N}
    data = read(columns, na="n/a", weight="count", features=["review"])
    rows = hashed(in_order(REVIEWS))
    np.testing.assert_array_equal(data.train.x, np.repeat(rows, 2, axis=0))


# --- tokens ---------------------------------------------------------------------------------------------------


def places(text: str) -> list[int]:
    return [1 + WORDS.index(word.strip(".!")) for word in text.split()]


def test_tokens_are_the_only_input(tmp_path: Path) -> None:
    data = read(features=["review"], encode=eh.data.encode_tokens(places, length=4))
    expected = [([*places(text), 0, 0, 0, 0])[:4] for text in in_order(REVIEWS)]
    assert data.train.x.dtype == np.int32 and data.train.x.tolist() == expected
    assert data.features is not None and "free text as 4 tokens: review" in data.features.describe()
    with pytest.raises(
        EvenhandError,
        match=r"column 'review' becomes int32 \(4,\).*beside 'price', 'kind'.*features=\['review'\]",
    ):
        read(encode=eh.data.encode_tokens(places, length=4))
    vectors = eh.data.WordVectors(tuple(WORDS), np.eye(len(WORDS) + 1, dtype=np.float32))
    sequences = read(features=["review"], encode=eh.data.encode_vectors(vectors, length=3))
    assert sequences.feature_shape == (3, len(WORDS) + 1)
    with pytest.raises(EvenhandError, match=r"becomes float32 \(3, 13\), which cannot stand beside"):
        read(encode=eh.data.encode_vectors(vectors, length=3))
    means = read(features=["review", "price"], encode=eh.data.encode_mean(vectors))
    assert means.feature_shape == (1 + len(WORDS) + 1,), "one row of floats stands beside others"


@pytest.mark.parametrize(
    ("encode", "sentence"),
    [
        (places, r"encode gives int32 \(6,\) for the text .* but float32 \(0,\) is wanted.*encode_tokens"),
        (
            lambda text: {"input_ids": [1]},
            r"gives a dict for the text '', and no array of numbers.*encode_tokens",
        ),
        (lambda text: 3, "gives a int for the text '', and no array"),
        (lambda text: [1.0] if text else [1], r"float32 \(1,\) for the text .* but int32 \(1,\) is wanted"),
        (lambda text: [np.nan], "for the text '' that is not a finite 32-bit number"),
        (lambda text: [1e39], "not a finite 32-bit number"),
        (lambda text: [2**31 if text else 1], "for the text '.+' that is not a finite 32-bit number"),
        (WORDS, "encode is no function but a list"),
    ],
)
def test_a_function_must_give_arrays_of_one_form(encode: Any, sentence: str) -> None:
    with pytest.raises(EvenhandError, match=sentence) as raised:
        read(features=["review"], encode=encode)
    assert "frame: column 'review'" in str(raised.value)


# --- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"text": "label"},
            r"'label' is the label column, which is not a feature anyway: leave it out of text=NAMES",
        ),
        ({"text": "shop"}, r"'shop' is the client column, which is not a feature anyway"),
        ({"text": "revew"}, r"there is no column 'revew' .*perhaps you meant 'review'.*correct text=NAMES"),
        ({"text": "price"}, r"column 'price' holds numbers, not text: leave it out of text=NAMES"),
        ({"drop": ["review"]}, "'review' is both free text and to be dropped"),
        ({"categorical": ["review"]}, "'review' is both free text and categorical"),
        (
            {"features": ["price"]},
            "'review' is free text but not among the features: add it to features=NAMES",
        ),
        ({"vocabulary": 5, "buckets": 5}, "vocabulary and buckets exclude each other"),
        ({"buckets": 0}, "buckets=0"),
        ({"vocabulary": 0}, "vocabulary=0"),
        (
            {"text": (), "buckets": 5},
            "buckets is for columns of free text, and none is named: name them with text=NAMES",
        ),
        ({"text": (), "encode": len}, "encode is for columns of free text"),
    ],
)
def test_other_roles_and_other_kinds_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EvenhandError, match=sentence):
        read(**options)


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_columns_that_are_not_of_text_are_refused(kind: str) -> None:
    for values, sentence in (([True, False] * (N // 2), "true and false"), (list(range(N)), "numbers")):
        columns = {**COLUMNS, "review": values}
        make = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.table}[kind]
        with pytest.raises(EvenhandError, match=f"'review' holds {sentence}, not text"):
            eh.data.from_frame(make(columns), client="shop", text="review")
    mixed = pd.DataFrame({**COLUMNS, "review": [*REVIEWS[1:], 5]})
    with pytest.raises(EvenhandError, match="where other rows hold numbers"):
        eh.data.from_frame(mixed, client="shop", text="review")


def test_a_text_that_spells_a_number_is_a_text_in_a_file(tmp_path: Path) -> None:
    lines = [
        "shop,review,label",
        *(f"a,{text},{i % 2}" for i, text in enumerate(["good", "5", "1e3", "bad"])),
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    data = eh.data.load(tmp_path / "t.csv", client="shop", text="review", test_fraction=0.0)
    np.testing.assert_array_equal(data.train.x, hashed(["good", "5", "1e3", "bad"]))
    (tmp_path / "t.csv").write_text(
        "\n".join(line.replace("good", "1").replace("bad", "2") for line in lines)
    )
    with pytest.raises(EvenhandError, match="'review' holds numbers, not text"):
        eh.data.load(tmp_path / "t.csv", client="shop", text="review")


def test_a_client_with_empty_texts_only_has_zeros() -> None:
    data = read({**COLUMNS, "review": [None] * N}, buckets=8)
    assert data.feature_shape == (12,) and not data.train.x[:, 1:9].any()
    with pytest.raises(EvenhandError, match="'review' has no words in any training row"):
        read({**COLUMNS, "review": [None] * N}, vocabulary=8)


def test_text_is_for_tables(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.ones((4, 2)), y=[0, 1, 0, 1], client=["a"] * 4)
    with pytest.raises(EvenhandError, match="text is for tables"):
        eh.data.load(tmp_path / "t.npz", text="x")


# --- what is asked about --------------------------------------------------------------------------------------


def sentences(distinct: int, rows: int, words: int = 6) -> list[str]:
    return [" ".join([f"word{i % distinct}", *WORDS[1:words]]) for i in range(rows)]


def asked(values: list[str], **options: Any) -> str:
    """The question about a column; empty if there is none."""
    rows = len(values)
    table = pa.table({"client": ["a"] * rows, "c": values, "label": [0, 1] * (rows // 2)})
    try:
        eh.data.from_frame(table, test_fraction=0.0, **options)
    except EvenhandError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("values", "is_asked"),
    [
        (sentences(25, 100), True),
        (sentences(21, 100, words=5), True),
        (sentences(21, 100, words=4), False),
        (sentences(20, 100), False),
        (sentences(6, 10), True),
        (sentences(5, 10), False),
        (sentences(2, 2), False),
        ([f"New York {i % 50}" for i in range(200)], False),
        ([f"Rio de Janeiro {i % 50}" for i in range(200)], False),
    ],
)
def test_sentences_are_asked_about_and_names_are_categories(values: list[str], is_asked: bool) -> None:
    question = asked(values)
    assert bool(question) == is_asked, question
    if is_asked:
        count = len(set(values))
        assert question.startswith(
            f"frame: column 'c' holds {count} different texts of {len(values[0].split())} words"
        )
        for way in ("text=['c'] if it is free text", "categorical=['c']", "drop=['c']"):
            assert way in question
        assert not asked(values, text="c") and not asked(values, categorical=["c"]), "each answer is accepted"


def test_the_refusal_of_distinct_texts_offers_to_learn_from_words(tmp_path: Path) -> None:
    values = [f"id{i}" for i in range(60)]
    assert "learn from its words with text=['c'] if it is free text, leave it out with drop=['c']" in asked(
        values
    )
    lines = ["client,my text,label", *(f"a,id{i},{i % 2}" for i in range(3000))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    with pytest.raises(EvenhandError, match=r"learn from its words with text=\['my text'\]"):
        eh.data.load(tmp_path / "t.csv")
    assert eh.data.load(tmp_path / "t.csv", text="my text").train.rows == 2400


# --- later tables ---------------------------------------------------------------------------------------------


NEW = {
    "review": ["good film", None, "unheard words"],
    "price": [1.0, 2.0, 3.0],
    "kind": ["dvd", "tape", "new"],
}


def test_a_later_table_is_encoded_the_same_way() -> None:
    ways: list[dict[str, Any]] = [{"buckets": 32}, {"vocabulary": 5}]
    for options in ways:
        data = read(**options)
        assert data.features is not None
        again = eh.data.Features.from_json(json.loads(json.dumps(data.features.to_json())))
        assert again == data.features
        x = eh.data.encode_table(pa.table(NEW), features=again)
        assert x.shape == (3, len(again.inputs)) and not x[1, 1:-3].any()
        if "buckets" in options:
            np.testing.assert_array_equal(x[:, 1:33], hashed(["good film", "", "unheard words"], 32))
        else:
            assert x[0, 1:-3].any() and not x[2, 1:-3].any()
    features = read(buckets=32).features
    assert features is not None
    with pytest.raises(EvenhandError, match="'review' holds numbers, not text"):
        eh.data.encode_table(pa.table({**NEW, "review": [1, 2, 3]}), features=features)


def test_a_single_later_text_may_spell_a_number(tmp_path: Path) -> None:
    data = read(features=["review"], buckets=16)
    assert data.features is not None
    (tmp_path / "new.csv").write_text("review\n5\n")
    for table in (tmp_path / "new.csv", pa.table({"review": ["5"]})):
        np.testing.assert_array_equal(eh.data.encode_table(table, features=data.features), hashed(["5"], 16))


def test_texts_that_a_function_encoded_need_it_again() -> None:
    encode = eh.data.encode_tokens(places, length=3)
    data = read(features=["review"], encode=encode)
    assert data.features is not None
    new = pa.table({"review": ["good film", None]})
    assert eh.data.encode_table(new, features=data.features).tolist() == [[5, 3, 0], [0, 0, 0]]
    loaded = eh.data.Features.from_json(data.features.to_json())
    with pytest.raises(EvenhandError, match=r"'review' was encoded by a function.*as encode=FUNCTION"):
        eh.data.encode_table(new, features=loaded)
    found = eh.data.encode_table(new, features=loaded, encode=encode)
    assert found.dtype == np.int32 and found.tolist() == [[5, 3, 0], [0, 0, 0]]
    with pytest.raises(EvenhandError, match=r"gives int32 \(4,\).*but int32 \(3,\) is wanted"):
        eh.data.encode_table(new, features=loaded, encode=eh.data.encode_tokens(places, length=4))
    other = read(features=["review"]).features
    assert other is not None
    with pytest.raises(EvenhandError, match=r"no column of text was encoded by a function"):
        eh.data.encode_table(new, features=other, encode=encode)


@pytest.mark.parametrize(
    "damage", [{"way": "guessed"}, {"shape": [2, 2]}, {"dtype": "int64"}, {"words": None}, {"shape": None}]
)
def test_a_damaged_description_is_refused(damage: dict[str, Any], tmp_path: Path) -> None:
    data = read(features=["review"])
    assert data.features is not None
    stored = data.features.to_json()
    stored["columns"][0] |= damage
    (tmp_path / "features.json").write_text(json.dumps(stored))
    with pytest.raises(EvenhandError, match=r"features\.json"):
        eh.data.load_features(tmp_path / "features.json")


# --- from the table to the report -----------------------------------------------------------------------------


def reviews(rows: int = 300) -> dict[str, list[Any]]:
    """Reviews whose mood is in one word of eight; a third of them are bad."""
    random = np.random.default_rng(0)
    y = (random.random(rows) < 2 / 3).astype(int)
    moods = (["awful", "dull", "poor"], ["great", "lovely", "fine"])
    texts = [" ".join(random.permutation([*random.choice(WORDS, 7), random.choice(moods[k])])) for k in y]
    shops = random.choice(["oslo", "rome", "lima"], rows)
    return {"shop": shops.tolist(), "review": texts, "label": np.array(["bad", "good"])[y].tolist()}


def test_a_model_learns_from_words_and_predicts_after_the_run_is_saved(tmp_path: Path) -> None:
    table = reviews()
    data = read(table, test_fraction=0.3)
    assert data.features is not None
    model = eh.models.softmax_regression(features=len(data.features.inputs), classes=2)
    run = eh.simulate(
        eh.algorithms.fedavg(eh.local.sgd(model, 1.0, epochs=1, batch_size=10)), data, rounds=10
    )
    majority = max(np.mean(data.test.y), 1 - np.mean(data.test.y))
    accuracy = np.mean(run.predict(data.test.x).argmax(1) == data.test.y)
    assert majority < 0.75 and accuracy > 0.95
    assert "oslo" in run.report(tmp_path / "report.html").read_text("utf-8")
    later = pa.table({"review": ["the film was awful", "a great plot", None]})
    found = run.predict_table(later)
    assert found["prediction"].tolist()[:2] == ["bad", "good"]
    saved = eh.load_run(run.save(tmp_path / "run"), model=model)
    again = saved.predict_table(later)
    np.testing.assert_allclose(again["probability_bad"], found["probability_bad"], rtol=1e-5)


def test_a_model_of_tokens_learns_and_its_run_asks_for_the_tokenizer(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    known = [*WORDS, "awful", "dull", "poor", "great", "lovely", "fine"]
    encode = eh.data.encode_tokens(lambda text: [1 + known.index(word) for word in text.split()], length=10)
    data = read(reviews(), encode=encode, test_fraction=0.3)
    model = eh.models.from_functions(
        init=lambda key: 0.1 * jax.random.normal(key, (1 + len(known), 2)),
        apply=lambda rows, tokens: rows[tokens].sum(1),
        losses=eh.models.cross_entropy,
        metrics={"accuracy": eh.models.accuracy},
    )
    run = eh.simulate(
        eh.algorithms.fedavg(eh.local.sgd(model, 0.3, epochs=2, batch_size=10)), data, rounds=10
    )
    accuracy = np.mean(run.predict(data.test.x).argmax(1) == data.test.y)
    assert accuracy > 0.95
    later = pa.table({"review": ["the film was awful", "a great plot"]})
    saved = eh.load_run(run.save(tmp_path / "run"), model=model)
    with pytest.raises(EvenhandError, match="encode=FUNCTION"):
        saved.predict_table(later)
    assert saved.predict_table(later, encode=encode)["prediction"].tolist() == ["bad", "good"]
