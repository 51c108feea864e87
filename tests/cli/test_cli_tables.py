"""Tables on the command line: which columns are used, what becomes of them, and what the run folder records."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from evenhand.cli import main
from evenhand.data import encode_table, load, load_features
from evenhand.errors import EvenhandError

pytestmark = pytest.mark.usefixtures("shared_programs")

TABLE = "region,group,income,code,work,smoker,repaid\n" + "".join(
    f"{'north' if i % 2 else 'south'},{'A' if i % 3 else 'B'},{1000 * (i * 7 % 11)},{i % 2 + 4},"
    f"{'job' if i % 4 else ''},{i % 2},{'yes' if i % 5 else 'no'}\n"
    for i in range(60)
)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "people.csv"
    path.write_text(TABLE)
    return path


def train(*words: str, data: str = "people.csv", out: str = "runs/a") -> int:
    return main(
        ["run", "fedavg", "--data", data, "--label-column", "repaid", "--rounds", "1", "--out", out, *words]
    )


def config(folder: str = "runs/a") -> dict:
    return json.loads((Path(folder) / "config.json").read_text())


def test_columns_and_what_becomes_of_them(
    no_figures: None, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--client-column", "region,group", "--drop", "smoker", "--categorical", "code", "--fill", "mean"]
    assert train(*words) == 0
    shown = capsys.readouterr().err
    assert (
        "Features: 1 column of numbers standardised by the mean and deviation of the training rows" in shown
    )
    assert "one-hot encoded: code (2), work (2). Empty cells are filled from the training rows." in shown
    assert "--no-standardize leaves numbers as they are" in shown
    assert [line.split(",")[0] for line in Path("runs/a/clients.csv").read_text().splitlines()[1:]] == [
        "north / A",
        "north / B",
        "south / A",
        "south / B",
    ]
    features = load_features("runs/a")
    assert features.inputs == ("income", "code = 4", "code = 5", "work = job", "work = (missing)")
    kernel = np.load("runs/a/params.npz")["kernel"]
    assert encode_table(table, features=features).shape == (60, len(kernel))

    # The configuration repeats the run in another folder.
    assert main(["run", "--config", "runs/a", "--out", "runs/b", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert (Path("runs/b/features.json")).read_text() == Path("runs/a/features.json").read_text()
    np.testing.assert_array_equal(np.load("runs/b/params.npz")["kernel"], kernel)
    assert main(["resume", "runs/a", "--rounds", "2"]) == 0
    assert load_features("runs/a") == features


def test_numbers_as_they_are(no_figures: None, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        train("--client-column", "region", "--features", "smoker, income", "--no-standardize", "--lr", "1e-9")
        == 0
    )
    shown = capsys.readouterr().err
    assert "Features: 2 columns of numbers left unscaled." in shown
    assert "--no-standardize" not in shown
    assert [column.deviation for column in load_features("runs/a").columns] == [1.0, 1.0]
    assert main(["run", "--config", "runs/a", "--out", "runs/b", "--quiet"]) == 0
    assert load_features("runs/b") == load_features("runs/a")
    # A run on other data that overwrites the folder removes these features.
    words = ["run", "fedavg", "--data", "synthetic:iid", "--clients", "3", "--rounds", "1", "--quiet"]
    assert main([*words, "--out", "runs/a", "--overwrite"]) == 0
    assert not Path("runs/a/features.json").exists()


def test_classes_have_the_names_of_the_table(table: Path) -> None:
    assert train("--client-column", "region", "--features", "income", "--quiet") == 0
    summary = json.loads(Path("runs/a/summary.json").read_text())
    classes = summary["by_class"]["test"]
    assert [entry["class"] for entry in classes] == ["no", "yes"]
    assert sum(entry["rows"] for entry in classes) == 12
    right = sum(entry["rows"] * (entry["accuracy"] or 0) for entry in classes)
    assert right / 12 == pytest.approx(summary["test"]["accuracy"]["weighted_mean"])
    report = Path("runs/a/report.html").read_text()
    assert "Class by class" in report and '<th scope="row">yes</th>' in report
    assert main(["report", "runs/a"]) == 0
    assert "Class by class" in Path("runs/a/report.html").read_text()
    assert main(["compare", "runs/a", "runs/a", "--out", "c.html"]) == 0
    assert "Class by class" not in Path("c.html").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--features", "repaid"], "'repaid' is the label column and cannot be a feature"),
        (["--features", "region"], "'region' is the client column and cannot be a feature"),
        (["--drop", "wealth"], "there is no column 'wealth'"),
        (["--categorical", 'a,"b'], "is not a list of names: write A,B,C, and close all quotes"),
        (["--fill", "zero"], "zero"),
        (["--client-column", "region,town"], "no client column 'town'"),
        ([], "column 'work' is empty or NaN: drop the row, or say how to fill it"),
        (["--data", "digits", "--drop", "work"], "digits: drop is for tables"),
        (
            ["--data", "synthetic:1,1", "--fill", "mean"],
            "--fill is for tables, and --data synthetic:1,1 is not one",
        ),
    ],
)
def test_one_sentence(
    words: list[str], sentence: str, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("--client-column", "region", *words) == 2
    shown = capsys.readouterr().err
    assert sentence in shown and shown.count("\n") == 1
    assert not Path("runs").exists()


def test_names_with_commas_are_quoted(no_figures: None, table: Path) -> None:
    table.write_text('"last, first",v,w,repaid\nann,1,2,0\nann,3,1,1\nbob,5,2,0\nbob,5,2,0\n')
    assert train("--client-column", '"last, first"', "--features", '"v", w', "--quiet") == 0
    assert load_features("runs/a").inputs == ("v", "w")


def test_large_targets_are_reported(
    no_figures: None, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--client-column", "region", "--label-column", "income", "--features", "smoker", "--regression"]
    assert train(*words, "--no-standardize-target", "--lr", "1e-9") == 0
    shown = capsys.readouterr().err
    assert "The targets have a standard deviation of 3" in shown and "small --lr" in shown
    assert train(*words, "--overwrite") == 0
    assert "The targets" not in capsys.readouterr().err
    table.write_text(table.read_text().replace("000,", ","))
    assert train(*words, "--no-standardize-target", "--overwrite") == 0
    assert "The targets" not in capsys.readouterr().err


def test_targets_are_standardised_and_reported_in_their_units(
    no_figures: None, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The oracle is ``features.json`` and the exported parameters, applied in NumPy to rows in their own units."""
    words = [
        "--client-column",
        "region",
        "--label-column",
        "income",
        "--features",
        "smoker,code",
        "--regression",
    ]
    assert train(*words, "--rounds", "3") == 0
    assert "Training standardises the targets (mean " in capsys.readouterr().err
    features = load_features("runs/a")
    data = load(table, client="region", label="income", features=["smoker", "code"], regression=True)
    assert features == data.features
    params = np.load("runs/a/params.npz")
    target = features.target
    assert target is not None
    predicted = target.mean + target.deviation * (data.test.x @ params["kernel"] + params["bias"])[:, 0]
    errors = (predicted - data.test.y) ** 2
    summary = json.loads(Path("runs/a/summary.json").read_text())
    assert summary["test"]["loss"]["weighted_mean"] == pytest.approx(errors.mean(), rel=1e-4)
    assert errors.mean() > 1e6
    assert main(["resume", "runs/a", "--rounds", "4"]) == 0
    assert train(*words, "--no-standardize-target", "--lr", "1e-9", "--out", "runs/raw") == 0
    assert load_features("runs/raw").target is None


