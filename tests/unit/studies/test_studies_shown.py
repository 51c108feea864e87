"""What a study shows: tables, figures and its page, from results that are written down here."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import evenhand as eh
from evenhand.report import RunView, draw
from evenhand.studies import Outcome, Rule, Setting, Study, Tried
from evenhand.studies._report import frontier
from evenhand.studies._tables import methods_csv, settings_csv

pytestmark = pytest.mark.draws

CLIENTS, SEEDS = 12, (3, 5, 8)


def view(accuracies: np.ndarray, seed: int, metric: str = "accuracy") -> RunView:
    """A run whose clients get these accuracies on test examples, and a little less on validation examples."""
    sizes = np.arange(1, CLIENTS + 1)
    values = {"train": accuracies, "valid": accuracies - 0.05, "test": accuracies}
    history = {"round": np.array([0, 10])}
    for split, of in values.items():
        for name, end in (("mean", of.mean()), ("worst10", of.min()), ("best10", of.max())):
            history[f"{split}_{metric}_{name}"] = np.array([0.1, end])
        history[f"{split}_{metric}"] = np.array([0.1, of.mean()])
        history[f"{split}_loss"] = np.array([2.0, 1.0 - of.mean()])
    return RunView(
        "run",
        history,
        dict.fromkeys(values, sizes),
        tuple(f"c{i}" for i in range(CLIENTS)),
        {split: {metric: of} for split, of in values.items()},
        {"rounds": 10, "seed": seed, "fingerprint": "same"},
        {"seed": seed},
    )


LEVELS = {("a", 0.1): 0.5, ("a", 1.0): 0.7, ("b_%", 0.1): 0.8, ("b_%", 1.0): 0.6}


def made(
    metric: str = "accuracy",
    case: dict[str, str] | None = None,
    shift: float = 0.0,
    seeds: Sequence[int] = SEEDS,
) -> list[Outcome]:
    """Two methods with two step sizes, and a third of which each run is lost."""
    found: list[Outcome] = []
    for (method, lr), level in LEVELS.items():
        numbers = {"lr": lr, "kind": "mean()"} if method == "a" else {"lr": lr}
        setting = Setting(method, numbers, case or {})
        for seed in seeds:
            noise = 0.02 * np.random.default_rng(seed).normal(size=CLIENTS)
            values = level + shift + noise + np.linspace(-0.2, 0.2, CLIENTS) * (1.5 - lr)
            run = view(values, seed, metric)._replace(config={"method": method, "lr": lr, "seed": seed})
            found.append(Outcome(setting, seed, "done", "", run))
    lost = Setting("lost", {"lr": 9.0}, case or {})
    return found + [Outcome(lost, seed, "failed", "No memory.", None) for seed in seeds]


@pytest.fixture(scope="module")
def study() -> Study:
    return Study(tuple(made()), Rule(), "a", "accuracy", ("A note.",))


def of(study: Study, name: str) -> Tried:
    return next(each for each in study.tried if str(each.setting) == name)


# --- tables ----------------------------------------------------------------------------------------------------------


def test_every_setting_has_its_values_and_the_best_is_chosen(study: Study) -> None:
    assert [str(each.setting) for each in study.tried if each.chosen] == [
        "a(lr=1, kind=mean())",
        "b_%(lr=0.1)",
    ]
    each = of(study, "b_%(lr=0.1)")
    views = [o.view for o in study.outcomes if str(o.setting) == "b_%(lr=0.1)"]
    means = [np.mean(v.clients["valid"]["accuracy"]) for v in views if v is not None]
    np.testing.assert_allclose(each.values["valid_mean"], means)
    assert each.mean("valid_mean") == pytest.approx(np.mean(means))
    assert each.std("valid_mean") == pytest.approx(np.std(means, ddof=1)) != np.std(means)
    lost = of(study, "lost(lr=9)")
    assert (lost.runs, lost.lost, lost.values) == (3, 3, {}) and np.isnan(lost.mean("test_mean"))


def test_the_csv_has_a_line_per_setting_with_all_digits(study: Study, tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(study.export(tmp_path / "x" / "a.csv").read_text())))
    assert [row["method"] for row in rows] == ["a", "a", "b_%", "b_%", "lost"]
    assert [row["chosen"] for row in rows] == ["0", "1", "1", "0", "0"]
    assert rows[2]["kind"] == "" and rows[0]["kind"] == "mean()" and rows[4]["test_mean"] == ""
    each = of(study, "a(lr=0.1, kind=mean())")
    for name in ("test_worst10", "valid_variance"):
        assert float(rows[0][name]) == each.mean(name)
        assert float(rows[0][f"{name}_std"]) == each.std(name)


def test_markdown_and_latex_show_percent_and_escape_names(study: Study, tmp_path: Path) -> None:
    each = of(study, "b_%(lr=0.1)")
    mean, std = 100 * each.mean("test_mean"), 100 * each.std("test_mean")
    markdown = study.export(tmp_path / "a.md").read_text().splitlines()
    assert markdown[0].startswith("| method | lr | kind | valid mean (%) |") and "(%²)" in markdown[0]
    assert markdown[4].startswith("| **b_%** | 0.1 |  |") and f"{mean:.2f} ± {std:.2g}" in markdown[4]
    assert markdown[6].endswith("3 of 3 |")
    latex = study.export(tmp_path / "a.tex").read_text()
    assert r"\textbf{b\_\%} & 0.1 &  & " in latex and rf"{mean:.2f} $\pm$ {std:.2g}" in latex
    assert r"valid mean (\%)" in latex and latex.count(r"\\") == 6 and r"\begin{tabular}{lllr" in latex
    with pytest.raises(eh.EvenhandError, match=r"\.csv, \.md or \.tex"):
        study.export(tmp_path / "a.xlsx")


def test_the_methods_and_their_differences_are_a_table_for_papers(study: Study, tmp_path: Path) -> None:
    """By hand from the lines: what is in the CSV with all digits, and in Markdown and LaTeX in percent."""
    text = study.export(tmp_path / "m.csv", "methods").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    lines = study.table()
    assert [row["method"] for row in rows] == [line.method for line in lines]
    base, other = rows[0], rows[1]
    assert base["mean_difference"] == base["mean_p"] == base["clients_better"] == ""
    assert float(other["worst10_std"]) == pytest.approx(lines[1].values["worst10"].std(ddof=1), rel=1e-12)
    for key in ("mean", "variance"):
        by = lines[1].differences[key]
        found = [float(other[f"{key}{end}"]) for end in ("_difference", "_low", "_high", "_p")]
        assert found == pytest.approx([by.mean, by.low, by.high, lines[1].p[key]], rel=1e-12)
    assert [int(other["clients_better"]), int(other["clients_worse"])] == list(lines[1].gains or ())
    assert other["setting"] == str(lines[1].setting)
    few = [study.export(tmp_path / f"m.{end}", "methods").read_text() for end in ("md", "tex")]
    assert "**" not in few[0] and r"\textbf" not in few[1], "three seeds are too few to mark anything"
    words = "Nothing is bold: p cannot reach .05 with fewer than 6 seeds."
    assert words in few[1] and words in study._repr_html_()
    study = Study(tuple(made(seeds=range(6))), Rule(), "a", "accuracy")
    lines = study.table()
    note = study.export(tmp_path / "m.md", "methods").read_text().splitlines()
    assert note[0].startswith("| method | setting | mean (%) | minus a | p | worst 10 % (%) |")
    assert (
        f"{100 * lines[1].differences['mean'].mean:.3g}" in note[3]
        and "**" in note[3]
        and "**" not in note[2]
    )
    paper = study.export(tmp_path / "m.tex", "methods").read_text()
    assert (
        r"\begin{tabular}{llrrrrrrrrrrrr}" in paper
        and r"\textbf{+" in paper
        and r"variance (\%$^2$)" in paper
    )
    assert paper.startswith("% Test accuracy over 12 clients; means over 6 seeds.\n% ±: standard deviation")
    assert all(line.startswith("% ") for line in paper.partition(r"\begin")[0].splitlines())
    words = "Bold: the interval excludes 0, and there are enough seeds for p to reach .05."
    assert words in paper and words in study._repr_html_()
    assert "95 % interval (Student's t)" in paper and "(Holm)" in paper and r"best 10 \% (\%)" in paper
    assert r"b\_\% & lr=0.1 & " in paper and "| b_% | lr=0.1 | " in note[3], "the method is not repeated"
    with pytest.raises(eh.EvenhandError, match="give 'settings' or 'methods'"):
        study.export(tmp_path / "m.csv", "all")  # type: ignore[arg-type]


def test_latex_has_no_letter_that_pdflatex_does_not_know(tmp_path: Path) -> None:
    """Its fonts for text have Latin letters, also with accents, and no Greek ones or signs."""
    outcomes = [
        outcome._replace(setting=Setting("Müller ε ≤ 1", {"μ": outcome.setting.numbers["lr"]}))
        for outcome in made()
        if outcome.setting.method == "a"
    ]
    study = Study(tuple(outcomes), Rule(), "Müller ε ≤ 1", "accuracy")
    for table in ("settings", "methods"):
        latex = study.export(tmp_path / f"{table}.tex", table).read_text()  # type: ignore[arg-type]
        text = "".join(line for line in latex.splitlines() if not line.startswith("%"))
        assert r"Müller $\varepsilon$ $\leq$ 1" in text and r"$\mu$" in text
        assert {letter for letter in text if not letter.isascii()} == {"ü"}


def test_a_legend_fits_into_the_column_of_a_paper() -> None:
    """It does not, if its rows stay those of the wider figure."""
    figure, axes = draw.single_panel("x", "y")
    for name in ("fedavg", "fedprox", "qfedavg", "term", "scaffold"):
        axes.plot([0, 1], [0, 1], label=name)
    draw.legend(figure, axes)
    for width in (4.4, 3.3, 2.0):
        eh.report.figures.fit(figure, width)
        figure.draw_without_rendering()
        assert figure.legends[0].get_window_extent().x1 <= figure.bbox.x1, width
    eh.report.figures.fit(figure, 4.4)
    for width in (0.5, 21.0, float("nan")):
        with pytest.raises(eh.EvenhandError, match=r"give inches, from 1 to 20"):
            eh.report.figures.fit(figure, width)
    figure.set_size_inches(2.0, 2.0)
    figure.draw_without_rendering()
    assert figure.legends[0].get_window_extent().x1 > figure.bbox.x1


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12))
def test_the_frontier_is_what_none_surpasses(points: list[tuple[int, int]]) -> None:
    """Brute force: each point outside is beaten by one on it, or equal to one; none on it is beaten."""
    on = [points[i] for i in frontier(np.array(points).reshape(-1, 2))]

    def beats(p: tuple[int, int], q: tuple[int, int]) -> bool:
        return p != q and p[0] >= q[0] and p[1] >= q[1]

    assert on == sorted(set(on))
    assert not any(beats(p, q) for p in points for q in on)
    assert all(p in on or any(beats(q, p) for q in on) for p in points)


def test_clients_gain_where_their_loss_falls() -> None:
    better = Study(tuple(made("loss")), Rule(metric="loss"), "a", "loss")
    lines = {line.method: line for line in better.table()}
    assert str(better.best("a")) == "a(lr=0.1, kind=mean())" and str(better.best("b_%")) == "b_%(lr=1)"
    gain, loss = lines["b_%"].gains or (0, 0)
    higher = Study(tuple(made()), Rule(), "a", "accuracy")
    a, b = (
        np.array([each.clients["test"]["accuracy"] for each in of(higher, name).views])
        for name in ("a(lr=0.1, kind=mean())", "b_%(lr=1)")
    )
    assert (gain, loss) == (np.all(b < a, 0).sum(), np.all(b > a, 0).sum()) and gain != loss


def test_a_client_gains_only_if_it_does_at_every_seed_and_seeds_must_be_equal() -> None:
    """Of twelve clients the first gains at all seeds, the second at two of three, the third loses at all."""
    change = np.zeros((3, CLIENTS))
    change[:, 0], change[:, 1], change[:, 2] = 0.1, (0.1, 0.1, -0.1), -0.1
    base = [view(np.full(CLIENTS, 0.5), seed) for seed in SEEDS]
    other = [view(0.5 + row, seed) for row, seed in zip(change, SEEDS, strict=True)]
    found = eh.report.differences(
        {"base": base, "other": other, "few": other[:2]}, "base", "test", "accuracy"
    )
    assert list(found) == ["other"] and found["other"].gains == (1, 1)
    means = change.mean(1)
    assert found["other"].by["mean"].mean == pytest.approx(means.mean())
    strangers = [run._replace(client_ids=tuple("abcdefghijkl")) for run in other]
    assert eh.report.differences({"a": base, "b": strangers}, "a", "test", "accuracy")["b"].gains is None


def test_runs_that_diverged_are_lost_as_those_that_failed_are(study: Study) -> None:
    worse = study.outcomes[0]._replace(status="diverged", reason="It grew.")
    found = Study((worse, *study.outcomes[1:]), Rule(), "a", "accuracy")
    each = found.tried[0]
    assert (each.runs, each.lost, each.values) == (3, 1, {})
    assert "1 of 15 runs diverged" in " ".join(found.remarks)


# --- figures ---------------------------------------------------------------------------------------------------------


def test_the_plane_rings_what_was_chosen_and_joins_what_none_surpasses(study: Study) -> None:
    axes = study.figures.plane().axes[0]
    rings = [np.asarray(line.get_xydata())[0] for line in axes.lines if line.get_markerfacecolor() == "none"]
    chosen = [each for each in study.tried if each.chosen]
    np.testing.assert_allclose(
        rings, [[100 * e.mean("test_mean"), 100 * e.mean("test_worst10")] for e in chosen]
    )
    np.testing.assert_allclose(np.asarray(axes.lines[0].get_xydata()), rings)  # neither surpasses the other
    losses = Study(tuple(made("loss")), Rule(metric="loss"), "a", "loss")
    best, worst = (of(losses, name) for name in ("a(lr=0.1, kind=mean())", "b_%(lr=0.1)"))
    edge = np.asarray(losses.figures.plane("valid").axes[0].lines[0].get_xdata())
    assert best.mean("valid_mean") in edge and worst.mean("valid_mean") not in edge


def test_sensitivity_takes_the_best_of_the_others_and_needs_several_values(study: Study) -> None:
    figure = study.figures.sensitivity("lr")
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    means = [100 * of(study, f"a(lr={lr}, kind=mean())").mean("valid_mean") for lr in ("0.1", "1")]
    np.testing.assert_allclose(np.asarray(lines["a"].get_xdata()), [0.1, 1.0])
    np.testing.assert_allclose(np.asarray(lines["a"].get_ydata()), means)
    assert set(lines) == {"a", "b_%"} and figure.axes[0].get_xscale() == "log"
    with pytest.raises(eh.EvenhandError, match="no method has several values"):
        study.figures.sensitivity("kind")
    words = [
        Outcome(Setting("a", {"kind": kind, "lr": lr}), 0, "done", "", view(np.full(CLIENTS, level), 0))
        for kind, lr, level in (("mean()", 1, 0.2), ("mean()", 2, 0.4), ("none", 1, 0.3))
    ]
    axes = Study(tuple(words), Rule("test", "worst10"), "a", "accuracy").figures.sensitivity("kind").axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["mean()", "none"]
    np.testing.assert_allclose(np.asarray(axes.lines[0].get_ydata()), [40, 30])
    spread = (
        Study(tuple(words), Rule("test", "variance"), "a", "accuracy").figures.sensitivity("kind").axes[0]
    )
    assert "%" not in spread.get_ylabel()


def test_sensitivity_takes_the_least_loss() -> None:
    runs = [
        Outcome(Setting("a", {"mu": mu, "lr": lr}), 0, "done", "", view(np.full(CLIENTS, level), 0, "loss"))
        for mu, lr, level in ((1, 1, 0.2), (1, 2, 0.4), (2, 1, 0.3))
    ]
    figures = Study(tuple(runs), Rule("test", "mean", metric="loss"), "a", "loss").figures
    (line,) = figures.sensitivity("mu").axes[0].lines
    np.testing.assert_allclose(np.asarray(line.get_ydata()), [0.2, 0.3])


def test_a_statistic_is_drawn_by_condition_with_intervals_over_the_seeds(study: Study) -> None:
    """Means and Student's intervals by hand; under attack, the figure is of the honest clients, and says so."""
    names = ("none", "20 %", "40 %")
    outcomes = [
        outcome._replace(
            view=None if run is None or name == "none" else run._replace(malicious=np.arange(CLIENTS) < 2)
        )
        if name != "none"
        else outcome
        for name, shift in zip(names, (0.0, -0.1, -0.3), strict=True)
        for outcome in made(case={"attack": name}, shift=shift)
        for run in [outcome.view]
    ]
    attacked = Study(tuple(outcomes), Rule(), "a", "accuracy")
    for statistic, word, scale in (("worst10", "worst tenth (%)", 100), ("variance", "variance (%²)", 1e4)):
        (axes,) = attacked.figures.by_condition(statistic).axes
        lines = {line.get_label(): line for line in axes.lines}
        part = attacked.under({"attack": "40 %"})
        values = next(line for line in part.table() if line.method == "a").values[statistic] * scale
        assert np.asarray(lines["a"].get_ydata())[2] == pytest.approx(values.mean())
        segments = axes.collections[0].get_segments()[2]  # type: ignore[attr-defined]
        half = 4.302653 * values.std(ddof=1) / np.sqrt(3)  # t of 2 degrees of freedom
        np.testing.assert_allclose(segments[:, 1], [values.mean() - half, values.mean() + half], rtol=1e-6)
        assert [tick.get_text() for tick in axes.get_xticklabels()] == list(names)
        assert axes.get_ylabel() == f"test accuracy,\n{word}"
        label = " ".join(axes.get_xlabel().split())
        assert label == "attack over 10 to 12 of 12 clients, the honest ones"
    assert list(attacked.figures.all()) == ["by_condition_mean", "by_condition_worst10"]
    with pytest.raises(eh.EvenhandError, match="perhaps you meant worst10"):
        attacked.figures.by_condition("worst_10")
    with pytest.raises(eh.EvenhandError, match="this study has a single condition"):
        study.figures.by_condition()


