"""``evenhand study`` and ``figures``, and what ``compare`` and ``report`` make of a study."""

from __future__ import annotations

import csv
import html
import itertools
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evenhand as eh
from evenhand.cli import _show, _study, _terminal, main
from evenhand.cli._main import parse
from evenhand.errors import EvenhandError
from evenhand.expressions import braced
from evenhand.models.losses import focal
from evenhand.studies import Family, Halving, Rule, load
from evenhand.systems import Systems

pytestmark = pytest.mark.usefixtures("shared_programs")

QUICK = [
    "--data",
    "digits",
    "--clients",
    "5",
    "--rounds",
    "2",
    "--eval-every",
    "2",
    "--cohort",
    "3",
    "--quiet",
]
METHODS = ["fedavg", "fedprox(mu={0.1, 100})"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("studies") / "a"
    words = ["study", *METHODS, "--lr", "0.01,0.1", "--seeds", "2", *QUICK, "--out", str(place)]
    assert main(words) == 0
    return place


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


class Asked(Exception):
    """What a study was asked for."""


def asked(
    words: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Family], Any, dict[str, Any]]:
    """The arguments of ``eh.study`` that these words stand for."""

    def study(*places: Any, rounds: int, **given: Any) -> None:
        raise Asked(*places, {"rounds": rounds, **given})

    monkeypatch.setattr(_study, "study", study)
    with pytest.raises(Asked) as found:
        main(["study", *words])
    return found.value.args  # type: ignore[return-value]


# --- what a study writes ---------------------------------------------------------------------------------------------


def test_a_study_from_the_command_line_is_the_one_from_python(folder: Path) -> None:
    data = eh.data.hold_out(eh.data.load("digits", clients=5))
    model = eh.models.softmax_regression(features=64, classes=10)

    def fedavg(lr: float) -> eh.types.Algorithm:
        return eh.algorithms.fedavg(eh.local.sgd(model, lr, epochs=1, batch_size=10))

    def fedprox(lr: float, mu: float) -> eh.types.Algorithm:
        return eh.algorithms.fedprox(eh.local.sgd(model, lr, epochs=1, batch_size=10), mu=mu)

    grid = {"lr": [0.01, 0.1], "mu": [0.1, 100]}
    made = eh.study(
        {"fedavg": fedavg, "fedprox": fedprox}, data, rounds=2, seeds=2, grid=grid, eval_every=2, cohort=3
    )
    found = eh.studies.load(folder)
    assert [str(each.setting) for each in found.outcomes] == [str(each.setting) for each in made.outcomes]
    for a, b in zip(found.outcomes, made.outcomes, strict=True):
        assert a.view is not None and b.view is not None
        np.testing.assert_allclose(a.view.history["test_loss"], b.view.history["test_loss"], atol=1e-6)
    assert "no validation examples" in found.remarks[0]
    rows = list(csv.DictReader((folder / "settings.csv").read_text().splitlines()))
    assert [row["lr"] for row in rows] == ["0.01", "0.1", *["0.01"] * 2, *["0.1"] * 2]
    assert float(rows[1]["test_mean"]) == found.tried[1].mean("test_mean")
    for name in ("settings.md", "settings.tex", "study.html"):
        assert (folder / name).read_text().count("fedprox")


def test_the_page_tells_what_was_run_and_how_to_run_it_again(folder: Path) -> None:
    """The command is one that makes the same study, quotes and all."""
    page = (folder / "study.html").read_text()
    [again] = re.findall(r"<pre>(.*?)</pre>", page)
    words = shlex.split(html.unescape(again))
    assert words[:4] == ["evenhand", "study", *METHODS] and "--quiet" not in words
    study, parsed = parse(words[1:]), eh.studies.load(folder)
    assert isinstance(study, _study.StudyCommand) and str(study.study.out) == str(folder)
    assert (study.study.seeds, study.grid.lr, study.study.rounds) == ("2", "0.01,0.1", 2)
    table = page.split("What was run")[1].split("</table>")[0]
    for name in ("rounds", "cohort", "batch_size", "clients", "examples", "data", "new data for each seed"):
        assert f">{name}</" in table, name
    rows = f"test {eh.data.load('digits', clients=5).test.rows:,}"
    assert parsed.about["rounds"] == 2 and rows in str(parsed.about["examples"]) and rows in table


