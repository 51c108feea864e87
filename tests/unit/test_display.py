"""What a notebook shows of data, runs, studies and reports: the numbers, their clients, and no foreign markup."""

from __future__ import annotations

import re
import warnings
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import evenhand as eh
from evenhand import notebook
from evenhand.data import FederatedDataset, Split
from evenhand.report import ReportPath

HOSTILE = "</title></svg><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x1b"
TAGS = {
    *("div", "style", "p", "strong", "code", "span", "br", "table", "thead", "tbody", "tr", "th", "td"),
    *("svg", "path", "rect", "text", "title", "progress", "iframe"),
}


class Parsed(NamedTuple):
    tags: list[str]
    attributes: list[tuple[str, str | None]]
    text: str


def parsed(html: str) -> Parsed:
    """The tags in order, all attributes, and the text outside of the style."""

    class Reader(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.tags, self.open, self.text = list[str](), list[str](), list[str]()
            self.attributes = list[tuple[str, str | None]]()

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.tags.append(tag)
            self.attributes += attrs
            if tag != "br":
                self.open.append(tag)

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.tags.append(tag)
            self.attributes += attrs

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

        def handle_data(self, data: str) -> None:
            if "style" not in self.open:
                self.text.append(data)

    reader = Reader()
    reader.feed(html)
    reader.close()
    assert not reader.open, "each tag is closed"
    return Parsed(reader.tags, reader.attributes, " ".join(" ".join(reader.text).split()))


def check_harmless(html: str) -> str:
    """Nothing in it runs, is fetched or was made by whoever named a client; returns its text, with plain spaces."""
    tags, attributes, text = parsed(html)
    assert set(tags) <= TAGS
    assert not [
        name for name, _ in attributes if name.startswith("on") or name in ("src", "href", "xlink:href")
    ]
    assert "url(" not in html and "@import" not in html and "\x1b" not in html
    return text


def data(sizes: list[int], ids: tuple[str, ...], **more: Any) -> FederatedDataset:
    """Clients of these sizes with two classes, of which a third of the examples are of the second."""

    def split(sizes: list[int]) -> Split:
        y = (np.arange(sum(sizes)) % 3 == 2).astype(np.int32)
        x = np.random.default_rng(0).normal(size=(len(y), 4)) + 0.7 * y[:, None]
        return Split(x, y, np.concatenate([[0], np.cumsum(sizes)]))

    return FederatedDataset(split(sizes), split([2] * len(sizes)), split([3] * len(sizes)), ids, **more)


SIZES, IDS = [30, 6, 9, 3, 12], (HOSTILE, "b", "c", "d", "e")
DATA = data(SIZES, IDS, name=HOSTILE, client_column=HOSTILE, notes=(HOSTILE,), classes=("no", HOSTILE))
WORK = eh.local.sgd(eh.models.softmax_regression(features=4, classes=2), 0.1, epochs=1, batch_size=3)


@pytest.fixture(scope="module")
def run() -> eh.simulation.Run:
    return eh.simulate(eh.algorithms.fedavg(WORK), DATA, rounds=4, eval_every=1)


@pytest.fixture(scope="module")
def study() -> eh.studies.Study:
    methods = {"fedavg": eh.algorithms.fedavg(WORK), HOSTILE: eh.algorithms.fedprox(WORK, mu=5.0)}
    return eh.study(methods, DATA, rounds=3, seeds=3)


# --- data ----------------------------------------------------------------------------------------------------------


def test_data_are_shown_with_sizes_extremes_and_labels() -> None:
    text = check_harmless(DATA._repr_html_())
    assert "60 training, 10 validation and 15 test examples" in text and "features: float32, 4 each" in text
    assert f"training 60 3 {np.median(SIZES):g} {np.mean(SIZES):.1f} 30" in text
    assert "with 30 and smallest d with 3." in text
    assert "Labels: 2 classes" in text and "no (66.7 %)" in text and "(33.3 %)" in text
    hints = re.findall("<title>(.*?)</title>", DATA._repr_html_())
    assert [unescape(hint).rsplit(": ", 1)[1].split()[0] for hint in hints[1:]] == ["12", "9", "6", "3"]


def test_bars_are_as_long_as_the_clients_are_large() -> None:
    heights = [float(x) for x in re.findall(r'<rect [^>]*height="([\d.]+)"', DATA._repr_html_())]
    assert np.allclose(np.array(heights) / heights[0], np.sort(SIZES)[::-1] / 30, atol=0.01)


def test_many_clients_share_bars() -> None:
    ids = tuple(map(str, range(1000)))
    html = data([1 + k % 7 for k in range(1000)], ids)._repr_html_()
    assert html.count("<rect") == notebook.BARS and "about 10 clients" in html
    assert len(html) < 20_000


def test_without_numbers_there_are_no_bars() -> None:
    assert notebook.bars([], [], "Training examples") == ""


def test_clients_of_one_size_need_no_chart() -> None:
    html = data([4, 4], ("a", "b"))._repr_html_()
    assert "Each of the 2 clients has 4 training examples." in html and "<svg" not in html
    assert "The client has 1 training example." in data([1], ("a",))._repr_html_()


def test_real_targets_are_shown_with_their_range() -> None:
    y = np.array([-2.0, 1.0, 5.0])
    rows = Split(np.ones((3, 2)), y, np.array([0, 3]))
    assert "real targets from −2 to 5, median 1" in FederatedDataset(rows, rows, rows, ("a",))._repr_html_()


# --- runs ----------------------------------------------------------------------------------------------------------


def test_a_run_is_shown_with_its_course_and_the_clients_of_its_ends(run: eh.simulation.Run) -> None:
    text = check_harmless(run._repr_html_())
    accuracy = run.client_metrics("test")["accuracy"]
    summary = run.summary()
    assert f"test accuracy {100 * summary['mean']:.1f} % {100 * summary['worst10']:.1f} %" in text
    assert "5 clients, 4 rounds, cohort 5, seed 0" in text
    worst = re.search(r"Worst 10 %: 1 client \((.*?)\)\. Best", text)
    assert worst and accuracy[[notebook_name(k) for k in range(5)].index(worst[1])] == accuracy.min()
    paths = re.findall(r'<path d="(M[^"]*L[^"]*)" fill="none"', run._repr_html_())
    assert [path.count("L") for path in paths] == [4, 4, 4], "five evaluations of three statistics"


def notebook_name(k: int) -> str:
    return unescape(notebook.name(IDS[k]))


def test_a_course_ends_where_the_run_ends(run: eh.simulation.Run) -> None:
    """The height of the last point is that of the last value between the lowest and the highest of all."""
    keys = ["test_accuracy_mean", "test_accuracy_worst10", "test_accuracy_best10"]
    values = np.array([run.history[key] for key in keys])
    paths = re.findall(r'<path d="(M[^"]*L[^"]*)" fill="none"', run._repr_html_())
    last = np.array([float(path.split()[-1]) for path in paths])
    rules = [float(y) for y in re.findall(r'<path d="M48 (\d+)H', run._repr_html_())]
    top, bottom = min(rules), max(rules)
    share = (values[:, -1] - values.min()) / (values.max() - values.min())
    assert np.allclose(last, bottom - share * (bottom - top), atol=0.06)


def test_what_is_wrong_with_a_run_comes_first() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        broken = eh.local.sgd(
            eh.models.softmax_regression(features=4, classes=2), 1e30, epochs=2, batch_size=3
        )
        run = eh.simulate(eh.algorithms.fedavg(broken), DATA, rounds=2)
    text = check_harmless(run._repr_html_())
    assert run.findings and text.startswith(run.findings[0].sentence[:60])


def test_a_run_that_was_read_back_is_shown_alike(run: eh.simulation.Run, tmp_path: Path) -> None:
    html = eh.load_run(run.save(tmp_path / "run"))._repr_html_()
    assert check_harmless(html) == check_harmless(run._repr_html_())


def test_a_gap_is_left_where_a_value_is_not_finite() -> None:
    line = np.array([1.0, np.nan, 2.0, 3.0])
    [path] = re.findall(
        r'<path d="(M[^"]*)" fill', notebook.curves([0, 1, 2, 3], {"a": line}, "t", ("1", "3"))
    )
    assert (path.count("M"), path.count("L")) == (2, 1)
    assert notebook.curves([0, 1], {"a": line[:1]}, "t", ("", "")) == ""
    many = np.linspace(0, 1, 10_000)
    assert len(notebook.curves(np.arange(10_000), {"a": many}, "t", ("0", "1"))) < 5000


# --- studies -------------------------------------------------------------------------------------------------------


def test_a_study_is_shown_with_its_settings_and_differences(study: eh.studies.Study) -> None:
    text = check_harmless(study._repr_html_())
    assert text.startswith(study.remarks[0][:60]), "what a reader must know comes first"
    base, other = study.table()
    assert f"fedavg() {100 * base.values['mean'].mean():.3g}"[:12] in text
    difference = 100 * other.differences["mean"].mean
    assert f"{difference:+.3g}".replace("-", "−")[:4] in text.split("Minus fedavg in percentage points")[1]
    assert "2 settings · 3 seeds · 6 runs · one setting each" in text
    assert "over 5 clients" in text


def test_a_study_of_one_seed_has_no_differences_and_one_under_conditions_has_all_of_them() -> None:
    methods = {"fedavg": eh.algorithms.fedavg(WORK), "fedprox": eh.algorithms.fedprox(WORK, mu=1.0)}
    attacks = {"none": None, HOSTILE: eh.attacks.sign_flip(0.2)}
    study = eh.study(methods, DATA, rounds=2, seeds=1, attack=attacks)
    text = check_harmless(study._repr_html_())
    assert "Minus" not in text and parsed(study._repr_html_()).tags.count("tr") == 1 + 4


def test_a_figure_has_a_bar_for_each_client_with_a_part_for_each_class() -> None:
    figure: Any = DATA.figure("valid")
    (axes,) = figure.axes
    counts = DATA.label_counts("valid")
    for label, bars in enumerate(axes.containers):
        assert [bar.get_height() for bar in bars] == counts[:, label].tolist()
        assert [bar.get_y() for bar in bars] == counts[:, :label].sum(axis=1).tolist()
    assert axes.get_xlabel() == "5 clients" and axes.get_ylabel() == "validation examples"
    assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == "no"
    assert figure._repr_png_()[0].startswith(b"\x89PNG")


def test_of_many_clients_a_figure_shows_some_and_says_so() -> None:
    sizes = [1 + k % 70 for k in range(300)]
    (axes,) = data(sizes, tuple(map(str, range(300)))).figure().axes
    heights = np.sum([[bar.get_height() for bar in bars] for bars in axes.containers], axis=0)
    assert len(heights) == 60 and heights[0] == 70 and heights[-1] == 1 and np.all(np.diff(heights) <= 0)
    assert axes.get_xlabel() == "60 of 300 clients, from the largest to the smallest"


# --- comparisons and figures ---------------------------------------------------------------------------------------


def test_a_comparison_is_shown_with_its_verdict_and_its_best_in_bold(run: eh.simulation.Run) -> None:
    slow = eh.local.sgd(eh.models.softmax_regression(features=4, classes=2), 1e-4, epochs=1, batch_size=3)
    other = eh.simulate(eh.algorithms.fedavg(slow), DATA, rounds=4)
    comparison = eh.report.compare({"fast": run, HOSTILE: other})
    text = check_harmless(comparison._repr_html_())
    means = [r.summary()["mean"] for r in (run, other)]
    assert means[0] != means[1]
    best = f"{100 * max(means):.4g}"
    bold = re.findall("<strong>(.*?)</strong>", comparison._repr_html_())
    assert bold and bold[0] == best, "one seed each: the better mean is marked"
    assert eh.report.verdict(comparison).split(" (")[0].split()[0] in text and "over 5 clients" in text
    shown = repr(comparison)
    assert len(shown) < 300 and "fast" in shown and "test accuracy over 5 clients, 1 seed each" in shown


def test_a_comparison_that_is_unfair_marks_nothing(run: eh.simulation.Run) -> None:
    longer = eh.simulate(eh.algorithms.fedprox(WORK, mu=5.0), DATA, rounds=5)
    html = eh.report.compare({"a": run, "b": longer})._repr_html_()
    assert "<strong>" not in html and "not compared: they differ in their rounds (4, 5)" in check_harmless(
        html
    )


def test_a_figure_shows_itself_where_pyplot_was_never_imported(run: eh.simulation.Run) -> None:
    figure: Any = eh.report.figures.learning_curve(run)
    image, size = figure._repr_png_()
    assert image.startswith(b"\x89PNG")
    pixels = [int.from_bytes(image[i : i + 4], "big") for i in (16, 20)]
    # Twice as many pixels in each direction as the page has for it, up to rounding.
    assert np.allclose(pixels, [2 * size["width"], 2 * size["height"]], atol=2)


# --- reports -------------------------------------------------------------------------------------------------------


def test_a_report_is_a_path_that_shows_its_page(run: eh.simulation.Run, tmp_path: Path) -> None:
    path = run.report(tmp_path / "report.html")
    assert path == tmp_path / "report.html" and isinstance(path, Path) and isinstance(path, ReportPath)
    html = path._repr_html_()
    assert html is not None
    tags, attributes, _ = parsed(html)
    assert set(tags) <= TAGS and tags.count("iframe") == 1
    frame = dict(attributes)
    assert frame["srcdoc"] == path.read_text("utf-8")
    assert frame["sandbox"] is not None and "same-origin" not in frame["sandbox"]
    assert "src" not in frame


def test_a_large_page_is_named_and_other_paths_are_shown_as_such(tmp_path: Path) -> None:
    path = ReportPath(tmp_path / "report.html")
    assert path._repr_html_() is None, "there is no file"
    path.write_text("x" * 4_000_001)
    html = path._repr_html_()
    assert html is not None and "iframe" not in parsed(html).tags and "4.00 MB" in html
    assert ReportPath(tmp_path)._repr_html_() is None
    assert repr(path) == f"ReportPath({str(path)!r})"


def test_the_page_of_a_study_is_shown_too(study: eh.studies.Study, tmp_path: Path) -> None:
    path = study.report(tmp_path / "study.html")
    assert isinstance(path, ReportPath) and "srcdoc" in (path._repr_html_() or "")


# --- all of them ---------------------------------------------------------------------------------------------------


def test_what_is_shown_is_small(run: eh.simulation.Run, study: eh.studies.Study) -> None:
    for html in (DATA._repr_html_(), run._repr_html_(), study._repr_html_(), run.summary()._repr_html_()):
        assert len(html) < 12_000
        check_harmless(html)


def test_colours_stand_out_on_white_and_on_black() -> None:
    """At least 3:1, the least contrast that WCAG asks of graphics."""

    def luminance(colour: str) -> float:
        parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    for colour in notebook.COLOURS:
        for page in ("#ffffff", "#1e1e1e"):
            low, high = sorted((luminance(colour), luminance(page)))
            assert (high + 0.05) / (low + 0.05) >= 3.0, (colour, page)
