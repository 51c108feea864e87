"""The report and its figures: true numbers, safe text, nothing fetched, nothing broken at the edges."""

from __future__ import annotations

import csv
import errno
import html
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reported import view
from rich.console import Console

from evenhand.cli._terminal import show_comparison
from evenhand.errors import EvenhandError, StorageError
from evenhand.evaluation import CLASS_COLUMNS, RAREST, summarize
from evenhand.report import RunView, compare, read_clients_csv, tables, write_clients_csv, write_report

pytestmark = pytest.mark.draws

VOID = {"meta", "link", "br", "img", "hr", "input"}
NASTY = "<script>alert('x')</script> & \"$5$ _α 数"


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


def test_the_page_loads_nothing_from_outside(one: tuple[str, Page], nasty: tuple[str, Page]) -> None:
    for text, page in (one, nasty):
        assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "img"}
        outside = set(re.findall(r"(?:https?:)?//[\w.]+[^\"' <]*", text))
        assert outside <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
        assert not re.search(r"@import|url\((?!#)", text)
        assert len(text) < 1_000_000


def test_references_inside_figures_exist(nasty: tuple[str, Page]) -> None:
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


def test_figures_have_descriptions_for_screen_readers(one: tuple[str, Page]) -> None:
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
        "Mean over examples": f"{100 * stats['weighted_mean']:.1f}\u202f%",
        "Worst 10 % of clients": f"{100 * stats['worst10']:.1f}\u202f%",
        "Jain&#x27;s index": f"{stats['jain']:.4f}",
        "Clients with examples": "29",
    }
    for name, number in shown.items():
        row = re.search(rf'<th scope="row">{re.escape(name)}</th>\s*<td class="number">([^<]*)</td>', text)
        assert row is not None, name
        assert row[1] == number, name
    assert "0.3<" in text  # not 0.30000000000000004
    assert "20.0<" in text  # 50 rounds in 2.5 seconds
    worst = min(run.clients["test"]["accuracy"][:-1])
    assert text.index(f"{100 * worst:.1f}\u202f%", text.index("The clients, worst served first")) > 0


def test_of_more_than_thirty_clients_the_ten_worst_are_listed(tmp_path: Path) -> None:
    for clients, listed, title in (
        (31, 30, "The clients, worst served first"),
        (32, 10, "The ten worst-served clients"),
    ):
        text = write_report(
            tmp_path / "r.html", view(clients=clients)
        ).read_text()  # the last has no test rows
        table = text[text.index(f"<h2>{title}</h2>") :].partition("</section>")[0]
        assert table.count("user ") == listed


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
            "Clients with examples",
        )
    }
    spiky_wins, even_wins, none_wins = (" best", ""), ("", " best"), ("", "")
    assert [found[0] for found in best.values()] == [spiky_wins, even_wins, even_wins, even_wins, none_wins]
    assert "Comparison: spiky, even" in page.text


def test_a_loss_is_better_where_it_is_lower(tmp_path: Path) -> None:
    good, bad = view("good", accuracy=False), view("bad", accuracy=False, seed=3)
    worse = {split: {"loss": 10 * good.clients[split]["loss"]} for split in good.clients}
    text, _ = report(tmp_path, bad._replace(clients=worse, sizes=good.sizes), good)
    assert "served best by good" not in text and "differ in their seeds (3; 0)" in text
    text, _ = report(tmp_path, good._replace(title="bad", clients=worse), good)
    assert "served best by good" in text
    assert "accuracy" not in text[text.index("<body>") :].replace("Accuracy", "accuracy")


def test_the_same_run_gives_the_same_page(tmp_path: Path, one: tuple[str, Page]) -> None:
    assert report(tmp_path, view())[0] == one[0]


@pytest.mark.parametrize(
    "run",
    [
        view(clients=1),
        view(clients=2, info={}, config={}, history={"round": np.zeros(0)}),
        view(clients=3, history={"round": np.arange(3), "B": [1, np.inf, 2]}, config={"a": {"b": {"c": 1}}}),
        view(accuracy=False, sizes={"train": np.full(30, 7), "test": np.zeros(30, int)}),
    ],
    ids=["one client", "no history", "odd history", "no test rows"],
)
def test_unusual_runs_have_a_page_without_nan(tmp_path: Path, run: RunView) -> None:
    text, _ = report(tmp_path, run)
    assert "nan" not in re.sub(r"<[^>]*>", "", text[text.index("<body>") :]).lower().split()