def test_all_figures_of_a_study_take_colours(study: Study) -> None:
    colors, drawn = {"a": "#123456"}, study.figures
    lines = [
        drawn.learning_curve,
        drawn.client_curve,
        drawn.plane,
        lambda colors: drawn.sensitivity("lr", colors=colors),
    ]
    for figure in lines:
        assert {line.get_label(): line.get_color() for line in figure(colors=colors).axes[0].lines}[
            "a"
        ] == "#123456"
    for figure in (drawn.client_histogram, drawn.size_scatter):
        assert figure(colors=colors).axes[0]._left_title.get_color() == "#123456"  # type: ignore[attr-defined]


def test_all_figures_have_names_for_files(study: Study) -> None:
    assert list(study.figures.all()) == [
        "learning_curve",
        "training_loss",
        "client_curve",
        "client_histogram",
        "size_scatter",
        "plane",
        "sensitivity_lr",
    ]


def only_at_the_end() -> Study:
    """A study whose metric is measured after the last round, as the AUC is; clients receive and send bytes."""
    outcomes = [
        outcome._replace(
            view=run._replace(
                history={
                    **{name: past for name, past in run.history.items() if "auc" not in name},
                    **{f"bytes_{way}": np.array([0.0, 1e6]) for way in ("down", "up")},
                },
                clients={split: {**of, "loss": 1 - of["auc"]} for split, of in run.clients.items()},
            )
        )
        for outcome in made("auc")
        if (run := outcome.view) is not None
    ]
    return Study(tuple(outcomes), Rule(metric="auc"), "a", "auc")