def test_empty_labels_are_dropped_and_other_spellings_read(
    no_figures: None, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = TABLE.splitlines()
    lines[3] = lines[3].rsplit(",", 1)[0] + ",?"
    lines[5] = "," + lines[5].partition(",")[2]
    table.write_text("\n".join(lines))
    words = ["--client-column", "region", "--fill", "median", "--na", "?,-999"]
    assert train(*words) == 2
    assert "has 2 problems" in (shown := capsys.readouterr().err)
    assert "as --drop-empty does" in shown and "drop_empty" not in shown
    assert train(*words, "--drop-empty") == 0
    assert "Dropped 2 of 60 rows: 1 without a label, 1 without a client." in capsys.readouterr().err
    assert load_features("runs/a").na == ("?", "-999")
    words[-1] = "-999,?"  # a value may begin with a minus
    assert train(*words, "--drop-empty", "--out", "runs/c") == 0
    assert load_features("runs/c").na == ("-999", "?")
    assert main(["run", "--config", "runs/a", "--out", "runs/b", "--quiet"]) == 0
    assert load_features("runs/b") == load_features("runs/a")


def test_ids_that_may_be_one_client_are_named(
    no_figures: None, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table.write_text(TABLE.replace("north,A", "North,A"))
    assert train("--client-column", "region", "--features", "income") == 0
    assert "Clients 'North' and 'north' differ only in how they are written" in capsys.readouterr().err


def test_options_for_targets_have_no_effect_on_classes(
    no_figures: None, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("--client-column", "region", "--features", "income", "--no-standardize-target") == 0
    assert (
        "--no-standardize-target has no effect: the labels of people.csv are classes"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "spelling"),
    [
        ([], "--fill mean, --fill median or --fill most-frequent"),
        (["--drop", "wealth"], "correct --drop NAMES"),
        (["--categorical", "region"], "leave it out of --categorical NAMES"),
        (["--features", "wealth"], "correct --features NAMES"),
    ],
)
def test_errors_name_options_of_the_command_line(
    words: list[str], spelling: str, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("--client-column", "region", *words) == 2
    assert spelling in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "python", "command"),
    [
        ("notes", "drop=['notes']", "--drop notes"),
        ("last name", "drop=['last name']", "--drop 'last name'"),
        ("last, first", "drop=['last, first']", "--drop '\"last, first\"'"),
    ],
)
def test_advice_can_be_followed_in_python_and_in_a_shell(
    name: str, python: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f'client,a,"{name}",label\n' + "a,1,,0\na,2,,1\nb,1,,0\nb,2,,1\n")
    with pytest.raises(EvenhandError) as caught:
        load(path, fill="mean")
    assert f"leave it out with {python}." in str(caught.value)
    words = [
        "run",
        "fedavg",
        "--data",
        str(path),
        "--fill",
        "mean",
        "--rounds",
        "0",
        "--out",
        str(tmp_path / "a"),
    ]
    assert main(words) == 2
    assert f"leave it out with {command}." in " ".join(capsys.readouterr().err.split())
    assert main([*words, *shlex.split(command)]) == 0


def test_text_instead_of_targets_is_refused_with_the_option_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"client": "a", "v": 1, "label": "3"}\n{"client": "b", "v": 2, "label": "4"}\n')
    words = [
        "run",
        "fedavg",
        "--data",
        str(path),
        "--rounds",
        "0",
        "--out",
        str(tmp_path / "a"),
        "--regression",
    ]
    assert main(words) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "give numbers as targets, or leave out --regression." in shown


