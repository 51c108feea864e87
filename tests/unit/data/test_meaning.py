"""Whole numbers that may be amounts or classes are asked about, and so is a feature that looks like an id."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pyarrow
import pytest

from evenhand.cli import main
from evenhand.data import from_arrays, from_frame, load
from evenhand.errors import EvenhandError, EvenhandWarning

ROWS = 60
A, CLIENT = np.linspace(-1, 1, ROWS), np.arange(ROWS) % 3
SCORES = 9 + np.arange(ROWS) % 22
CODES = 1000 + 37 * (np.arange(ROWS) % 40)
FEW = 100 * (np.arange(ROWS) % 20)
GAP = np.where(np.arange(ROWS) % 22 == 5, 30, np.arange(ROWS) % 22)
COUNTED = np.arange(ROWS) % 30


def frame(labels, **columns):
    return pyarrow.table({"client": CLIENT, "a": A, **columns, "label": labels})


def from_csv(folder, labels, **options):
    path = folder / "t.csv"
    lines = [f"{c},{a},{y}" for c, a, y in zip(CLIENT, A, labels, strict=True)]
    path.write_text("\n".join(["client,a,label", *lines]))
    return load(path, **options)


def from_npz(folder, labels, **options):
    np.savez(folder / "t.npz", x=A[:, None], y=labels, client=CLIENT)
    return load(folder / "t.npz", **options)


def inputs(data):
    assert data.features is not None
    return data.features.inputs


def in_memory(folder, labels, **options):
    return from_frame(frame(labels), **options)


ASKED = [
    (SCORES, "22 distinct whole numbers from 9 to 30"),
    (CODES, "40 distinct whole numbers from 1000 to 2443"),
    (GAP, "22 distinct whole numbers from 0 to 30"),
    (SCORES.astype(float), "22 distinct whole numbers from 9 to 30"),
]


@pytest.mark.parametrize("read", [from_csv, from_npz, in_memory])
@pytest.mark.parametrize(("labels", "sentence"), ASKED)
def test_whole_numbers_that_may_be_amounts_are_asked_about(tmp_path, read, labels, sentence):
    name = "y" if read is from_npz else "label"
    with pytest.raises(EvenhandError, match=sentence) as raised:
        read(tmp_path, labels)
    assert f"regression=True to predict amounts, or categorical=[{name!r}] if each" in str(raised.value)
    assert np.allclose(
        np.sort(read(tmp_path, labels, regression=True, test_fraction=0).train.y), np.sort(labels)
    )
    data = read(tmp_path, labels, categorical=[name], test_fraction=0)
    assert data.num_classes == len(np.unique(labels)) == len(data.classes)
    named = np.array(data.classes, float)[data.train.y]
    assert sorted(named.tolist()) == sorted(labels.tolist())


@pytest.mark.parametrize("read", [from_csv, from_npz, in_memory])
@pytest.mark.parametrize("labels", [FEW, COUNTED, np.char.add("c", CODES.astype(str))])
def test_few_numbers_numbers_from_zero_without_gaps_and_texts_are_classes(tmp_path, read, labels):
    data = read(tmp_path, labels)
    assert data.train.y.dtype == np.int32
    kept = data.train.y if data.classes is None else np.array(data.classes)[data.train.y]
    assert {str(label) for label in kept.tolist()} <= {str(label) for label in labels.tolist()}


@pytest.mark.parametrize(("labels", "sentence"), ASKED[:3])
def test_integers_in_arrays_are_asked_about_and_floats_are_targets(labels, sentence):
    with pytest.raises(EvenhandError, match=sentence) as raised:
        from_arrays(A[:, None], labels, CLIENT)
    assert "floats to predict amounts, or the classes' names with classes=NAMES" in str(raised.value)
    assert from_arrays(A[:, None], labels.astype(float), CLIENT).num_classes is None
    names = [f"c{k}" for k in range(labels.max() + 1)]
    assert from_arrays(A[:, None], labels, CLIENT, classes=names).num_classes == len(names)
    assert from_arrays(A[:, None], COUNTED, CLIENT).num_classes == 30


def from_leaf(folder, labels, **options):
    users = {"u": {"x": A[:, None].tolist(), "y": labels.tolist()}}
    (folder / "t.json").write_text(json.dumps({"users": ["u"], "num_samples": [ROWS], "user_data": users}))
    return load(folder / "t.json", **options)


def from_libsvm(folder, labels, **options):
    (folder / "t.svm").write_text("\n".join(f"{y} 1:{a}" for y, a in zip(labels, A, strict=True)))
    return load(folder / "t.svm", clients=1, **options)


@pytest.mark.parametrize("read", [from_leaf, from_libsvm])
def test_formats_without_declarations_ask_about_numbers_that_are_no_sample_of_classes(tmp_path, read):
    for labels in (SCORES + 20, CODES, SCORES + 20.0, 1.0 + 12 * (np.arange(ROWS) % 25)):
        with pytest.raises(EvenhandError, match="may be amounts or the numbers of classes: give regression="):
            read(tmp_path, labels)
        assert read(tmp_path, labels, regression=True).num_classes is None
    for labels in (GAP, COUNTED, COUNTED + 1, COUNTED + 10, 3 * (np.arange(ROWS) % 25) + 1):
        assert read(tmp_path, labels, test_fraction=0).num_classes == labels.max() + 1


@pytest.mark.parametrize("read", [from_csv, from_npz, in_memory, from_leaf, from_libsvm])
def test_class_numbers_of_which_some_have_no_example_are_noted(tmp_path, read):
    cure = "if they are amounts, give --regression, in Python regression=True."
    rare = 500 * (np.arange(ROWS) % 3)
    assert read(tmp_path, rare).notes == (
        "The labels are 3 distinct whole numbers from 0 to 1000, which are read as the numbers of 1,001 classes: "
        + cure,
    )
    assert read(tmp_path, rare, regression=True).notes == read(tmp_path, COUNTED).notes == ()
    if read in (from_leaf, from_libsvm):  # tables ask
        (note,) = read(tmp_path, COUNTED + 1).notes
        assert note.startswith(
            "The labels are 30 distinct whole numbers from 1 to 30, which are read as the numbers"
        )


@pytest.mark.parametrize("read", [from_csv, from_npz, in_memory])
def test_classes_that_differ_only_in_how_they_are_written_are_noted(tmp_path, read):
    labels = np.array(["Yes", "no", "YES", "yes"])[np.arange(ROWS) % 4]
    assert read(tmp_path, labels).notes == (
        "Classes 'YES', 'Yes' and 'yes' differ only in how they are written: they count as different classes, so write "
        "them in one way if they are the same.",
    )
    assert not read(tmp_path, np.char.lower(labels)).notes


@pytest.mark.parametrize(("text", "fault"), [("nan", "is 'nan', which is a missing label"), ("", "is empty")])
def test_missing_labels_among_texts_of_arrays_are_no_class(tmp_path, text, fault):
    labels = np.where(np.arange(ROWS) == 7, text, np.array(["no", "NA"])[np.arange(ROWS) % 2])
    for read in (from_npz, lambda _, y: from_arrays(A[:, None], y, CLIENT)):
        with pytest.raises(EvenhandError, match=rf"y\[7\] {fault}: fill it in or drop the row"):
            read(tmp_path, labels)
    assert from_npz(tmp_path, np.where(labels == text, "no", labels)).classes == ("NA", "no")


def test_classes_may_have_names_that_no_program_writes_for_a_missing_label(tmp_path):
    names = np.array(["NAT", "nat", "Nat", "Nan", "NA"])
    labels = names[np.arange(ROWS) % 5]
    for read in (from_npz, in_memory, lambda _, y: from_arrays(A[:, None], y, CLIENT)):
        assert read(tmp_path, labels).classes == ("NA", "NAT", "Nan", "Nat", "nat")


def test_a_declared_label_of_a_frame_makes_a_class_of_a_word_for_nan():
    table = frame(np.array(["NaN", "no"])[np.arange(ROWS) % 2])
    with pytest.raises(EvenhandError, match="is 'NaN', which is a missing label"):
        from_frame(table)
    assert from_frame(table, categorical=["label"]).classes == ("NaN", "no")


def test_a_label_with_a_class_for_most_rows_is_noted():
    (note,) = from_frame(frame([f"P{i}" for i in range(ROWS)])).notes
    assert note.startswith(
        "Column 'label' makes 60 classes of 60 rows, as an id or free text does: check that"
    )
    assert not from_frame(frame([f"P{i // 2}" for i in range(ROWS)])).notes


def test_categories_that_differ_only_in_how_they_are_written_are_noted():
    table = frame(np.arange(ROWS) % 2, sex=np.array(["f", "Male", "male", "F"])[np.arange(ROWS) % 4])
    (note,) = from_frame(table).notes
    assert note.startswith(
        "Categories 'F' and 'f' (and 1 other set of names, 'Male' and 'male') of column 'sex' differ only in how"
    )


def test_spellings_beyond_those_that_a_note_lists_are_counted():
    labels = np.array(["Yes", "no", "YES", "yes", "yEs", "No", "yeS", "A", "a", "b"])
    (note,) = from_frame(frame(labels[np.arange(ROWS) % 10])).notes
    assert note.startswith(
        "Classes 'A' and 'a' (and 2 other sets of names, such as 'No' and 'no') differ only"
    )
    (note,) = from_frame(frame(labels[np.arange(ROWS) % 7])).notes
    assert "(and 1 other set of names, 'YES', 'Yes', 'yEs' and 2 more) differ" in note


PEOPLE = [
    "$5.00",
    "-$5",
    "12 €",
    "USD 1,200",
    "5.6%",
    "5 %",
    "1,234.50",
    "1.234,5",
    "1'234",
    "1 234,5",
    "−5",
    "($7.50)",
]
TEXTS = ["5-10%", "<5%", "14:30", "10 mg", "A1", "192.168.0.1", "%", "12 34", "1,2 or 3"]


@pytest.mark.parametrize("cell", PEOPLE)
def test_numbers_as_people_write_them_are_no_categories_and_no_classes_in_silence(cell):
    cells = [cell, "7 %"] * (ROWS // 2)
    for table, name, kind in ((frame(CLIENT, n=cells), "n", "category"), (frame(cells), "label", "class")):
        with pytest.raises(
            EvenhandError, match=r"write a point for the decimals, as in -1234\.5, nothing"
        ) as raised:
            from_frame(table)
        assert f"column {name!r} holds {cell!r}" in str(raised.value)
        assert ("with the minus − (U+2212) in place of a hyphen: write" in str(raised.value)) == ("−" in cell)
        assert str(raised.value).endswith(f"; if each text is a {kind}, give categorical=[{name!r}].")
        assert from_frame(table, categorical=[name]).num_clients == 3
    with pytest.raises(EvenhandError, match=r"no signs such as \$ or %\.$"):
        from_frame(frame(cells), regression=True)


@pytest.mark.parametrize("beside", ["(750.00)", "(5)", "-", "–", "—", "$ -"])
def test_accounts_are_amounts_though_some_cells_alone_are_not(beside):
    with pytest.raises(EvenhandError, match=r"column 'n' holds '1,234.50': write a point"):
        from_frame(frame(CLIENT, n=[beside, "1,234.50", "2,000.00"] * (ROWS // 3)))
    assert len(inputs(from_frame(frame(CLIENT, n=[beside, "7"] * (ROWS // 2))))) == 3


@pytest.mark.parametrize("library", ["pyarrow", "pandas", "polars"])
def test_texts_that_a_table_declares_as_categories_are_no_amounts(library):
    module = pytest.importorskip(library)
    shares = pyarrow.array(["5%", "10%"] * (ROWS // 2)).dictionary_encode()
    ways = {"pandas": lambda table: table.to_pandas(), "polars": lambda table: module.from_arrow(table)}
    convert = ways.get(library, lambda table: table)
    assert inputs(from_frame(convert(frame(CLIENT, n=shares))))[1:] == ("n = 10%", "n = 5%")
    label = convert(frame(shares))
    assert from_frame(label).classes == ("10%", "5%")
    with pytest.raises(EvenhandError, match=r"no signs such as \$ or %\.$"):
        from_frame(label, regression=True)


@pytest.mark.parametrize(
    ("cells", "classes"),
    [
        (['"12,13"', "14"], ("12,13", "14")),
        (["$4", "1.0"], ("$4", "1.0")),
        (["7.0", "9"], ("7", "9")),
        (["", "yes", "7"], ("7", "yes")),
        (["007", "7", "8"], ("007", "7", "8")),
        (["90071992547409921", "90071992547409922"], ("90071992547409921", "90071992547409922")),
    ],
)
def test_a_declared_label_of_a_file_may_mix_numbers_with_texts(tmp_path, cells, classes):
    labels = (cells * ROWS)[:ROWS]
    assert from_csv(tmp_path, labels, categorical=["label"], drop_empty=True).classes == classes


@pytest.mark.parametrize("large", ["x", "label"])
def test_integers_that_are_rounded_name_no_category(large):
    ids = [90071992547409921, 90071992547409922] * (ROWS // 2)
    columns = {"client": ["a", "b"] * (ROWS // 2), "x": list(range(ROWS)), "label": [0, 1] * (ROWS // 2)}
    table = pyarrow.table({**columns, large: ids})
    with pytest.raises(
        EvenhandError, match=rf"column '{large}' holds about 90071992547409920.*store them as text"
    ):
        from_frame(table, categorical=[large])


def test_a_declared_label_that_is_an_amount_is_read_as_numbers(tmp_path):
    data = from_csv(tmp_path, SCORES, categorical=["label"], regression=True)
    assert data.classes is None and data.train.y.max() == 30


def test_numbers_that_are_stored_as_text_are_not_taken_for_ids():
    table = frame(CLIENT, n=[f"{a:.3f}" for a in A])
    with pytest.raises(
        EvenhandError, match=r"'n' holds numbers that are stored as text, such as '-1.000': store"
    ):
        from_frame(table)
    with pytest.raises(EvenhandError, match=r"if each number is a category, give categorical=\['n'\]\.$"):
        from_frame(table)
    assert len(inputs(from_frame(table, categorical=["n"], test_fraction=0))) == ROWS + 1
    codes = frame(CLIENT, n=(np.arange(ROWS) % 4).astype(str))
    assert inputs(from_frame(codes))[1:] == ("n = 0", "n = 1", "n = 2", "n = 3")


@pytest.mark.parametrize("cell", TEXTS)
def test_other_texts_with_digits_are_categories(cell):
    data = from_frame(frame(CLIENT, n=[cell, "none"] * (ROWS // 2)))
    assert inputs(data)[1:] == tuple(f"n = {text}" for text in sorted([cell, "none"]))
    assert from_frame(frame([cell, cell] * (ROWS // 2))).classes == (cell,)


def test_a_long_column_of_prices_is_not_taken_for_free_text(tmp_path):
    prices = [f"${i}.50" for i in range(3000)]
    prices[1] = "(1.50)"
    (tmp_path / "t.csv").write_text(
        "client,n,label\n" + "".join(f"{i % 3},{p},{i % 2}\n" for i, p in enumerate(prices))
    )
    with pytest.raises(
        EvenhandError, match=r"column 'n' holds texts such as '\$0.50': write a point for the"
    ):
        load(tmp_path / "t.csv")


def test_a_negative_label_of_leaf_names_what_makes_it_an_amount(tmp_path):
    with pytest.raises(
        EvenhandError, match=r"y\[1\] is the negative label -1: .*, or give regression=True if "
    ):
        from_leaf(tmp_path, 1 - 2 * (np.arange(ROWS) % 2))


@pytest.mark.parametrize(
    ("ids", "options", "warned"),
    [
        (7000 + np.arange(ROWS), {}, True),
        ((7000 + np.arange(ROWS)).astype(float), {}, True),
        (7000 + np.arange(ROWS) // 2, {}, False),  # repeats
        (7000 + np.arange(ROWS) + 0.5, {}, False),  # not whole
        (7000 + np.arange(ROWS), {"features": ["a", "patient"]}, False),  # chosen
        (7000 + np.arange(ROWS), {"drop": ["patient"]}, False),
        (7000 + np.arange(ROWS), {"categorical": ["patient"]}, False),
    ],
)
def test_a_column_with_another_whole_number_in_each_row_is_asked_about(ids, options, warned):
    table = frame(np.arange(ROWS) % 2, patient=ids)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from_frame(table, **options)
    sentences = [str(w.message) for w in caught if w.category is EvenhandWarning]
    assert all(w.filename == __file__ for w in caught)
    assert bool(sentences) == warned
    if warned:
        assert "column 'patient' has another whole number in each of the 60 rows" in sentences[0]
        assert (
            "leave it out with drop=['patient'], or choose the columns to learn from with features=NAMES"
            in (sentences[0])
        )


def test_the_question_names_the_line_that_loads_the_table(tmp_path):
    path = tmp_path / "t.csv"
    lines = [f"{c},{7000 + i},{i % 2}" for i, c in enumerate(CLIENT)]
    path.write_text("\n".join(["client,patient,label", *lines]))
    with pytest.warns(EvenhandWarning, match="column 'patient' has another") as told:
        load(path)
    assert [each.filename for each in told] == [__file__]


def test_twenty_rows_are_too_few_to_call_a_column_an_id():
    few = pyarrow.table({"client": [0] * 20, "n": np.arange(20), "label": np.arange(20) % 2})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert from_frame(few).num_clients == 1  # and nothing is asked


def test_the_command_line_asks_in_one_sentence_and_names_its_options(tmp_path, capsys):
    path = tmp_path / "t.csv"
    lines = [f"{c},{7000 + i},{y}" for i, (c, y) in enumerate(zip(CLIENT, SCORES, strict=True))]
    path.write_text("\n".join(["client,patient,score", *lines]))
    words = ["run", "fedavg", "--data", str(path), "--label-column", "score", "--rounds", "0"]
    assert main([*words, "--out", str(tmp_path / "a")]) == 2
    assert "give --regression to predict amounts, or --categorical score if each" in capsys.readouterr().err
    assert main([*words, "--out", str(tmp_path / "a"), "--categorical", "score"]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "column 'patient' has another whole number" in shown
    assert (
        "leave it out with --drop patient, or choose the columns to learn from with --features NAMES" in shown
    )
    quiet = [*words, "--out", str(tmp_path / "b"), "--categorical", "score", "--quiet"]
    assert main(quiet) == 0 and capsys.readouterr().err == ""