def test_a_second_study_in_the_folder_repeats_nothing_and_prints_the_result(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    monkeypatch.setattr(
        "evenhand.studies._columns.iterate_many",
        lambda jobs, wanted: started.append(len(wanted)) or iter(()),
    )
    quick = [word for word in QUICK if word != "--quiet"]
    assert main(["study", *METHODS, "--lr", "0.01,0.1", "--seeds", "2", *quick, "--out", str(folder)]) == 0
    assert started == []
    shown = capsys.readouterr().out
    best = eh.studies.load(folder).best("fedprox")
    assert (
        f"; {best}." in shown
        and "minus fedavg, at equal seeds" in shown
        and f"{folder / 'study.html'}" in shown
    )
    assert "edge of its grid" not in shown  # two values have no inside
    assert max(len(line) for line in shown.splitlines() if "%" in line and ":" not in line) <= 80


def test_a_quiet_study_prints_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["study", *METHODS, "--lr", "0.01,0.1", "--seeds", "2", *QUICK, "--out", str(folder)]
    assert main([word for word in words if word != "--quiet"]) == 0
    assert "no validation examples: a fifth of each client's training examples" in capsys.readouterr().err
    assert main(words) == 0
    assert capsys.readouterr() == ("", "")


def test_compare_report_and_figures_take_a_study(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["compare", str(folder), "--clients", "2"]) == 0
    shown = capsys.readouterr().out
    means = [100 * line.values["mean"].mean() for line in eh.studies.load(folder).table()]
    assert all(f" {mean:.1f}" in shown for mean in means) and "2 clients worst off" in shown
    assert main(["report", str(folder), "--out", "page.html"]) == 0
    assert "All settings" in Path("page.html").read_text()
    page = (folder / "study.html").read_text()
    (folder / "study.html").unlink()
    assert main(["report", str(folder)]) == 0 and (folder / "study.html").read_text() == page
    capsys.readouterr()
    assert main(["figures", str(folder), "--format", "svg", "--out", "drawn"]) == 0
    files = capsys.readouterr().out.split()
    assert {Path(file).name for file in files} == {path.name for path in Path("drawn").iterdir()}
    assert {"plane.svg", "sensitivity_lr.svg", "sensitivity_mu.svg", "learning_curve.svg"} <= {
        Path(file).name for file in files
    }
    assert 'width="237.6pt"' in Path("drawn/plane.svg").read_text()  # 3.3 inches of 72 points


def test_files_of_figures_have_readable_names_and_none_is_written_twice() -> None:
    names = ["none", "20 %", "20%", "20", "sign_flip(0.1)", "../x/", "%", "20 percent 2", "20%!"]
    assert _show._ends([{"attack": name} for name in names]) == [
        "-none",
        "-20-percent",
        "-20-percent-2",
        "-20",
        "-sign_flip-0.1",
        "-..-x",
        "-percent",
        "-20-percent-2-2",
        "-20-percent-3",
    ]
    assert _show._ends([{}]) == [""] and _show._ends([{"a": "x y", "b": "0.5"}]) == ["-x-y-0.5"]


def test_figures_of_runs_have_the_width_and_format_that_were_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["run", "fedavg", *QUICK, "--out", "a"]) == 0
    assert main(["figures", "a", "--format", "png", "--width", "2"]) == 0
    assert capsys.readouterr().out.split()[0] == "a/figures/learning_curve.png"
    header = Path("a/figures/size_scatter.png").read_bytes()[16:20]
    assert int.from_bytes(header) == 600  # 300 dots an inch
    assert main(["figures", "a"]) == 0 and Path("a/figures/client_curve.pdf").read_bytes()[:4] == b"%PDF"
    for words, sentence in (
        ([], "nothing to draw"),
        (["a", "--width", "30"], "from 1 to 20"),
        (["b"], "b does not exist"),
    ):
        assert main(["figures", *words]) == 2
        assert sentence in capsys.readouterr().err