def test_a_metric_without_a_course_has_no_figure_by_round_and_the_loss_has_one(
    study: Study, tmp_path: Path
) -> None:
    late = only_at_the_end()
    assert list(late.figures.all())[:2] == ["training_loss", "client_curve"]
    assert late.figures.learning_curve().axes[0].get_ylabel() == "test loss"
    assert late.figures.client_curve().axes[0].get_ylabel() == "test auc"
    text = late.report(tmp_path / "late.html").read_text()
    assert "no finite values" not in text and "auc by round" not in text.lower()
    assert "against communication" not in text and "Training loss by round" in text
    runs = {"a": late.views("a")}
    assert not eh.report.figures.has_curve(runs, metric="auc")
    for curve in (eh.report.figures.learning_curve, eh.report.figures.metric_against):
        with pytest.raises(eh.EvenhandError, match="no run has recorded the test auc by round"):
            curve(runs, metric="auc")
    assert eh.report.figures.metric_against(runs, metric="loss").axes[0].get_ylabel() == "test loss"


def test_the_learning_curve_takes_another_metric_and_split(study: Study) -> None:
    (axes,) = study.figures.learning_curve(metric="loss", split="train").axes
    assert axes.get_ylabel() == "training loss"
    means = [run.history["train_loss"] for run in study.views("a")]
    line = next(line for line in axes.lines if line.get_label() == "a")
    np.testing.assert_allclose(np.asarray(line.get_ydata()), np.mean(means, axis=0))
    assert study.figures.learning_curve().axes[0].get_ylabel() == "test accuracy (%)"


