"""The live bar: in a terminal, as one output under the cell of a notebook, and nowhere else."""

from __future__ import annotations

import builtins
import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evenhand import live
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


class Notebook:
    """A stand-in for IPython: what it has shown, by output."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outputs: list[dict[str, str]] = []
        self.updates = 0
        shell = type("ZMQInteractiveShell", (), {})()
        monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
        module: Any = ModuleType("IPython.display")
        module.display = self.display
        monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
        monkeypatch.setitem(sys.modules, "IPython.display", module)

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Notebook:
        assert raw and display_id
        self.outputs.append(data)
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.outputs[-1] = data
        self.updates += 1


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool = False, show: bool = True) -> tuple[str, str]:
    """What a bar at 3 of 5 writes to stderr, and where ``print`` writes meanwhile while stdout is a file."""
    err, out = Stream(terminal), Stream(False)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(sys, "stdout", out)
    with live.line("round", 5, show=show) as bar:
        bar.update(3, rate="2 rounds/s", latest="loss 0.5")
        print("printed")  # noqa: T201
    return err.getvalue(), out.getvalue()


def test_a_terminal_shows_it_and_what_is_printed_stays_in_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    err, out = shown(monkeypatch, terminal=True)
    assert "3/5" in err and "loss 0.5" in err and err.endswith("\x1b[2K") and out == "printed\n"


def test_a_file_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch) == ("", "printed\n")
    assert shown(monkeypatch, terminal=True, show=False) == ("", "printed\n")


def test_a_notebook_shows_one_output_whatever_the_number_of_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook(monkeypatch)
    monkeypatch.setattr(live, "_SECONDS", 0.0)
    with live.line("round", 40, show=True) as bar:
        for done in range(41):
            bar.update(done, rate="2 rounds/s", latest=f"loss {1 / (1 + done):.2f} <b>")
    assert len(notebook.outputs) == 1 and notebook.updates >= 41
    [last] = notebook.outputs
    assert last["text/plain"].startswith("round 40/40, 2 rounds/s, took 0:00:0")
    assert last["text/plain"].endswith(", loss 0.02 <b>")
    assert '<progress max="1" value="1.000">' in last["text/html"]
    assert "loss 0.02 &lt;b&gt;" in last["text/html"] and "<b>" not in last["text/html"]


def test_a_notebook_is_told_of_few_updates_only(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook(monkeypatch)
    with live.line("round", 4000, show=True) as bar:
        for done in range(4001):
            bar.update(done)
    assert 1 <= notebook.updates <= 5, "4,000 updates take much less than a second"
    assert notebook.outputs[0]["text/plain"].startswith("round 4,000/4,000")


def test_a_notebook_says_how_much_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 rounds were done before; 10 of the other 70 have taken 20 seconds, so that 60 take 120."""
    notebook, now = Notebook(monkeypatch), [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    with live.line("round", 100, show=True) as bar:
        bar.update(30)
        now[0] += 20
        bar.update(40)
        assert notebook.outputs[0]["text/plain"] == "round 40/100, 0:02:00 left"
    # Interrupted: what stays under the cell must not look as if it went on.
    assert notebook.outputs[0]["text/plain"] == "round 40/100, stopped after 0:00:20"
    with live.line("round", 100, show=False) as bar:
        bar.update(30)
    assert len(notebook.outputs) == 1


def test_a_file_gets_nothing_of_a_run_or_a_study(nursery: Nursery, tmp_path: Path) -> None:
    shown, complaints = tmp_path / "shown", tmp_path / "complaints"
    assert nursery.start("program", shown, complaints, source=RUN).wait() == 0
    assert (shown.read_text(), complaints.read_text()) == ("done\n", "")


@pytest.mark.filterwarnings("ignore")
def test_a_notebook_that_is_executed_has_one_output_for_each_bar() -> None:
    nbclient = pytest.importorskip("nbclient", reason="heavy; the tests above stand in for it")
    pytest.importorskip("ipykernel", reason="heavy; the tests above stand in for it")
    nbformat = pytest.importorskip("nbformat")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(RUN)])
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute()
    kinds = [output.output_type for output in book.cells[0].outputs]
    assert kinds == ["display_data", "display_data", "stream"]
    run, study, printed = book.cells[0].outputs
    assert run.data["text/plain"].startswith("round 2/2")
    assert study.data["text/plain"].startswith("runs 1/1")
    assert printed.name == "stdout" and printed.text == "done\n"