# --- what the words mean ---------------------------------------------------------------------------------------------


def test_every_option_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "fedavg --rounds 30 --seeds 4,7 --select train:worst10 --within 0.01 --then variance --cohort 3 --clients 5"
    words += " --baseline fedavg --stragglers 0,0.5 --eval-clients 4 --untrained initial --halving 6"
    words += " --checkpoint 2 --out x --quiet --metrics auc,macro_f1"
    methods, data, given = asked([*words.split(), "--batch-size", "5,all", "--steps", "2,3"], monkeypatch)
    assert (
        data.num_clients == 5 and given["rounds"] == 30 and given["seeds"] == [4, 7] and given["cohort"] == 3
    )
    assert given["select"] == Rule("train", "worst10", 0.01, "variance") and given["baseline"] == "fedavg"
    assert given["metrics"] == "auc,macro_f1"
    assert given["eval_every"] == 3 and given["eval_clients"] == 4 and given["folder"] == Path("x")
    assert given["untrained"] == "initial"
    assert given["halving"] == Halving(6) and given["checkpoint"] == 2 and given["progress"] is False
    assert given["systems"]["stragglers(0)"] is None and isinstance(
        given["systems"]["stragglers(0.5)"], Systems
    )
    assert given["grid"] == {"fedavg": {"lr": [0.1], "steps": [2, 3], "batch_size": [5, "all"]}}
    assert methods["fedavg"].arguments == ("lr", "steps", "batch_size")
    _, _, plain = asked(["fedavg", "--quiet", "--clients", "5"], monkeypatch)
    assert (
        plain["systems"] is None
        and plain["cohort"] is None
        and plain["halving"] is None
        and plain["seeds"] == 6
    )


