"""The report and its figures: true numbers, safe text, nothing fetched, nothing broken at the edges."""

from __future__ import annotations

import csv
import html
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenhand.errors import EvenhandError
from evenhand.evaluation import RunView, figures, summarize, write_clients_csv, write_report

VOID = {"meta", "link", "br", "img", "hr", "input"}
NASTY = "<script>alert('x')</script> & \"$5$ _α 数"


def view(
    title: str = "fedavg", clients: int = 30, *, seed: int = 0, accuracy: bool = True, **changes: Any
) -> RunView:
    """A run with everything a report shows; the last client has no test rows."""
    rng = np.random.default_rng(seed)
    train = rng.integers(5, 400, clients)
    test = np.maximum(train // 5, 1)
    test[-1] = 0 if clients > 1 else test[-1]
    loss = rng.gamma(2.0, 0.3, clients)
    last = {"loss": np.where(test > 0, loss, np.nan), "accuracy": np.where(test > 0, np.exp(-loss), np.nan)}
    first = {"loss": 0.9 * loss, "accuracy": np.exp(-0.9 * loss)}
    rounds = np.arange(0, 51, 10)
    history = {"round": rounds, "mu": 0.1 * rounds, "constant": np.ones(6)}
    for split in ("train", "test"):
        history |= {f"{split}_loss": np.exp(-rounds / 20), f"{split}_accuracy": 1 - np.exp(-rounds / 20) / 2}
    history |= {"test_accuracy_worst10": 1 - np.exp(-rounds / 40), "test_accuracy_best10": np.full(6, 0.99)}
    if not accuracy:
        history = {key: values for key, values in history.items() if "accuracy" not in key}
        del last["accuracy"], first["accuracy"]
    info = {"rounds": 50, "cohort": 10, "seed": seed, "method": title, "data": "digits"}
    info |= {
        "seconds": {"compile": 1.5, "train": 2.5},
        "command": f"evenhand run {title}",
        "versions": {"jax": "0.10"},
    }
    made = RunView(
        title=title,
        history=history,
        sizes={"train": train, "valid": np.zeros_like(train), "test": test},
        client_ids=[f"user {k}" for k in range(clients)],
        clients={"train": first, "test": last},
        info=info,
        config={"method": title, "mu": 0.1 + 0.2, "data": {"name": "digits", "clients": clients}},
    )
    return made._replace(**changes)


class Page(HTMLParser):
    """Checks that tags nest, and collects what the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"<{tag}> repeats an attribute"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def values(self, name: str) -> list[str]:
        return [value for _, attrs in self.tags if (value := attrs.get(name)) is not None]


def report(path: Path, *runs: RunView, **options: Any) -> tuple[str, Page]:
    text = write_report(path / "folder" / "report.html", runs, **options).read_text(encoding="utf-8")
    return text, Page(text)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Page]:
    return report(tmp_path_factory.mktemp("one"), view())


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Page]:
    ids = [f"{NASTY}{k}" for k in range(30)]
    bad = view(NASTY, client_ids=ids, config={NASTY: NASTY, "text": ["a", None]})
    return report(tmp_path_factory.mktemp("nasty"), bad, view("fedprox", seed=1), view("_private", seed=2))


def test_page_stands_alone(one: tuple[str, Page], nasty: tuple[str, Page]) -> None:
    for text, page in (one, nasty):
        assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "img"}
        outside = set(re.findall(r"(?:https?:)?//[\w.]+[^\"' <]*", text))
        assert outside <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
        assert not re.search(r"@import|url\((?!#)", text)
        assert len(text) < 1_000_000


def test_references_inside_figures_hold(nasty: tuple[str, Page]) -> None:
    text, page = nasty
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    wanted = set(re.findall(r"url\(#([^)]+)\)", text)) | {ref[1:] for ref in page.values("xlink:href")}
    assert wanted
    assert wanted <= set(ids)


def test_text_is_escaped(nasty: tuple[str, Page]) -> None:
    text, page = nasty
    assert "<script" not in text
    assert html.escape(NASTY) in text
    assert any(NASTY in data for data in page.text)


def test_figures_speak_to_those_who_cannot_see_them(one: tuple[str, Page]) -> None:
    _, page = one
    plots = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(plots) == 6  # accuracy, loss, histogram, clients, sizes, and mu, which moved
    assert all(attrs["role"] == "img" and len(attrs["aria-label"] or "") > 10 for attrs in plots)
    assert [attrs for tag, attrs in page.tags if tag == "html"] == [{"lang": "en"}]


def test_colours_follow_the_page(one: tuple[str, Page]) -> None:
    text, _ = one
    body = text[text.index("<body>") :]
    assert "var(--ink)" in body
    assert "var(--c0)" in body
    assert "#0072b2" not in body


def test_numbers_are_those_of_the_summary(one: tuple[str, Page]) -> None:
    text, _ = one
    run = view()
    stats = summarize(run.clients["test"]["accuracy"], run.sizes["test"])
    shown = {
        "Mean over clients": f"{100 * stats['mean']:.1f}\u202f%",
        "Mean over rows": f"{100 * stats['weighted_mean']:.1f}\u202f%",
        "Worst 10 % of clients": f"{100 * stats['worst10']:.1f}\u202f%",
        "Jain&#x27;s index": f"{stats['jain']:.4f}",
        "Clients with rows": "29",
    }
    for name, number in shown.items():
        row = re.search(rf'<th scope="row">{re.escape(name)}</th>\s*<td class="number">([^<]*)</td>', text)
        assert row is not None, name
        assert row[1] == number, name
    assert "0.3<" in text  # not 0.30000000000000004
    assert "20.0<" in text  # 50 rounds in 2.5 seconds
    worst = min(run.clients["test"]["accuracy"][:-1])
    assert text.index(f"{100 * worst:.1f}\u202f%", text.index("ten worst served")) > 0


def test_comparison_names_the_best(tmp_path: Path) -> None:
    even = view("even", seed=1)
    flat = {"accuracy": np.full(30, 0.5), "loss": np.full(30, 1.0)}
    even = even._replace(clients={"train": flat, "test": flat})
    spiky = even._replace(
        title="spiky", clients={"train": flat, "test": {**flat, "accuracy": np.r_[np.zeros(5), np.ones(25)]}}
    )
    text, page = report(tmp_path, spiky, even)
    (lead,) = re.findall(r'<p class="lead">(.*)</p>', text)
    assert "served best by spiky" in lead
    assert "worst tenth of the clients by even (50.0\u202f%)" in lead
    best = {
        name: re.findall(
            rf'<th scope="row">{name}</th>\s*<td class="number( best)?">.*\s*<td class="number( best)?">',
            text,
        )
        for name in (
            "Mean over clients",
            "Worst 10 % of clients",
            "Standard deviation",
            "Entropy",
            "Clients with rows",
        )
    }
    spiky_wins, even_wins, nobody_wins = (" best", ""), ("", " best"), ("", "")
    assert [found[0] for found in best.values()] == [spiky_wins, even_wins, even_wins, even_wins, nobody_wins]
    assert "Comparison: spiky, even" in page.text


def test_metrics_of_which_less_is_better(tmp_path: Path) -> None:
    good, bad = view("good", accuracy=False), view("bad", accuracy=False, seed=3)
    worse = {split: {"loss": 10 * good.clients[split]["loss"]} for split in good.clients}
    text, _ = report(tmp_path, bad._replace(clients=worse, sizes=good.sizes), good)
    assert "served best by good" in text
    assert "accuracy" not in text[text.index("<body>") :].replace("Accuracy", "accuracy")


def test_same_run_same_page(tmp_path: Path, one: tuple[str, Page]) -> None:
    assert report(tmp_path, view())[0] == one[0]


@pytest.mark.parametrize(
    "run",
    [
        view(clients=1),
        view(clients=2, info={}, config={}, history={"round": np.zeros(0)}),
        view(clients=3, history={"round": np.arange(3), "B": [1, np.inf, 2]}, config={"a": {"b": {"c": 1}}}),
        view(accuracy=False, sizes={"train": np.full(30, 7), "test": np.zeros(30, int)}),
    ],
    ids=["one client", "knows nothing", "odd history", "no test rows"],
)
def test_edges(tmp_path: Path, run: RunView) -> None:
    text, _ = report(tmp_path, run)
    assert "nan" not in re.sub(r"<[^>]*>", "", text[text.index("<body>") :]).lower().split()


def test_divergence_is_told(tmp_path: Path) -> None:
    lost = {split: {"loss": np.full(30, np.nan)} for split in ("train", "test")}
    gone = view(accuracy=False)._replace(clients=lost)
    text, _ = report(tmp_path, gone)
    assert "Training diverged" in text
    text, _ = report(tmp_path, gone, view("sound", accuracy=False))
    assert "served best by sound" in text


def test_many_clients_stay_small(tmp_path: Path) -> None:
    runs = [view(f"run {i}", 1000, seed=i) for i in range(3)]
    text, _ = report(tmp_path, *runs, title="Three of them")
    assert len(text.encode()) < 1_000_000
    assert "<h1>Three of them</h1>" in text


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvenhandError, match="no run to report on"):
        write_report(tmp_path / "report.html", [])
    with pytest.raises(EvenhandError, match="No split has a loss per client in every run"):
        write_report(tmp_path / "report.html", [view()._replace(clients={})])
    assert not (tmp_path / "report.html").exists()


def test_learning_curve_shows_the_history() -> None:
    run = view()
    (axes,) = figures.learning_curve([run], "accuracy", "test").axes
    lines = {line.get_label(): line for line in axes.lines}
    np.testing.assert_allclose(lines["test rows"].get_ydata(), 100 * run.history["test_accuracy"])
    np.testing.assert_allclose(lines["test rows"].get_xdata(), run.history["round"])
    assert len(axes.collections) == 1  # the band
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "accuracy (%)")
    (axes,) = figures.learning_curve([run, view("b", seed=1)], "accuracy", "test").axes
    assert len(axes.lines) == 4
    assert not axes.collections


def test_long_histories_are_thinned_but_keep_their_ends() -> None:
    rounds = np.arange(20_000)
    (axes,) = figures.series([view(history={"round": rounds, "mu": rounds * 0.5})], "mu").axes
    x = np.asarray(axes.lines[0].get_xdata())
    assert len(x) <= 500
    assert (x[0], x[-1]) == (0, 19_999)


@pytest.mark.parametrize("clients", [1, 30, 400])
def test_histogram_holds_every_client(clients: int) -> None:
    for metric in ("accuracy", "loss"):
        run = view(clients=clients)
        (axes,) = figures.client_histogram([run], metric, "test").axes
        counted = sum(patch.get_height() for patch in axes.patches)
        assert counted == np.isfinite(run.clients["test"][metric]).sum()
    panels = figures.client_histogram([view(), view("b", seed=1), view("c", seed=2)], "accuracy", "test").axes
    assert len(panels) == 3


def test_published_bins_for_many_clients() -> None:
    (axes,) = figures.client_histogram([view(clients=400)], "accuracy", "test").axes
    widths = [patch.get_width() / 0.92 for patch in axes.patches]
    np.testing.assert_allclose(widths, 100 / 39)


def test_client_curve_starts_with_the_worst() -> None:
    for metric, sign in (("accuracy", 1), ("loss", -1)):
        (axes,) = figures.client_curve([view()], metric, "test").axes
        y = sign * np.asarray(axes.lines[0].get_ydata())
        assert len(y) == 29
        assert (np.diff(y) >= 0).all()


def test_scatter_has_every_client_and_medians_of_many() -> None:
    (axes,) = figures.size_scatter([view()], "accuracy", "test").axes
    assert [len(line.get_xdata()) for line in axes.lines] == [29]
    run = view(clients=80)
    (axes,) = figures.size_scatter([run], "accuracy", "test").axes
    points, medians = axes.lines
    assert (len(points.get_xdata()), len(medians.get_xdata())) == (79, 8)
    assert axes.get_xscale() == "log"
    np.testing.assert_array_equal(points.get_xdata(), run.sizes["train"][:-1])
    alike = view(sizes={"train": np.full(30, 9), "test": np.full(30, 3)})
    assert figures.size_scatter([alike], "accuracy", "test").axes[0].get_xscale() == "linear"


def test_legends_tell_equal_titles_apart() -> None:
    figure = figures.client_curve([view("a"), view("a", seed=1), view("_b$c$", seed=2)], "accuracy", "test")
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["a (1)", "a (2)", r" _b\$c\$"]


def test_a_legend_of_four_methods_takes_two_lines() -> None:
    """In one line, browsers with a wide font cut the last of these names off."""

    def height(titles: list[str]) -> float:
        runs = [view(title, seed=seed) for seed, title in enumerate(titles)]
        return figures.client_curve(runs, "accuracy", "test").get_figheight()

    one_line = height(["a", "b", "c", "d"])
    assert height(["fedavg", "qfedavg q=1.0", "term t=1.0", "delta-fl theta=0.5"]) > one_line
    assert height(["fedavg", "qfedavg q=1.0", "term t=1.0"]) == one_line


def test_clients_csv(tmp_path: Path) -> None:
    run = view(clients=3, client_ids=["plain", 'with "quotes", and comma', "数"])
    write_clients_csv(tmp_path / "deep" / "clients.csv", run)
    with (tmp_path / "deep" / "clients.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        *("client", "train_rows", "valid_rows", "test_rows"),
        *("train_loss", "train_accuracy", "test_loss", "test_accuracy"),
    ]
    assert [row["client"] for row in rows] == list(run.client_ids)
    assert [int(row["train_rows"]) for row in rows] == run.sizes["train"].tolist()
    assert [row["test_accuracy"] for row in rows[2:]] == [""]
    found = [float(row["test_accuracy"]) for row in rows[:2]]
    np.testing.assert_allclose(found, run.clients["test"]["accuracy"][:2], rtol=1e-8)


def test_training_does_not_load_matplotlib() -> None:
    code = "import sys, evenhand.evaluation; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