def test_figures_embed_fonts_that_publishers_accept(study: Study, tmp_path: Path) -> None:
    """matplotlib's default, Type 3, is refused by the checks of IEEE, ACM and ICML."""
    before = {name: matplotlib.rcParams[name] for name in ("pdf.fonttype", "ps.fonttype")}
    drawn = {"plane": study.figures.plane(), "curve": eh.report.figures.client_curve(study.views("a"))}
    for name, figure in drawn.items():
        figure.savefig(path := tmp_path / f"{name}.pdf", metadata={"CreationDate": None})
        fonts = path.read_bytes()
        assert b"/Subtype /Type3" not in fonts and b"/FontFile2" in fonts
        figure.savefig(path := tmp_path / f"{name}.eps")
        assert b"/FontType 42" in path.read_bytes()
    settings: Any = matplotlib.rcParams
    assert {name: settings[name] for name in before} == before == dict.fromkeys(before, 3)


def test_names_that_spreadsheets_and_terminals_would_act_on_are_made_safe() -> None:
    """In both tables, in every column of words: methods, conditions and hyper-parameters."""
    setting = Setting("=1+1", {"=kind": "@x", "lr": -0.5}, {"=attack": "+cmd\x1b"})
    runs = [Outcome(setting, seed, "done", "", view(np.linspace(0, 1, CLIENTS), seed)) for seed in SEEDS]
    study = Study(tuple(runs), Rule(), "=1+1", "accuracy")
    (row,) = csv.DictReader(io.StringIO(settings_csv(study.tried)))
    assert row["method"] == "'=1+1" and row["'=kind"] == "'@x" and row["'=attack"] == r"'+cmd\x1b"
    assert row["lr"] == "-0.5"  # a number stays one
    (row,) = csv.DictReader(io.StringIO(methods_csv(study.table())))
    assert (
        row["method"] == "'=1+1" and row["'=attack"] == r"'+cmd\x1b" and row["setting"].startswith("'=1+1(")
    )


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_tells_what_was_chosen_and_whether_the_difference_is_real(
    study: Study, tmp_path: Path
) -> None:
    text = study.report(tmp_path / "x" / "study.html").read_text()
    assert "<h1>Study: a, b_% and lost</h1>" in text and "A note." in text
    assert "3 of 15 runs failed; the first is lost(lr=9), seed 3: No memory." in text
    assert "Chosen: a(lr=1, kind=mean()); b_%(lr=0.1)." in text
    line = next(line for line in study.table() if line.method == "b_%")
    assert f"+{100 * line.differences['mean'].mean:.1f}" in text
    assert "Is the difference real?" in text and "raised for 1 comparison" in text
    assert "fetch(" not in text and "<script src" not in text
    links = dict(re.findall(r'download="([\w.]+)" href="data:[\w/]+;charset=utf-8,([^"]+)"', text))
    for name in ("settings.csv", "settings.md", "settings.tex", "methods.csv", "methods.tex"):
        table: Any = name.partition(".")[0]
        assert unquote(links[name]) == study.export(tmp_path / name, table).read_text()
    assert text.count('<table class="numbers sortable"') == 1
    values = {float(found) for found in re.findall(r'<data value="([^"n]+)">', text)}
    assert of(study, "a(lr=0.1, kind=mean())").mean("test_worst10") in values