def test_several_cohorts_are_tried_with_every_method(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["fedavg", "fedprox(mu={0.1, 1})", "--quiet", "--cohort", "2,all"]
    methods, _, given = asked(words, monkeypatch)
    assert given["grid"] == {
        "fedavg": {"lr": [0.1], "cohort": [2, "all"]},
        "fedprox": {"lr": [0.1], "mu": [0.1, 1], "cohort": [2, "all"]},
    }
    assert methods["fedavg"].arguments == ("lr",)
    assert "--cohort 2,all" in given["about"]["command"]


def test_every_method_of_a_study_has_the_loss_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["fedavg", "ditto(fedavg(), lam={0.1, 1})", "--loss", "focal(gamma=2)", *QUICK]
    families, _, options = asked(words, monkeypatch)
    for family, values in zip(families.values(), ({"lr": 0.1}, {"lr": 0.1, "lam": 1}), strict=True):
        assert family.make(values).model.losses == focal(2.0)
    assert options["about"]["loss"] == "focal(gamma=2)"
    assert "--loss 'focal(gamma=2)'" in options["about"]["command"]


def test_a_study_lists_the_options_that_have_an_effect_and_reports_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", "digits", "--clients", "5", "--label-column", "price", "--test-fraction", "0"]
    _, _, given = asked(["fedavg", *words], monkeypatch)
    assert {
        name: given["about"].get(name) for name in ("alpha", "clients", "test_fraction", "batch_size")
    } == {
        "alpha": 0.5,
        "clients": 5,
        "test_fraction": 0.0,
        "batch_size": "10",
    }
    idle = {"client_column", "label_column", "standardize", "standardize_target", "words", "hidden"}
    assert not idle & set(given["about"])
    error = " ".join(capsys.readouterr().err.split())
    assert "--label-column price has no effect: digits has no columns to choose from." in error
    Path("t.csv").write_text("group,a,label\n" + "".join(f"{'pq'[i % 2]},{i},{i % 2}\n" for i in range(20)))
    _, _, given = asked(["fit()", "--data", "t.csv", "--groups", "group", "--lr", "0.5"], monkeypatch)
    assert not {"client_column", "lr", "batch_size", "alpha", "clients"} & set(given["about"])
    assert given["about"]["label_column"] == "label" and given["about"]["groups"] == "group"
    error = " ".join(capsys.readouterr().err.split())
    assert "--lr 0.5 has no effect: each method sets its own local work." in error


def test_data_may_be_drawn_anew_and_systems_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "fedavg --quiet --data synthetic:1,1 --clients 5 --data-seed 3 --fresh-data --systems dropouts({0.1,0.5})"
    _, data, given = asked(words.split(), monkeypatch)
    drawn = [data(seed).train.x for seed in (0, 1)]
    np.testing.assert_array_equal(
        drawn[1], eh.data.synthetic(1, 1, clients=5, seed=4, test_fraction=0.2).train.x
    )
    assert drawn[0].shape != drawn[1].shape or not np.array_equal(*drawn)
    assert list(given["systems"]) == ["dropouts(0.1)", "dropouts(0.5)"]


def test_methods_get_their_own_values_and_those_of_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    own = "fedavg(sgd(0.3, epochs=2), aggregator={mean(), risk_weighted(superquantile({0.5}))})".replace(
        "{0.5}", "0.5"
    )
    words = ["qfedavg(q={0.1, 1})", own, "scaffold", "--lr", "0.1,0.2", "--quiet", "--clients", "5"]
    methods, _, given = asked(words, monkeypatch)
    first, second, third = methods
    assert (first, third) == ("qfedavg", "scaffold") and second.startswith("fedavg(sgd(0.3")
    assert given["grid"][first] == {"lr": [0.1, 0.2], "q": [0.1, 1]}
    assert given["grid"][second] == {"aggregator": ["mean()", "risk_weighted(superquantile(0.5))"]}
    for values in itertools.product([0.1, 0.2], [0.1, 1]):
        assert isinstance(
            methods[first].make(dict(zip(("lr", "q"), values, strict=True))), eh.types.Algorithm
        )
    assert methods[second].make({"aggregator": "mean()"}).phases[0].aggregator is not None


def test_values_of_arguments_with_one_name_are_kept_apart() -> None:
    both = braced("averaged(fedprox(mu={0.1, 1}, server_opt=fedadam({0.1, 0.2})), start={1, 2})")
    assert both.axes == {"mu": [0.1, 1], "fedadam": [0.1, 0.2], "start": [1, 2]}
    assert both.name == "averaged(fedprox(server_opt=fedadam()))"
    filled = both.fill({"mu": 1, "fedadam": 0.2, "start": 2})
    assert filled == "averaged(fedprox(mu=1, server_opt=fedadam(0.2)), start=2)"
    same = braced("f(x={1, 2}, y=g(x={3, 4}), z=g(x={True, 1}))")
    assert same.axes == {"x": [1, 2], "g_x": [3, 4], "g_x_": [True, 1]}
    assert same.fill({"x": 2, "g_x": 3, "g_x_": True}) == "f(x=2, y=g(x=3), z=g(x=True))"
    assert same.fill({"x": 2, "g_x": 3, "g_x_": 1}) == "f(x=2, y=g(x=3), z=g(x=1))"
    assert braced("f({1, 2}, {3, 4})").axes == {"f": [1, 2], "f_2": [3, 4]}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "study needs methods"),
        (["fedavg", "fedavg"], "twice"),
        (["{fedavg, fedprox}"], "braces hold the values of one argument"),
        (["fedprox(mu={0.1, {1}})"], "braces hold the values of one argument"),
        (["fedprox(mu=-{0.1, 1})"], "braces hold the values of one argument"),
        (["fedprox(mu=(1, {2, 3}))"], "braces hold the values of one argument"),
        (["fedprox(mux={0.1, 1})"], "perhaps you meant mu"),
        (["fedprox(mu={0.1, -1})"], "mu=-1"),
        (["fedprox-adaptive"], "fedprox_adaptive needs mu0="),
        (["fedavgg"], "perhaps you meant fedavg"),
        (["fedavg", "--lr", "0.1,x"], "--lr '0.1,x' is not understood"),
        (["fedavg", "--lr", "0.1,0.1"], "--lr '0.1,0.1' is not understood"),
        (["fedavg", "--lr", "0.1,-2"], "--lr -2.0 is not a step size"),
        (["fedavg", "--seeds", "a"], "--seeds 'a'"),
        (["fedavg", "--select", "valid"], "SPLIT:STATISTIC"),
        (["fedavg", "--seeds", "1,1"], "--seeds '1,1'"),
        (["fedavg", "--seeds", "0"], "--seeds 0: give a whole number"),
        (["fedavg", "--select", "foo:mean"], "There is no split 'foo' to select by"),
        (["fedavg", "--within", "-1"], "--within -1.0: give a number"),
        (
            ["fedavg", "--baseline", "fedavgg"],
            "--baseline 'fedavgg': there is no such method (perhaps you meant fedavg)",
        ),
        (["fedavg", "--halving", "0"], "--halving 0: give a whole number"),
        (["fedavg", "--rounds", "0"], "--rounds 0: give a whole number"),
        (["fedavg", "--eval-every", "0"], "--eval-every 0: give a whole number"),
        (["fedavg", "--eval-clients", "0"], "--eval-clients 0: give a whole number"),
        (["fedavg", "--checkpoint", "-1"], "--checkpoint -1.0: give seconds"),
        (["fedavg", "--plan", "."], "there is no such file"),
        (["fedavg", "--cohort", "few"], "--cohort 'few' is not understood: give a number, or distinct ones"),
        (["fedavg", "--cohort", "0,2"], "--cohort 0: give a whole number"),
        (
            ["dp_ftrl(clip=1, noise_multiplier=1, clients=9, cohort={2, 3})", "--cohort", "2,3"],
            "give one of them",
        ),
        (["fedavg", "--stragglers", "0.5", "--systems", "dropouts(0.1)"], "exclude each other"),
        (["fedavg", "--systems", "dropouts({0.1, 2})"], "2"),
        (["fedavg", "--loss", "focl()"], "there is no loss 'focl' (perhaps you meant focal)"),
        (["fedavg", "--plan", "none.toml"], "there is no such file"),
        (["fedavg", "--roundss", "3"], "perhaps you meant --rounds"),
    ],
)
def test_slips_get_a_sentence_before_anything_is_loaded(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", *words, "--data", "no/such/file.csv"]) == 2
    assert sentence in capsys.readouterr().err


def test_a_plan_is_words_and_the_command_line_takes_precedence(capsys: pytest.CaptureFixture[str]) -> None:
    Path("plan.toml").write_text(
        'methods = ["fedavg", "fedprox(mu={0.1, 1})"]\nlr = [0.1, 0.2]\nrounds = 9\nfresh_data = true\nquiet = false\n'
        'select = "valid:worst10"\n'
    )
    study: Any = parse(["study", "--plan", "plan.toml", "--rounds", "4"])
    assert study.methods == ("fedavg", "fedprox(mu={0.1, 1})") and study.grid.lr == "0.1,0.2"
    assert study.study.rounds == 4 and study.study.fresh_data and study.study.select == "valid:worst10"
    other: Any = parse(["study", "scaffold", "--plan=plan.toml"])
    assert other.methods == ("scaffold",) and other.study.rounds == 9
    Path("one.toml").write_text('methods = ["fedavg"]\nseeds = [7]\nlr = [0.1]')
    after: Any = parse(["study", "--plan", "one.toml", "scaffold", "--rounds", "4"])
    assert after.methods == ("scaffold",) and after._seeds() == [7] and after.grid.axes == {"lr": [0.1]}
    assert parse(["study", "--plan", "one.toml"]).methods == ("fedavg",)  # type: ignore[union-attr]
    for text, sentence in (
        ("rounds 9", "is not TOML"),
        ("methods = 3", "list of strings"),
        ("[lr]\nx = 1", "lr is a table"),
        ("rouns = 3", "perhaps you meant --rounds"),
    ):
        Path("plan.toml").write_text(text)
        assert main(["study", "fedavg", "--plan", "plan.toml"]) == 2
        assert sentence in capsys.readouterr().err


def test_a_dry_run_counts_and_trains_nothing_to_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*METHODS, "--lr", "0.01,0.1", "--seeds", "3", "--stragglers", "0,0.5", *QUICK, "--dry-run"]
    assert main(["study", *words]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("fedavg: 12 runs of 2 rounds, about ")
    assert shown[1].startswith("fedprox: 24 runs of 2 rounds, about ")
    assert shown[2].startswith("36 runs, about ") and not list(Path().iterdir())
    assert [_terminal.duration(seconds) for seconds in (3.14, 90, 7200)] == ["3.1 s", "1.5 min", "2 h"]


def test_a_dry_run_counts_the_runs_that_tune_and_those_that_are_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [*METHODS, "--lr", "0.01,0.1", "--seeds", "3", "--tuning-seeds", "2", *QUICK, "--dry-run"]
    assert main(["study", *words]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split(" runs")[0] for line in shown] == ["fedavg: 7", "fedprox: 11", "18"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], None),
        (["--tuning-seeds", "2"], 2),
        (["--tuning-seeds", "7,"], [7]),
        (["--tuning-seeds=9,7"], [9, 7]),
    ],
)
def test_seeds_for_tuning_are_counted_or_named(
    words: list[str], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, given = asked([*METHODS, "--lr", "0.01,0.1", *words], monkeypatch)
    assert given["tuning_seeds"] == expected


def test_a_plan_may_name_a_single_seed_for_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("plan.toml").write_text("lr = [0.01, 0.1]\ntuning_seeds = [7]")
    *_, given = asked([*METHODS, "--plan", "plan.toml"], monkeypatch)
    assert given["tuning_seeds"] == [7]


def test_a_study_that_tunes_on_other_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["study", *METHODS, "--lr", "0.01,0.1", "--seeds", "2", *QUICK, "--out", "a"]
    assert main([*words, "--tuning-seeds", "1,5"]) == 2
    assert "--tuning-seeds 1,5: seed 1 is one of seeds, which are reported" in capsys.readouterr().err
    assert main([*words, "--tuning-seeds", "x"]) == 2
    assert "--tuning-seeds 'x' is not understood" in capsys.readouterr().err
    assert main([word for word in words if word != "--quiet"] + ["--tuning-seeds", "1"]) == 0
    shown = capsys.readouterr()
    told = " ".join((shown.out + shown.err).split())
    assert "Settings were chosen with seed 2 alone; the methods are compared with seeds 0 and 1" in told
    found = load("a")
    assert found.tuning_seeds == (2,)
    assert len([each for each in found.outcomes if each.seed == 2]) == 6
    assert [line.values["mean"].shape for line in found.table()] == [(2,), (2,)]


def test_a_forecast_is_of_a_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that moves 1 s before the first round, and 1 s for every five rounds: 21 s for a hundred."""
    now = itertools.count()
    monkeypatch.setattr(_study.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(_study, "iterate", lambda *given, **how: range(3))
    method: Any = None
    assert _study._seconds_per_run(method, method, _study.StudyOptions(rounds=100)) == 21


def test_methods_of_one_name_are_both_kept_and_a_short_run_is_evaluated_each_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["fedavg", "fedavg(aggregator={mean(), clip(1)})", "--rounds", "4", "--quiet", "--clients", "5"]
    methods, _, given = asked(words, monkeypatch)
    assert len(methods) == 2 and "fedavg" in methods and given["eval_every"] == 1
    assert given["about"]["command"].startswith(
        "evenhand study fedavg 'fedavg(aggregator={mean(), clip(1)})'"
    )


def test_a_comparison_of_a_study_is_with_its_baseline(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    words = ["study", *METHODS, "--lr", "0.01,0.1", "--seeds", "2", "--baseline", "fedprox", *QUICK]
    assert main([*words, "--out", str(folder)]) == 0
    capsys.readouterr()
    assert main(["compare", str(folder)]) == 0
    assert "minus fedprox, at equal seeds" in capsys.readouterr().out
    assert main(["resume", str(folder)]) == 2
    assert "is a study: run the `evenhand study` command" in capsys.readouterr().err
    (folder / "study.json").rename(folder / "gone")
    assert main(["compare", str(folder)]) == 2
    assert "is a study that is still running or was stopped" in capsys.readouterr().err
    (folder / "gone").rename(folder / "study.json")


# --- runs at workers (the cluster itself: tests/unit/studies/test_studies_cluster.py) --------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dask", "tcp://host:1", "--slurm", "mem_gb=1"], "--dask and --slurm exclude each other"),
        (["--slurm", "mem_gb=1,partition"], "'partition' is not NAME=VALUE, such as timeout_min=60"),
        (["--slurm", "cluster=local,mem_bg=1"], "parameter 'mem_bg'. Give parameters of submitit"),
    ],
)
def test_workers_that_are_not_understood_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "fedavg", *QUICK, *words, "--out", "a"]) == 2
    assert re.search(message, " ".join(capsys.readouterr().err.split()))


@pytest.mark.parametrize(
    ("option", "package", "extra"), [("--dask", "distributed", "dask"), ("--slurm", "submitit", "slurm")]
)
def test_a_package_that_workers_need_is_named_with_its_extra(
    option: str,
    package: str,
    extra: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["study", "fedavg", *QUICK, option, "mem_gb=1"]) == 2
    message = f"{option} needs the package {package}, which is not installed: pip install 'evenhand[{extra}]'"
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_scheduler_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "fedavg", *QUICK, "--dask", "nowhere"]) == 2
    assert "--dask nowhere: no scheduler answers there" in " ".join(capsys.readouterr().err.split())


def test_workers_without_evenhand_and_no_workers_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    class Client:
        def __init__(self, **workers: Any) -> None:
            self._workers = workers

        def run(self, function: Any, *args: Any, on_error: str) -> dict[str, Any]:
            assert function(*args) == eh.__version__ and on_error == "return"
            return self._workers

    options = _study.StudyOptions(dask="tcp://host:1")
    _study._check_workers(Client(a="0.2.0", b=OSError("busy")), options)
    assert not capsys.readouterr().err
    with pytest.raises(EvenhandError, match="1 worker of 2 cannot import evenhand, the first at b: install"):
        _study._check_workers(Client(a="0.2.0", b=ModuleNotFoundError("evenhand")), options)
    _study._check_workers(Client(), options)
    words = "The scheduler has no workers yet: the runs wait for `dask worker tcp://host:1 --nthreads 1`."
    assert words in " ".join(capsys.readouterr().err.split())


def test_parameters_of_jobs_are_numbers_or_texts() -> None:
    asked = {"timeout_min": 90, "mem_gb": 2.5, "slurm_partition": "gpu"}
    assert _study._parameters("timeout_min=90, mem_gb=2.5,slurm_partition=gpu") == asked
    # The limit of submitit itself would end a column after five minutes.
    assert _study._parameters("gpus_per_node=1") == {"timeout_min": 1440, "gpus_per_node": 1}
