"""``config.json`` as command-line words, and what it records."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import evenhand as eh
from evenhand.cli._config import with_config
from evenhand.cli._data import DataOptions, fingerprint


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    options = {"lr": 1e-05, "epochs": 3, "regression": True, "text": False, "cohort": "all"}
    path.write_text(json.dumps({"method": {"name": "fedprox", "mu": 0.1}, "options": options}))
    return path


SETTINGS = ["--lr=1e-05", "--epochs=3", "--regression", "--cohort=all"]


def test_settings_come_before_what_is_given(config: Path) -> None:
    words = with_config(["run", "--seed", "3", "--config", str(config), "--lr", "1"])
    assert words == [
        "run",
        "fedprox",
        "--mu=0.1",
        *SETTINGS,
        "--seed",
        "3",
        "--lr",
        "1",
        f"--config={config}",
    ]
    assert with_config(["run", "fedprox", f"--config={config}"])[1:3] == ["fedprox", "--mu=0.1"]


def test_another_method_drops_the_hyper_parameters(config: Path) -> None:
    words = with_config(["run", "fedavg", "--config", str(config)])
    assert words == ["run", "fedavg", *SETTINGS, f"--config={config}"]


def test_steps_replace_epochs(config: Path) -> None:
    words = with_config(["run", "--config", str(config), "--steps=5"])
    assert "--epochs=3" not in words
    assert "--epochs=3" in with_config(["run", "--config", str(config), "--lr=5"])


def test_a_folder_stands_for_its_config(config: Path) -> None:
    assert with_config(["run", "--config", str(config.parent)]) == with_config(
        ["run", "--config", str(config)]
    )


def test_without_config_nothing_changes() -> None:
    for words in ([], ["list"], ["run", "fedavg"], ["run", "--config"], ["compare", "--config", "x"]):
        assert with_config(words) == words


@pytest.mark.parametrize(
    "content", ["{}", '{"method": "fedavg", "options": {}}', '{"method": {}, "options": {}}']
)
def test_json_that_is_no_configuration(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(eh.EvenhandError, match="not the configuration of a run"):
        with_config(["run", "--config", str(tmp_path)])


def test_paths_are_recorded_from_the_root_and_names_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    (tmp_path / "my.csv").write_text("")
    assert DataOptions("digits").rooted().data == "digits"
    assert DataOptions("my.csv").rooted().data == str(tmp_path / "my.csv")
    assert DataOptions("synthetic:1,1").rooted().data == "synthetic:1,1"


def test_a_fingerprint_sees_every_number() -> None:
    x, y, client = np.arange(12.0).reshape(6, 2), np.arange(6) % 2, np.repeat([0, 1], 3)
    prints = {
        fingerprint(eh.data.from_arrays(*arrays, seed=seed))
        for *arrays, seed in (
            (x, y, client, 0),
            (x, y, client, 0),
            (x + np.eye(6, 2), y, client, 0),
            (x, 1 - y, client, 0),
            (x, y, client + 1, 0),
        )
    }
    assert len(prints) == 4