def test_reports_say_what_a_client_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The name of the column of clients is on the page and in the table; "client" would say nothing new."""
    for column in ("hospital", "client"):
        rows = [f"{name},{i % 7},{i % 3},{i % 2}" for name in ("north", "south") for i in range(10)]
        (tmp_path / "t.csv").write_text("\n".join([f"{column},x,ward,label", *rows]))
        out = tmp_path / column
        words = ["--data", str(tmp_path / "t.csv"), "--client-column", column, "--rounds", "1", "--quiet"]
        assert main(["run", "fedavg", *words, "--out", str(out)]) == 0
        assert main(["compare", str(out)]) == 0
        shown, page = capsys.readouterr().out, (out / "report.html").read_text()
        assert ("2 clients, one per hospital" in page) == (column == "hospital")
        assert ("Client (hospital)" in page) == (column == "hospital") and "Client (client)" not in page
        assert f"\n {column} " in shown
    both = load(tmp_path / "t.csv", client=("client", "ward"), label="label", test_fraction=0.0)
    assert both.client_column == "client / ward"


def test_a_column_says_how_many_examples_a_row_stands_for(
    no_figures: None, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--client-column", "region", "--features", "income"]
    assert train(*words, "--weight-column", "code") == 0
    assert "216 training and 54 test examples" in capsys.readouterr().out
    assert train(*words, "--weight-column", "cod", "--overwrite") == 2
    assert "say which it is with --weight-column NAME" in capsys.readouterr().err
