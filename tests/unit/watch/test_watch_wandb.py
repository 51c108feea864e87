"""The files that Weights & Biases writes offline, read back."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evenhand as eh

wandb = pytest.importorskip("wandb", reason="heavy; the rest of the tests does without it")
pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")

DATA, MODEL = eh.testing.toy_data(), eh.testing.toy_model()
METHOD = eh.algorithms.fedavg(eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4))
_HEADER, _BLOCK = 7, 2**15


@pytest.fixture(autouse=True)
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    wandb.teardown()  # it reads the environment once


def records(path: Path) -> Iterator[Any]:
    """The records of a file, whose blocks hold parts with a header each: checksum, length, whether it is the last."""
    content, at, parts = path.read_bytes(), _HEADER, b""
    while at + _HEADER <= len(content):
        if (left := _BLOCK - at % _BLOCK) < _HEADER:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        parts += content[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if kind in (1, 4):
            yield pb.Record.FromString(parts)
            parts = b""


def read(path: Path) -> dict[str, Any]:
    """A run: its name, project, group and config, the rows that were logged, its status and exit code."""
    wandb.teardown()  # now all of it is on disk
    found: dict[str, Any] = {"rows": []}
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found |= {name: getattr(record.run, name) for name in ("display_name", "project", "run_group")}
            found["config"] = {each.key: json.loads(each.value_json) for each in record.run.config.update}
        elif kind == "history":
            items = {
                each.key or "/".join(each.nested_key): json.loads(each.value_json)
                for each in record.history.item
            }
            found["rows"].append({name: x for name, x in items.items() if name[0] != "_" or name == "_step"})
        elif kind == "summary":
            found |= {
                each.key: json.loads(each.value_json)
                for each in record.summary.update
                if each.key == "status"
            }
        elif kind == "exit":
            found["code"] = record.exit.exit_code
    return found


def test_the_file_has_the_history_the_settings_and_the_end(tmp_path: Path) -> None:
    tracker = eh.watch.wandb("toys", mode="offline", folder=tmp_path / "new", group="some")
    run = eh.simulate(METHOD, DATA, rounds=4, eval_every=2, seed=3, watch=tracker)
    [path] = (tmp_path / "new").glob("wandb/offline-run-*/*.wandb")
    found = read(path)
    assert (found["display_name"], found["project"], found["run_group"]) == (
        f"fedavg on {DATA.name}, seed 3",
        "toys",
        "some",
    )
    assert found["config"]["seed"] == 3 and found["config"]["rounds"] == 4
    assert [row.pop("_step") for row in found["rows"]] == run.history["round"].tolist()
    for i, row in enumerate(found["rows"]):
        numbers = {name: values[i] for name, values in run.history.items() if name != "round"}
        assert row == {name: x for name, x in numbers.items() if i or not np.isnan(x)}
    assert (found["status"], found["code"]) == ("done", 0)


def test_the_runs_of_a_study_are_open_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    wandb.teardown()
    eh.study({"fedavg": METHOD}, DATA, rounds=2, eval_every=2, seeds=2, watch=eh.watch.wandb())
    found = [read(path) for path in tmp_path.glob("wandb/offline-run-*/*.wandb")]
    assert sorted(run["display_name"] for run in found) == ["fedavg(), seed 0", "fedavg(), seed 1"]
    assert all(run["project"] == "evenhand" and len(run["rows"]) == 2 and run["code"] == 0 for run in found)


def test_disabled_it_writes_nothing(tmp_path: Path) -> None:
    eh.watch.wandb(mode="disabled").begin("a", {}).end("failed")
    assert not list(tmp_path.rglob("*.wandb"))
