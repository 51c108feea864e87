"""The event files, read back."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evenhand as eh
from evenhand.simulation import iterate

event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")

DATA, MODEL = eh.testing.toy_data(), eh.testing.toy_model()
METHOD = eh.algorithms.fedavg(eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4))


def events(folder: Path) -> list[Any]:
    """The events of a run: length, checksum, event, checksum; again and again."""
    [path] = folder.glob("events.out.tfevents.*")
    content, at, found = path.read_bytes(), 0, []
    while at < len(content):
        [length] = struct.unpack_from("<Q", content, at)
        found.append(event_pb2.Event.FromString(content[at + 12 : at + 12 + length]))
        at += length + 16
    return found


def numbers(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for event in events(folder):
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def text(folder: Path, tag: str) -> str:
    values = [value for event in events(folder) for value in event.summary.value]
    [found] = [value.tensor.string_val[0].decode() for value in values if value.tag.startswith(tag)]
    return found


def test_the_file_has_the_history_the_settings_and_the_end(tmp_path: Path) -> None:
    run = eh.simulate(
        METHOD, DATA, rounds=4, eval_every=2, seed=3, watch=eh.watch.tensorboard(tmp_path / "logs")
    )
    [folder] = (tmp_path / "logs").iterdir()
    assert folder.name == f"fedavg on {DATA.name}, seed 3"
    found = numbers(folder)
    assert set(found) == set(run.history) - {"round"}
    for name, logged in found.items():
        whole = [
            (round, np.float32(number))
            for round, number in zip(run.history["round"].tolist(), run.history[name], strict=True)
            if round or not np.isnan(number)
        ]
        assert logged == whole
    assert '"seed": 3' in text(folder, "settings") and text(folder, "status") == "done"


def test_a_number_is_in_the_file_when_it_is_logged_and_a_later_file_replaces_it(tmp_path: Path) -> None:
    for run in iterate(METHOD, DATA, rounds=4, eval_every=2, watch=eh.watch.tensorboard(str(tmp_path))):
        [folder] = tmp_path.iterdir()
        assert [step for step, _ in numbers(folder)["test_loss"]] == run.history["round"].tolist()
    starts = [event.session_log.status for event in events(folder) if event.HasField("session_log")]
    assert starts == [
        event_pb2.SessionLog.START
    ]  # at step 0: TensorBoard drops what an earlier file has from there


@pytest.mark.parametrize(
    "names", [("a/b", "a:b"), ("x" * 200, "x" * 199), ("..", "."), ("é", "è"), ("", " ")]
)
def test_any_name_is_a_folder_of_its_own(names: tuple[str, str], tmp_path: Path) -> None:
    for name in names:
        watched = eh.watch.tensorboard(tmp_path).begin(name, {"lr": 0.1, "name": "ü"})
        watched.log(1, {"loss": float("nan")})
        watched.end("diverged")
    folders = list(tmp_path.iterdir())
    assert len(folders) == 2 and all(len(folder.name) < 140 for folder in folders)
    assert all(np.isnan(numbers(folder)["loss"][0][1]) for folder in folders)
