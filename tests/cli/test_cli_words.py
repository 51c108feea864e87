"""Mistyped words: each gets one sentence that names the word, says what belongs in its place, and points to a help."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from test_cli_errors import refused

from evenhand.cli import main
from evenhand.cli._arguments import Takes, options_of
from evenhand.cli._methods import METHODS
from evenhand.cli._restored import PredictCommand, ResumeCommand
from evenhand.cli._run import RunCommand
from evenhand.cli._show import CompareCommand, ListCommand, ReportCommand

COMMANDS: dict[str, Mapping[str, Takes]] = {
    **{f"run {name}": {**options_of(RunCommand), **method.options} for name, method in METHODS.items()},
    "resume runs/a": options_of(ResumeCommand),
    "compare runs/a": options_of(CompareCommand),
    "predict runs/a": options_of(PredictCommand),
    "report runs/a": options_of(ReportCommand),
    "list": options_of(ListCommand),
}
JARGON = re.compile(
    r"literal|argument|instantiat|[│╭╰─]|\\b(int|float|str|bool|None|NoneType|PosixPath)\\b|\\{|Error"
)


def help_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert not end.value.code
    shown = capsys.readouterr()
    assert not shown.err
    return shown.out


@pytest.mark.parametrize(
    "command", ["run fedavg", "run delta-fl", "resume", "compare", "predict", "report", "list"]
)
def test_the_options_that_are_checked_are_those_of_the_help(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = help_of([*command.split(), "--help"], capsys)
    known = next(options for name, options in COMMANDS.items() if name.startswith(command))
    # At the beginning of a line of a box.
    listed = re.findall(r"(?m)^[│| ]{0,4}(--[a-z][\w-]*)(?:, (--[a-z][\w-]*))?( ?)", shown)
    assert {name for *names, _ in listed for name in names if name} == {
        name for name in known if name.startswith("--")
    }
    switches = {name for first, second, _ in listed if second for name in (first, second)}
    assert switches == {name for name, takes in known.items() if not takes.kinds}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_says_what_it_takes(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    helps: set[str] = set()
    tried = 0
    for option, takes in COMMANDS[command].items():
        if not option.startswith("--"):
            continue
        wrong = [[option]] if takes.kinds else [[f"{option}=yes"]]
        if takes.kinds:
            wrong += [[f"{option}="], [option, "--quiet"]]
        if int in takes.kinds and float not in takes.kinds:
            wrong += [[option, "1.5"], [option, "1e3"], [option, "1_000"], [option, "9" * 5000]]
        if {int, float} & set(takes.kinds) or takes.words:
            wrong += [[option, "abc"], [f"{option}=soon"], [option, "None"]]
        if float in takes.kinds:
            wrong += [[option, "1_0"], [option, "1,5"]]
        for words in wrong:
            sentence = refused([*command.split(), *words], capsys)
            assert option in sentence, sentence
            assert not JARGON.search(sentence), sentence
            assert sentence.count(". ") == 0
            assert len(sentence) < 300, sentence
            helps |= set(re.findall(r"see `evenhand ([^`]+)`", sentence))
            tried += 1
    assert tried >= 1 or command == "list"
    place = command.removesuffix(" runs/a").removesuffix(" composed")
    assert helps <= {f"{place} --help"}
    for words in helps:
        assert f"usage: evenhand {place}" in help_of(words.split(), capsys)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "dance",
            "among run, study, fit, resume, compare, predict, report, figures, list, doctor, deploy, completion: see ",
        ),
        ("lst", "There is no command 'lst' (perhaps you meant `evenhand list`): see `evenhand --help`."),
        ("fedavg", "There is no command 'fedavg' (perhaps you meant `evenhand run fedavg`): see "),
        ("--verison", "(perhaps you meant `evenhand --version`)"),
        ("help nonsense", "There is no command 'nonsense'"),
        (
            "run",
            "run needs the name of a method, such as `evenhand run fedavg`: see `evenhand list methods`.",
        ),
        (
            "run FedAvg",
            "There is no method 'FedAvg' (perhaps you meant fedavg): see `evenhand list methods`.",
        ),
        ("run fed-avg", "(perhaps you meant fedavg)"),
        ("run q-ffl", "There is no method 'q-ffl' (perhaps you meant qfedavg): see `evenhand list methods`."),
        ("run fedporx --help", "(perhaps you meant fedprox)"),
        (
            "run --rounds 3 fedsomething",
            "There is no method 'fedsomething' among afl, alone, averaged, delta-fl, delta-fl-levels, fedavg, ",
        ),
        (
            "run --rond 3 fedavg",
            "fedavg has no option --rond (perhaps you meant --rounds): see `evenhand run fedavg",
        ),
        (
            "run --rond fedavg",
            "fedavg has no option --rond (perhaps you meant --rounds): see `evenhand run fedavg",
        ),
        ("run fedavg --epoch 3", "(perhaps you meant --epochs)"),
        ("run fedavg --batchsize 3", "(perhaps you meant --batch-size)"),
        ("run fedavg -rounds 3", "(perhaps you meant --rounds)"),
        ("run fedavg rounds=3", "The word 'rounds=3' is left over (perhaps you meant --rounds): see "),
        ("run fedavg --bogus", "fedavg has no option --bogus: see `evenhand run fedavg --help`."),
        (
            "run fedavg --epochs 1.5",
            "--epochs takes a whole number, not '1.5': see `evenhand run fedavg --help`.",
        ),
        ("run fedavg --batch-size abc", "--batch-size takes a number or all, not 'abc': see "),
        ("run fedavg --cohort 2.5", "--cohort takes a whole number or all, not '2.5': see "),
        ("run fedavg --checkpoint soon", "--checkpoint takes a number or off, not 'soon': see "),
        ("run fedavg --lr", "--lr needs a number after it: see `evenhand run fedavg --help`."),
        ("run fedavg --lr --seed 3", "--lr needs a number after it: see "),
        ("run fedavg --regression=yes", "--regression is a switch, so leave '=yes' out: see "),
        ("run fedavg --no-regression=yes", "--no-regression is a switch, so leave '=yes' out: see "),
        (
            "run fedavg --no-regresion",
            "fedavg has no option --no-regresion (perhaps you meant --no-regression)",
        ),
        (
            "run side-by-side",
            "evenhand: side_by_side needs methods, which an expression cannot give: call it from",
        ),
        ("run fedavg --model sofmax", "factors, not 'sofmax' (perhaps you meant softmax): see "),
        ("run fedavg --cohort al", "(perhaps you meant all)"),
        ("run fedavg --data digit", "digit: no such file or folder (perhaps you meant digits), nor one "),
        ("run fedavg --data Digits", "(perhaps you meant digits)"),
        ("run fedavg --data minst", "(perhaps you meant mnist)"),
        ("run fedavg --data nothing-like-it", "nothing-like-it: no such file or folder, nor one"),
        (
            "run fedavg --attack zero(0.1) --attack=sign_flip(0.2)",
            "--attack is given twice, as 'zero(0.1)' and 'sign_flip(0.2)': write both(a, b) for both attacks",
        ),
        (
            "run fedavg --metrics auc --rounds 2 --metrics ece",
            "'auc' and 'ece': give all values at once, with",
        ),
        (
            "run fedavg --drop age --drop town",
            "'age' and 'town': give all values at once, with commas between",
        ),
        ("resume", "resume needs RUN after it: see `evenhand resume --help`."),
        ("resume a b", "The word 'b' is left over: see `evenhand resume --help`."),
        (
            "resume a --lr 3",
            "resume has no --lr, which is an option of run and study: see `evenhand resume --help`.",
        ),
        (
            "list food",
            "list takes one of all, methods, aggregators, risks, losses, weightings, work, parts, systems, schedules, "
            "attacks, metrics, data, models, centralized, theory, diagnostics, privacy, not 'food'",
        ),
        ("list mehtods", "(perhaps you meant methods)"),
        ("compare --clients -3 a", "--clients -3: give a whole number from 0 "),
        (
            "completion fish",
            "completion takes one of bash, zsh, not 'fish': see `evenhand completion --help`.",
        ),
        ("run fedprox --mu -1", "evenhand: fedprox(mu=-1.0): the proximal weight"),
        ("run fedprox", "evenhand: fedprox needs --mu: see `evenhand run fedprox --help`."),
        ("run qmaml --q 1", "evenhand: qmaml needs --step-size: see `evenhand run qmaml --help`."),
        (
            "run fedadam",
            "evenhand: fedadam is a server optimiser, not a method: see `evenhand list` for what ",
        ),
        ("run fedavg --server-opt fedadam(", "evenhand: 'fedadam(' is not an expression at column "),
        (
            "run fedavg --server-opt adam(0.1)",
            "there is no server optimiser 'adam' (perhaps you meant fedadam)",
        ),
        ("run fedavg --systems stragglers()", "'stragglers()', column 1: stragglers needs fraction="),
        (
            "run fedavg --systems dropouts(0.1) --stragglers 0.5",
            "--systems and --stragglers exclude each other",
        ),
        ("run fedavg --hidden 0 --model mlp", "evenhand: --hidden 0: give a whole number from 1 "),
    ],
)
def test_mistyped_words(
    words: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in refused(words.split(), capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", METHODS)
def test_an_option_of_other_methods_is_refused_with_their_names(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options_by_method = {name: set(other.options) for name, other in METHODS.items()}
    foreign = set().union(*options_by_method.values()) - options_by_method[method]
    assert len(foreign) > 10
    name = "An expression" if method == "composed" else method
    for option in foreign:
        sentence = refused(["run", method, option, "1"], capsys)
        of = re.fullmatch(
            rf"evenhand: {name} has no {option}, which is an option of (.*): see .*\n", sentence
        )
        assert of, sentence
        assert set(re.split(r", | and ", of[1])) == {
            other for other, options in options_by_method.items() if option in options
        }


def test_a_misspelt_path_gets_the_nearest_entry_of_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("visits.csv", "prices.csv"):
        (tmp_path / name).write_text("")
    sentence = refused(["run", "fedavg", "--data", str(tmp_path / "vists.csv")], capsys)
    assert f"(perhaps you meant {tmp_path / 'visits.csv'})" in sentence
    assert "perhaps" not in refused(["run", "fedavg", "--data", str(tmp_path / "other.npz")], capsys)
    assert "perhaps" not in refused(["run", "fedavg", "--data", str(tmp_path / "no" / "where.csv")], capsys)


def test_mistakes_in_a_configuration_are_reported_with_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.json"
    for options, sentence in {
        '"rounds": "many"': "--rounds takes a whole number, not 'many'.",
        '"cohort": 1.5': "--cohort takes a whole number or all, not 1.5.",
        '"lr": true': "--lr takes a number, not True.",
        '"regression": 1': "--regression takes true or false, not 1.",
        '"no_regression": true': "write 'regression', true or false, in place of 'no_regression'.",
        '"mu": 1.0': "run has no option --mu: leave 'mu' out.",
        '"help": true': "run has no option --help: leave 'help' out.",
    }.items():
        path.write_text(f'{{"method": "fedavg()", "options": {{{options}}}}}')
        assert refused(["run", "--config", str(path)], capsys) == f"evenhand: {path}: {sentence}\n"


def test_the_method_may_come_after_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A value that is a method's name is still a value.
    out = tmp_path / "afl"
    words = ["run", "--out", str(out), "--data-seed", "-1", "--mu", "1", "fedprox"]
    assert "--data-seed -1: give a whole number" in refused(words, capsys)
    assert "fedavg has no --mu" in refused(["run", "--mu", "1", "--out", "fedprox", "fedavg"], capsys)


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("", "usage: evenhand [-h] COMMAND"),
        ("help", "usage: evenhand [-h] COMMAND"),
        ("-h", "usage: evenhand [-h] COMMAND"),
        ("help run", "usage: evenhand run [-h] "),
        ("help run fedprox", "usage: evenhand run fedprox [-h] "),
        ("help compare", "usage: evenhand compare [-h] "),
        ("run fedprox --rounds x --help", "usage: evenhand run fedprox [-h] "),
    ],
)
def test_help(words: str, usage: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(words.split(), capsys)
    assert shown.startswith(usage)
    assert ("evenhand --version" in shown and "completion" in shown) == (" [-h] COMMAND" in usage)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_scripts_are_of_their_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    shown = capsys.readouterr()
    assert not shown.err
    assert "evenhand" in shown.out
    assert "examples:" not in shown.out
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=shown.out, text=True, capture_output=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    (tmp_path / "evenhand.bash").write_text(capsys.readouterr().out)

    def completed(*words: str) -> set[str]:
        function = "$(complete -p evenhand | sed 's/.*-F \\([^ ]*\\).*/\\1/')"
        line = " ".join(f"'{word}'" for word in words)
        script = f"""
            source evenhand.bash
            COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; COMP_LINE="{" ".join(words)}"; COMP_POINT=${{#COMP_LINE}}
            {function} evenhand '{words[-1]}' '{words[-2]}'
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, text=True, capture_output=True, check=True
        )
        return set(done.stdout.split())

    assert {"run", "resume", "compare", "report", "list", "completion"} <= completed("evenhand", "")
    assert completed("evenhand", "run", "fedp") == {"fedprox", "fedprox-adaptive", "fedprox-measured"}
    assert "--mu" in completed("evenhand", "run", "fedprox", "--m")
    assert "--mu" not in completed("evenhand", "run", "fedavg", "--m")