def test_the_page_has_each_condition_and_no_name_twice(tmp_path: Path) -> None:
    both = (*made(case={"attack": "none"}), *made(case={"attack": "flip"}, shift=-0.3))
    study = Study(both, Rule(), "a", "accuracy")
    text = study.report(tmp_path / "study.html").read_text()
    assert (
        "<h1>attack none</h1>" in text and "<h1>attack flip</h1>" in text and "Under all conditions" in text
    )
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids)) > 10
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(ids)
    calls: list[Callable[[], Any]] = [study.best, lambda: study.views("a")]
    calls += [study.figures.plane, study.figures.learning_curve, lambda: study.figures.sensitivity("lr")]
    for call in calls:
        with pytest.raises(eh.EvenhandError, match=r"2 conditions: choose one, as in study\.under"):
            call()
    assert len(study.table()) == 6 and len(study.under({"attack": "flip"}).table()) == 3


def test_the_table_of_all_conditions_says_which_examples_and_clients_it_is_about(tmp_path: Path) -> None:
    """One condition has no test examples, and one client no validation examples."""

    def without(outcome: Outcome, splits: set[str]) -> Outcome:
        if (run := outcome.view) is None:
            return outcome
        sizes = {split: sizes.copy() for split, sizes in run.sizes.items() if split not in splits}
        sizes["valid"][0] = 0
        clients = {split: dict(run.clients[split]) for split in sizes}
        clients["valid"]["accuracy"] = np.where(sizes["valid"] > 0, clients["valid"]["accuracy"], np.nan)
        return outcome._replace(view=run._replace(sizes=sizes, clients=clients))

    whole, part = made(case={"data": "whole"}), made(case={"data": "part"})
    outcomes = [without(x, set()) for x in whole] + [without(x, {"test"}) for x in part]
    result = Study(tuple(outcomes), Rule(), "a", "accuracy")
    text = result.report(tmp_path / "study.html").read_text().partition("Under all conditions")[2]
    assert text.partition('<p class="caption">')[2].startswith(
        "Validation accuracy per client in percent, at the setting that was chosen under each condition; validation: "
        "11 of 12 clients, those with validation examples<"
    )
    assert result.headline_split == "valid" and result.covers.startswith("validation accuracy over 11 of 12")


