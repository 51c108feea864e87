"""``evenhand fit``, and ``fit(...)`` in runs and studies: no clients are asked for, results are by group."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand.cli import main
from evenhand.cli._data import DataOptions
from evenhand.errors import EvenhandError

pytestmark = pytest.mark.usefixtures("shared_programs")

RNG = np.random.default_rng(3)
X = RNG.normal(size=(90, 2)).round(3)
AGES = np.where(np.arange(90) % 3 == 0, "old", "young")
ILL = np.where(X @ [1.0, -1.0] + (AGES == "old") + 0.5 * RNG.normal(size=90) > 1.0, "yes", "no")
COST = (X @ [3.0, 1.0] + 20 + RNG.normal(size=90)).round(3)


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{a},{b},{age},{ill}\n" for (a, b), age, ill in zip(X, AGES, ILL, strict=True)]
    Path("ill.csv").write_text("a,b,age,ill\n" + "".join(rows))
    rows = [f"{a},{b},{cost}\n" for (a, b), cost in zip(X, COST, strict=True)]
    Path("cost.csv").write_text("a,b,cost\n" + "".join(rows))


def summary(folder: str) -> dict:
    return json.loads((Path(folder) / "summary.json").read_text())


FIT = ["--data", "ill.csv", "--label-column", "ill", "--rounds", "2"]


def test_groups_are_measured_and_not_learnt_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "tilted(t=5)", *FIT, "--groups", "age", "--out", "f", "--metrics", "auc"]) == 0
    assert "no client" not in capsys.readouterr().err
    groups = summary("f")["groups"]
    assert sorted(groups) == ["old", "young"]
    assert set(groups["old"]["test"]) == {"loss", "accuracy", "auc"}
    data = eh.data.load("ill.csv", client="age", label="ill")
    run = eh.load_run("f", data=data)
    assert run.facts.method == "fit(risk=tilted(t=5))"
    assert run.model is not None and data.features is not None
    rows = slice(*data.train.offsets[:2])
    x, y = jnp.asarray(data.train.x[rows]), jnp.asarray(data.train.y[rows])
    losses = run.model.losses(run.model.apply(run.params, x), y)
    assert groups["old"]["train"]["loss"] == pytest.approx(float(losses.mean()), rel=1e-4)
    assert data.features.inputs == ("a", "b")
    # The same fit in Python, on the pooled examples.
    alone = eh.centralized.fit(run.model, data.train.x, data.train.y, risk=eh.risks.tilted(5.0), steps=20)
    np.testing.assert_allclose(run.params["kernel"], alone.params["kernel"], atol=1e-3)
    assert main(["predict", "f", "--data", "ill.csv", "--out", "p.csv"]) == 0
    assert len(Path("p.csv").read_text().splitlines()) == 91


def test_what_a_fit_shows_is_about_groups(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", *FIT, "--groups", "age", "--out", "f", "--metrics", "auc"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "ill.csv: 2 groups, " in shown and "test accuracy in % (variance: %²) over 2 groups" in shown
    assert "client" not in shown
    page = re.sub(r"<style>.*?</style>|<[^>]*>", "", Path("f/report.html").read_text(), flags=re.DOTALL)
    text, _, settings = page.partition("What was run")
    assert "fit · ill.csv · 2 groups, one per age · 2 rounds · seed 0" in text
    for sentence in ("The average group gets", "Mean over groups", "The groups, worst served first"):
        assert sentence in text
    assert "client" not in text.lower() and "communication" not in text.lower() and settings


def test_warnings_and_notes_of_a_fit_are_about_groups(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Path("ill.csv").read_text().replace("young", "Old", 3).splitlines()
    Path("few.csv").write_text("\n".join([*lines, "1,2,ancient,yes", "1,2,,no"]))
    words = ["fit", "--data", "few.csv", *FIT[2:], "--groups", "age", "--out", "f"]
    assert main(words) == 2
    assert "column 'age' is empty: give the row a group id or drop it, as --drop-e" in capsys.readouterr().err
    assert main([*words, "--drop-empty"]) == 0
    shown = capsys.readouterr()
    assert "1 without a group." in shown.err and "Groups 'Old' and 'old' differ only in how" in shown.err
    assert "1 of 4 groups has no test examples and is in none of these numbers. On" in shown.out
    in_notebook = eh.load_run("f")._repr_html_()
    assert "client" not in (shown.out + shown.err + in_notebook).lower() and "unseen" not in shown.out
    assert "cohort" not in in_notebook and "over groups" in in_notebook


@pytest.mark.parametrize("file", ["other clients.csv", "a client column.csv"])
def test_names_of_users_and_files_stay_as_they_are_in_sentences_about_groups(
    file: str,
) -> None:
    lines = Path("ill.csv").read_text().replace(",no", ",a client").replace(",yes", ",A client").splitlines()
    Path(file).write_text("\n".join([*lines, "1,2,,a client"]))
    data = DataOptions(data=f"./{file}", label_column="ill", client_column="age", groups="age")
    with pytest.raises(
        EvenhandError, match=rf"^{file}: line 92, column 'age' is empty: give the row a group"
    ):
        data.load()
    (_, note) = replace(data, drop_empty=True).load().notes
    assert note.startswith("Classes 'A client' and 'a client' differ only")
    with pytest.raises(EvenhandError, match=rf"^{file}: there is no column of groups 'client column' among"):
        replace(data, client_column="client column", groups="client column").load()
    with pytest.raises(EvenhandError, match=rf"perhaps you meant {file}\)"):
        replace(data, data=f"{file[:-4]}.cs").load()


def test_a_batch_may_be_a_share_of_all_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *FIT, "--groups", "age", "--batch-size", "0.1", "--quiet", "--out", "f"]) == 0
    assert "batch_size=0.1" in Path("f/config.json").read_text()
    assert main(["fit", *FIT, "--groups", "age", "--batch-size", "1.5", "--quiet", "--out", "f"]) == 2
    assert "batch_size=1.5: give a whole number from 1 to 1000000, or a share" in capsys.readouterr().err


def test_several_seeds_are_compared_in_one_folder(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", "tilted(t=5)", *FIT, "--groups", "age", "--batch-size", "8", "--learning-rate", "0.05"]
    assert main([*words, "--seeds", "4,7", "--out", "f"]) == 0
    whole, parts = summary("f"), [summary(f"f/seed-{seed}") for seed in (4, 7)]
    assert whole["seeds"] == [4, 7]
    assert whole["method"] == "fit(risk=tilted(t=5), learning_rate=0.05, batch_size=8)"
    losses = [part["groups"]["old"]["test"]["loss"] for part in parts]
    assert losses[0] != losses[1]
    assert whole["groups"]["old"]["test"]["loss"] == pytest.approx(
        {"mean": np.mean(losses), "std": np.std(losses)}
    )
    shown = capsys.readouterr().out
    assert "over 2 seeds" in shown and "--fresh-data draws a new split" in shown
    assert main(["predict", "f", "--data", "ill.csv"]) == 2
    assert "name one, such as f/seed-4" in capsys.readouterr().err
    assert "fit(risk=tilted(t=5)" in Path("f/report.html").read_text()
    assert main([*words, "--seeds", "4,7", "--out", "f"]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main([*words, "--seeds", "2", "--out", "f", "--overwrite", "--quiet", "--fresh-data"]) == 0
    assert summary("f")["seeds"] == [0, 1]
    assert capsys.readouterr().out == ""


def test_several_seeds_report_what_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    """What becomes of columns and rows, once; the rounds kept, here those before steps that are far too large."""
    Path("ill.csv").write_text(Path("ill.csv").read_text() + "1,2,,yes\n")
    words = ["fit", *FIT, "--groups", "age", "--drop-empty", "--seeds", "4,7", "--out", "f", "--overwrite"]
    kept = [
        "--metrics",
        "auc",
        "--keep",
        "best:valid:mean:loss",
        "--learning-rate",
        "1000",
        "--valid-fraction",
        "0.2",
    ]
    assert main([*words, *kept, "--fresh-data"]) == 0
    shown, sentence = capsys.readouterr(), "kept round 0 of 2: best validation loss, mean over groups"
    for line in ("Features: 2 columns of numbers", "Dropped 1 of 91 rows: 1 without a group."):
        assert shown.err.count(line) == 1
    for seed in (4, 7):
        assert f", seed {seed}: {sentence}." in shown.out
    assert shown.out.count("auc: not measured, because --metrics are of the last round only") == 1
    assert "`evenhand predict f/seed-4 --data FILE --metrics auc`" in shown.out
    assert f" · {sentence} · " in Path("f/report.html").read_text()
    assert main([*words, "--quiet"]) == 0
    assert (shown := capsys.readouterr()).out == shown.err == ""


def test_one_fit_takes_the_place_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    """Of one seed by several, of those by others, and of several by one: nothing of the earlier one is left."""
    words = ["fit", *FIT, "--out", "f", "--overwrite", "--quiet"]
    assert main([*words, "--groups", "age"]) == 0
    for seeds in ("2", "1,2"):
        assert main([*words, "--seeds", seeds]) == 0
        numbers = {"2": [0, 1], "1,2": [1, 2]}[seeds]
        assert sorted(path.name for path in Path("f").glob("[!.]*")) == [
            "report.html",
            *[f"seed-{number}" for number in numbers],
            "summary.json",
        ]
    capsys.readouterr()
    # A folder of seeds is shown as its runs.
    assert main(["report", "f"]) == 0 and "over 2 seeds" in Path("f/report.html").read_text()
    assert main(["compare", "f"]) == 0 and "± over 2 seeds" in capsys.readouterr().out
    assert main(words) == 0
    assert not list(Path("f").glob("seed-*")) and main(["report", "f"]) == 0


def test_of_a_table_with_clients_they_are_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    rows = Path("ill.csv").read_text().splitlines()
    clients = ["client", *(str(i % 3) for i in range(90))]
    table = "".join(f"{row},{client}\n" for row, client in zip(rows, clients, strict=True))
    Path("c.csv").write_text(table)
    words = ["fit", "--data", "c.csv", "--label-column", "ill", "--rounds", "1", "--out", "f"]
    assert main(words) == 0
    assert len(summary("f")["groups"]) == 3 and "--clients" not in capsys.readouterr().err
    assert json.loads(Path("f/config.json").read_text())["data"]["clients"] == 3
    assert "--clients" not in Path("f/report.html").read_text()


def test_a_client_column_that_is_dropped_makes_no_groups() -> None:
    Path("c.csv").write_text(Path("ill.csv").read_text().replace("age", "client", 1))
    assert main(["fit", "--data", "c.csv", *FIT[2:], "--out", "f", "--drop", "client", "--quiet"]) == 0
    assert list(summary("f")["groups"]) == ["0"]


def test_without_groups_there_is_one_and_no_client_is_asked_for() -> None:
    assert (
        main(
            [
                "fit",
                "--data",
                "cost.csv",
                "--label-column",
                "cost",
                "--regression",
                "--out",
                "f",
                "--rounds",
                "2",
            ]
        )
        == 0
    )
    (numbers,) = summary("f")["groups"].values()
    assert numbers["train"]["loss"] == pytest.approx(numbers["train"]["squared_error"])
    assert 0.3 < numbers["train"]["loss"] < 2.0  # the noise, in the targets' own units
    # A run and a study of fit() ask for no client either; other methods do.
    assert main(["run", "fit", *FIT, "--out", "r"]) == 0
    assert len(summary("r")["groups"]) == 1
    assert main(["run", "fedavg", *FIT, "--out", "a"]) == 2


def test_a_study_compares_risks_losses_and_weightings(capsys: pytest.CaptureFixture[str]) -> None:
    methods = ["fit()", "fit(risk=tilted({1,5}), inner=mean())", "fit(loss=focal(gamma={1,2}))"]
    methods += ["fit(weighting=inverse_ratio(), batch_size=16)"]
    options = [
        "--data",
        "ill.csv",
        "--label-column",
        "ill",
        "--groups",
        "age",
        "--rounds",
        "2",
        "--seeds",
        "2",
    ]
    assert main(["study", *methods, *options, "--valid-fraction", "0.2", "--out", "s"]) == 0
    study = eh.load_study("s")
    assert len(study.outcomes) == 2 * 6
    views = [outcome.seen for outcome in study.outcomes if outcome.seen is not None]
    assert all(sorted(view.client_ids) == ["old", "young"] for view in views)
    shown, page = capsys.readouterr(), Path("s/study.html").read_text()
    text = re.sub(r"<style>.*?</style>|<[^>]*>", "", page, flags=re.DOTALL).partition("What was run")[0]
    in_notebook = "".join(study.under(case)._repr_html_() for case in study.cases)
    for words in (shown.out + shown.err, text, *re.findall(r'aria-label="([^"]*)"', page), in_notebook):
        assert "client" not in words.lower()
    assert (
        "over 2 groups" in in_notebook and "validation examples per group (median of 2 groups)" in shown.out
    )
    # Trained by another loss, it is judged by the same: at equal seeds, all begin at one loss.
    begins = {
        (outcome.seed, round(view.history["train_loss"][0], 4))
        for outcome in study.outcomes
        if (view := outcome.seen)
    }
    assert len(begins) == 2
    real = ["fit()", "fit(risk=tilted(-2))", "fit(loss=huber(delta=0.5))"]
    options = [
        "--data",
        "cost.csv",
        "--label-column",
        "cost",
        "--regression",
        "--rounds",
        "2",
        "--seeds",
        "1",
    ]
    select = ["--select", "valid:mean:absolute_error", "--valid-fraction", "0.2"]
    assert main(["study", *real, *options, *select, "--out", "t"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["fit", "tiltd(t=5)", *FIT], "there is no risk 'tiltd'"),
        (["fit", "fit(risk=tilted(t=5), steps=3)", *FIT, "--steps", "4"], "has steps= already"),
        (["fit", "tilted(t=5)", *FIT, "--seeds", "x"], "--seeds"),
        (["fit", "tilted(t=5)", *FIT, "--groups", "sex"], "there is no column of groups 'sex'"),
        (
            ["fit", "tilted(t=5)", *FIT, "--groups", "sex", "--label-column", "y"],
            "(1) there is no label column 'y'",
        ),
        (["fit", "tilted(t=5)", *FIT, "--clients", "3"], "fit has no clients"),
        (
            ["fit", "tilted(t=5)", *FIT, "--groups", "age", "--client-column", "a"],
            "is for federated methods",
        ),
        (["fit", "tilted(t=5)", *FIT, "--keep", "best:valid:mean"], "--valid-fraction"),
        (["run", "fedavg", *FIT, "--groups", "age"], "--groups age is for fit(...)"),
        (
            ["run", "fit(inner=mean())", "--data", "cost.csv", "--label-column", "cost", "--regression"],
            "inner",
        ),
        (["run", "fit(loss=huber())", *FIT], "for real targets"),
        (["run", "ditto(fit(), lam=1)", *FIT], "fit trains on the examples of all clients together"),
        (["run", "fit", *FIT, "--attack", "sign_flip(0.2)"], "--attack"),
    ],
)
def test_faults_are_sentences(words: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert fault in shown and shown.count("\n") <= 3
    assert not list(Path().glob("runs/*/config.json"))
