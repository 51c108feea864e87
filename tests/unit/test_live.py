"""The live bar: in a terminal, under the cell of a notebook, and nowhere else."""

from __future__ import annotations

import builtins
import io
import sys
from pathlib import Path

import pytest
from rich.progress import TextColumn

from evenhand.live import line
from nursery import Nursery

RUN = """
import evenhand as eh
method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
data = eh.data.hold_out(eh.testing.toy_data())
run = eh.simulate(method, data, rounds=2, progress=True)
found = eh.study({"fedavg": method}, data, rounds=2, seeds=1, progress=True)
print("done")
"""


class Stream(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: is_terminal  # type: ignore[method-assign]


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool = False, show: bool = True) -> tuple[str, str]:
    """What a bar at 3 writes to stderr, and where ``print`` writes meanwhile while stdout is a file."""
    err, out = Stream(terminal), Stream(False)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(sys, "stdout", out)
    with line(TextColumn("at {task.completed}"), show=show) as bar:
        task = bar.add_task("x", total=5)
        bar.update(task, completed=3)
        bar.refresh()
        print("printed")  # noqa: T201
    return err.getvalue(), out.getvalue()


def test_a_terminal_shows_it_and_what_is_printed_stays_in_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    err, out = shown(monkeypatch, terminal=True)
    assert "at 3" in err and err.endswith("\x1b[2K") and out == "printed\n"


def test_a_file_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch) == ("", "printed\n")
    assert shown(monkeypatch, terminal=True, show=False) == ("", "printed\n")


def test_a_notebook_shows_lines_of_text_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    err, out = shown(monkeypatch)
    assert "\r\x1b[2Kat 3" in err and "\x1b[1A" not in err and out == "printed\n"


def test_a_file_gets_nothing_of_a_run_or_a_study(nursery: Nursery, tmp_path: Path) -> None:
    shown, complaints = tmp_path / "shown", tmp_path / "complaints"
    assert nursery.start("program", shown, complaints, source=RUN).wait() == 0
    assert (shown.read_text(), complaints.read_text()) == ("done\n", "")


@pytest.mark.filterwarnings("ignore")
def test_a_notebook_that_is_executed_shows_both_bars() -> None:
    nbclient = pytest.importorskip("nbclient", reason="heavy; the test above stands in for it")
    pytest.importorskip("ipykernel", reason="heavy; the test above stands in for it")
    nbformat = pytest.importorskip("nbformat")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(RUN)])
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute()
    outputs = book.cells[0].outputs
    assert {each.output_type for each in outputs} == {"stream"}
    err = "".join(each.text for each in outputs if each.name == "stderr")
    assert "round 2/2" in err and "runs 1/1" in err and "Warning" not in err
    assert "".join(each.text for each in outputs if each.name == "stdout") == "done\n"