@pytest.mark.parametrize("about", [{}, {"data_seed": 4}])
def test_methods_are_compared_on_the_page_if_each_seed_has_its_own_data(
    about: dict[str, int], tmp_path: Path
) -> None:
    """The runs of a seed have the same data, and those of another seed others."""
    outcomes = [
        outcome._replace(
            view=run._replace(
                info={**run.info, "fingerprint": f"data {outcome.seed}"},
                config={**run.config, "data_seed": outcome.seed},
            )
        )
        for outcome in made(seeds=(301, 302))
        if (run := outcome.view) is not None
    ]
    text = (
        Study(tuple(outcomes), Rule(), "a", "accuracy", about=about).report(tmp_path / "x.html").read_text()
    )
    assert "side by side" not in text and "a (1)" not in text
    assert "Is the difference real?" in text
    [row] = re.findall(r"data_seed</th>\s*<td.*?>(.*?)</td>", text) or [""]
    assert row == str(about.get("data_seed", "")), "the seeds of the runs are among the facts"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Rule(), ""),
        (
            Rule(within=0.01, then="variance", near="a"),
            ": of the settings at most 1 point below a, the one with the least variance",
        ),
        (
            Rule(within=0.025, then="worst10"),
            ": of the settings within 2.5 points of the best, the one with the highest worst10",
        ),
        (Rule(then="std"), ": of equally good settings, the one with the least std"),
        (
            Rule("train", "angle", 0.5, "mean"),
            ": of the settings within 0.5 of the best, the one with the highest mean",
        ),
        (
            Rule(within=0.01, then="variance", metric="loss", near="a"),
            ": of the settings at most 0.01 above a, the one with the least variance",
        ),
    ],
)
def test_the_facts_say_by_which_rule_settings_were_chosen(rule: Rule, words: str) -> None:
    metric = rule.metric or "accuracy"
    split = {"valid": "validation", "train": "training"}[rule.split]
    last = Study(tuple(made(metric)), rule, "a", metric).facts[-1]
    assert last == f"chosen by the {split} {metric} ({rule.statistic}){words}"


def test_a_page_of_nothing_but_lost_runs_says_so(tmp_path: Path) -> None:
    lost = Study(tuple(each for each in made() if each.view is None), Rule(), "lost", "accuracy")
    assert "so there is nothing to compare" in lost.report(tmp_path / "study.html").read_text()