def test_divergence_is_reported(tmp_path: Path) -> None:
    lost = {split: {"loss": np.full(30, np.nan)} for split in ("train", "test")}
    diverged = view(accuracy=False)._replace(clients=lost)
    text, _ = report(tmp_path, diverged)
    assert "Training diverged" in text
    text, _ = report(tmp_path, diverged, view("sound", accuracy=False))
    assert "All methods but sound diverged, so none is called the best." in text


def test_many_clients_stay_small(tmp_path: Path) -> None:
    runs = [view(f"run {i}", 1000, seed=i) for i in range(3)]
    text, _ = report(tmp_path, *runs, title="Three of them")
    assert len(text.encode()) < 1_000_000
    assert "<h1>Three of them</h1>" in text


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvenhandError, match="no run to report on"):
        write_report(tmp_path / "report.html", [])
    with pytest.raises(EvenhandError, match=r"has the metric loss per client in every run \('b' has none\)"):
        write_report(tmp_path / "report.html", [view(), view("b")._replace(clients={})])
    assert not (tmp_path / "report.html").exists()


def test_a_full_disk_leaves_the_page_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_report(tmp_path / "report.html", [view()])
    page, write = path.read_bytes(), Path.write_bytes

    def full(path: Path, content: bytes) -> None:
        write(path, content[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(
            StorageError, match=r"The page could not be written to .*\(No space left on device\)"
        ):
            write_report(path, [view(seed=1)])
    assert path.read_bytes() == page and list(tmp_path.iterdir()) == [path]
    assert write_report(path, [view(seed=1)]).read_bytes() != page


@pytest.mark.skipif(sys.platform == "win32", reason="it has no named pipes in folders")
def test_a_page_goes_to_what_is_no_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(pipe.read_bytes)
        write_report(pipe, [view()])
        assert b"</html>" in reader.result(60)
    assert pipe.is_fifo()


def test_the_table_of_clients_has_one_line_per_client(tmp_path: Path) -> None:
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


def test_names_that_spreadsheets_and_terminals_would_act_on_are_made_safe(tmp_path: Path) -> None:
    names = ["a\x1b[31m\u202eb", "=SUM(A1)", "-5", "-x", "\ud800"]
    run = view("\ud800\x1b[1m", clients=5, client_ids=names, config={"\x07": "\udcff"})
    write_clients_csv(tmp_path / "clients.csv", run)
    with (tmp_path / "clients.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["client"] for row in rows] == [r"a\x1b[31m\u202eb", "'=SUM(A1)", "-5", "'-x", r"\ud800"]
    assert list(read_clients_csv(tmp_path / "clients.csv").client_ids) == names
    text, page = report(tmp_path, run, run._replace(title="שלום"))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\ud800-\udfff]", text)
    assert r"\x07" in page.text and r"\udcff" in page.text and r"a\x1b[31m\u202eb" in page.text
    assert f"{chr(0x2068)}שלום{chr(0x2069)}" in "".join(page.text)


def test_several_seeds_are_one_method(tmp_path: Path) -> None:
    def seed(title: str, number: int, shift: float) -> RunView:
        run = view(title)
        moved = run.clients["test"]["accuracy"] * 0.8 + shift * (1 + 0.01 * number) + 0.001 * number
        clients = {"train": run.clients["train"], "test": {**run.clients["test"], "accuracy": moved}}
        return run._replace(clients=clients, info={**run.info, "seed": number, "method": title})

    runs = [seed(title, i, shift) for i in range(6) for title, shift in (("low", 0.0), ("high", 0.1))]
    text, page = report(tmp_path, *runs)
    (lead,) = re.findall(r'<p class="lead">(.*)</p>', text)
    assert "served best by high" in lead and "and so is the worst tenth of the clients" in lead
    assert "seed" not in lead
    mean = [100 * np.nanmean(run.clients["test"]["accuracy"]) for run in runs[1::2]]
    assert f"{np.mean(mean):.1f} ± {np.std(mean, ddof=1):.2f}\u202f%" in text
    assert "Comparison: low, high" in page.text and "0, 1, 2" in text
    few = report(tmp_path, *runs[:10])[0]
    assert "no method is better" in few and "With 5 seeds no difference can be significant" in few
    assert 'class="number best"' not in few and 'class="number best"' in text
    single = report(tmp_path, *runs[1::2])[0]
    assert f"{np.mean(mean):.1f}\u202f%, the worst tenth" in single and "(means over 6 seeds)" in single


@pytest.mark.parametrize(
    ("undefined", "words", "clients"), [((1, 3), "up to 3", "26 to 28"), ((3, 3), "3", "26")]
)
def test_counts_that_differ_by_seed_are_not_those_of_one_seed(
    undefined: Sequence[int], words: str, clients: str, tmp_path: Path
) -> None:
    """Of 30 clients, one of which has no test rows, an AUC is undefined for some, and few have a rare class."""
    runs = list[RunView]()
    for seed, count in enumerate(undefined):
        run = view()
        auc = np.where(np.arange(30) < count, np.nan, 0.5)
        rarest = np.where(np.arange(30) < count, 4, 40)
        runs.append(
            run._replace(
                clients={split: {**metrics, "auc": auc} for split, metrics in run.clients.items()},
                classes={"test": {**dict.fromkeys(CLASS_COLUMNS, np.ones(30)), RAREST: rarest}},
                info={**run.info, "seed": seed, "metrics": {"auc": "have examples of one class only"}},
            )
        )
    text, _ = report(tmp_path, *runs)
    console = Console(width=200, record=True, file=StringIO())
    show_comparison(compare(runs), console)
    shown = console.export_text()
    for output in (text, shown):
        assert f"is undefined for {words} of 29 clients, which have" in output
        assert f"of several classes, {words} have fewer than 10" in output
    assert f'<td class="number">{clients}</td>' in text
    assert re.search(rf" auc +0\.5 +0\.5 +0\.5 +{clients} *\n", shown)


def test_the_page_names_the_rounds_that_are_kept(tmp_path: Path) -> None:
    """By the seeds' numbers; without them if a run has the numbers of its last round."""
    words = [f"kept round {x} of 50: best validation loss" for x in (9, 10, 9)]
    runs = [view()._replace(info={**view().info, "seed": i, "kept": kept}) for i, kept in enumerate(words)]
    text, _ = report(tmp_path, *runs)
    assert " · kept rounds 9 and 10 of 50: best validation loss · " in text
    assert "per client at the kept round" in text and "end of the run" not in text
    assert f" · {words[0]} · " in report(tmp_path, runs[0])[0]
    assert "kept round 9" not in report(tmp_path, runs[0], view(seed=4))[0]


def test_training_does_not_load_matplotlib() -> None:
    code = "import sys, evenhand; evenhand.report.figures.series; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- communication ----------------------------------------------------------------------------------------------------


def sending(title: str, up: int, *, seed: int = 0, secure_sums: int = 0) -> RunView:
    """A run of 50 rounds that counts bytes."""
    loads = {"down": {"numbers": 650, "bytes": 2600}, "up": {"numbers": up // 4, "bytes": up}}
    total = {way: {name: 500 * count for name, count in load.items()} for way, load in loads.items()}
    counts = {
        "rounds": 50,
        "secure_sums": secure_sums,
        "took_part": 500,
        "left_out": 0,
        "covers": f"All, {up}.",
    }
    run = view(title)
    counts |= {"per_client_and_round": loads, "total": total}
    return run._replace(info={**run.info, "seed": seed, "communication": counts})


def texts(row: Sequence[Any]) -> list[str]:
    """What the columns after the first show."""
    return [value.text for value in row[1:]]


def test_what_was_sent_is_a_table_and_a_sentence() -> None:
    runs = [sending("a", 2604), sending("b", 660, secure_sums=50)]
    table = tables.communication(compare(runs))
    assert table is not None
    assert texts(table.rows[1]) == [
        *("650", "165", "2.60 kB", "660 bytes", "1.30 MB", "330 kB", "50", "500", "50")
    ]
    brief = tables.communication(compare(runs), brief=True)
    assert brief is not None and texts(brief.rows[0]) == [*("2.60 kB", "2.60 kB", "1.30 MB", "1.30 MB", "0")]
    assert tables.communication_line(runs[1]) == (
        "Communication: a client received 2.60 kB and sent 660 bytes in a round; all clients together received 1.30 MB "
        "and sent 330 kB, in 50 secure sums."
    )
    assert tables.communication(compare(view())) is None and tables.communication_line(view()) == ""
    # A run of an earlier version has no row; seeds are averaged.
    both = tables.communication(compare({"a": [sending("a", 100), sending("a", 300, seed=1)], "old": view()}))
    assert both is not None and len(both.rows) == 1 and texts(both.rows[0])[3] == "200 bytes"


def test_the_page_says_whom_the_counts_cover(tmp_path: Path) -> None:
    alone = write_report(tmp_path / "a.html", [sending("a", 2604)]).read_text()
    assert "<h2>Communication</h2>" in alone and "All, 2604." in alone
    several = write_report(tmp_path / "b.html", [sending("a", 2604), sending("b", 660)]).read_text()
    assert "All, 2604." not in several and "keys and shares" in several
    assert "<h2>Communication</h2>" not in write_report(tmp_path / "c.html", [view()]).read_text()
