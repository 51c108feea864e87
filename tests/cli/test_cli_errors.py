"""Bad input is one sentence on stderr and exit code 2, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evenhand import __version__
from evenhand.cli import main
from evenhand.cli._data import DataOptions
from malformed import CURES, VARIANTS


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence that ``evenhand`` refuses these words with."""
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("evenhand: ")
    assert "Traceback" not in shown.err
    return shown.err


@pytest.mark.parametrize("variant", VARIANTS)
def test_malformed_data(variant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = VARIANTS[variant](tmp_path)
    out = tmp_path / "out"
    sentence = refused(["run", "fedavg", "--data", str(path), "--rounds", "1", "--out", str(out)], capsys)
    # The command line spells the remedies as its own options.
    assert CURES[variant].replace("regression=True", "--regression") in sentence
    assert "=True" not in sentence
    assert path.name in sentence
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--data nowhere.csv", "nowhere.csv"),
        ("--data synthetic:1", "write synthetic:ALPHA,BETA"),
        ("--data synthetic:one,two", "write synthetic:ALPHA,BETA"),
        ("--data synthetic:-1,1", "alpha"),
        ("--clients 0", "--clients 0: give a whole number"),
        ("--alpha 0", "alpha"),
        ("--test-fraction 1", "test_fraction must"),
        ("--rounds -1", "rounds"),
        ("--cohort 0", "cohort"),
        ("--epochs 0", "epochs"),
        ("--steps 0", "steps"),
        ("--epochs 1 --steps 1", "--epochs and --steps exclude each other"),
        ("--batch-size 0", "--batch-size 0: "),
        (
            "--batch-size 1.5",
            "--batch-size 1.5: give a whole number from 1 to 1000000, or a share of a client's examples",
        ),
        ("--lr 0", "--lr 0.0 is not a step size"),
        ("--lr nan", "--lr takes a number, not 'nan'"),
        ("--lr inf", "--lr inf is not a step size"),
        ("--server-opt sgd(-1)", "The server's learning_rate is -1.0: "),
        ("--stragglers 1.5", "evenhand: stragglers(fraction=1.5): "),
        ("--data-seed -1", "--data-seed -1: give a whole number from 0"),
        ("--eval-every 0", "--eval-every 0: "),
        ("--checkpoint -1", "Checkpoint(seconds=-1.0)"),
        ("--lanes 0", "--lanes 0: "),
        ("--model cnn_femnist", "28"),
        ("--model lenet", "--model lenet needs 28 × 28 grey images, that is 784 numbers, but an example of"),
        (
            "--model resnet20",
            "--model resnet20 needs 32 × 32 colour images, that is 3072 numbers, but an example",
        ),
        ("--model resnet32", "use --model mlp."),
        ("--model lstm", "lstm"),
        ("--loss focl()", "'focl()', column 1: there is no loss 'focl' (perhaps you meant focal)."),
        ("--loss focal", "focal is a function: call it, focal(gamma=2.0, alpha=None)."),
        ("--loss focal(gamma=-1)", "evenhand: focal(gamma=-1.0): give a number from 0"),
        ("--loss focal(alpha=0.3)", "2 factors alpha, and the outputs are of 10 classes"),
        ("--loss huber()", "evenhand: --loss huber(delta=1) is for real targets, and softmax_regression("),
        ("--config nowhere/config.json", "nowhere/config.json does not exist"),
    ],
)
def test_bad_options(words: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert sentence in refused(["run", "fedavg", *words.split(), "--out", str(out)], capsys)
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run fedprox --mu -1", "fedprox(mu=-1.0): the proximal weight must be"),
        (
            "run fedprox --mu nan",
            "--mu takes a number or theory, not 'nan': see `evenhand run fedprox --help`.",
        ),
        ("run fedprox --mu=-NaN", "--mu takes a number or theory, not '-NaN'"),
        ("run fedprox-adaptive --mu0 0.25", "multiple of 0.1"),
        ("run fedavg --server-opt fedadam(0.1,b1=1)", "b1"),
        ("run fedavg --server-opt fedavgm(momentum=1)", "momentum"),
        ("compare", "nothing to compare"),
        ("compare nowhere", "does not exist"),
        ("report nowhere", "does not exist"),
    ],
)
def test_bad_words(
    words: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in refused(words.split(), capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run fedprox(mu=1,aggregtor=mean())", "column 15: fedprox has no 'aggregtor'"),
        ("run fedprox(mu=-1)", "fedprox(mu=-1.0): the proximal weight must be"),
        ("run fedprox --mu 1 --server-opt fedadam()", "column 26: fedadam needs learning_rate="),
        ("run fedavg --systems dropouts()", "column 1: dropouts needs "),
        ("run fedavg --lr 0", "--lr 0.0 is not a step size"),
        (
            "run --config c.json",
            "evenhand: c.json: 'fedporx(mu=1)', column 1: there is no method 'fedporx' (per",
        ),
        ("run --config d.json", "evenhand: d.json: 'fedprox(' is not an expression at column "),
        ("run fedprox --mu 2 --config d.json", "evenhand: d.json: 'fedprox(' is not an expression"),
        ("run --config e.json", "evenhand: e.json: 'dropouts()', column 1: dropouts needs "),
        (
            "run --config e.json --systems chain(dropouts())",
            "evenhand: 'chain(dropouts())', column 7: dropouts ",
        ),
        ("run fedavg(1) --config c.json", "evenhand: 'fedavg(1)', column 8: fedavg takes this by name only"),
    ],
)
def test_faulty_expressions_are_found_before_the_data_are_loaded(
    words: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And one that a configuration holds is reported with the name of its file."""
    monkeypatch.setattr(DataOptions, "load", lambda self: pytest.fail("The data were loaded."))
    monkeypatch.chdir(tmp_path)
    for name, method in (("c", "fedporx(mu=1)"), ("d", "fedprox("), ("e", "fedavg()")):
        options = {"systems": "dropouts()"} if name == "e" else {}
        Path(f"{name}.json").write_text(json.dumps({"method": method, "options": options}))
    assert sentence in refused(words.split(), capsys)
    assert len(list(tmp_path.iterdir())) == 3


def test_out_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(["run", "fedavg", "--out", str(tmp_path / "file")], capsys)
    words = ["run", "fedavg", "--rounds", "0", "--quiet", "--out", str(tmp_path / "file" / "below")]
    assert str(tmp_path / "file") in refused(words, capsys)


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "run --help",
        "run fedprox --help",
        "resume --help",
        "compare --help",
        "list --help",
        "completion --help",
    ],
)
def test_help_ends_with_examples(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert not end.value.code
    shown = capsys.readouterr().out
    assert "  evenhand " in shown[shown.index("examples:") :]
    assert max(len(line) for line in shown.splitlines() if not line.startswith("usage:")) <= 80


def test_the_version_in_a_separate_process() -> None:
    command = [sys.executable, "-m", "evenhand.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert done.stdout == f"evenhand {__version__}\n"
