"""A store of MLflow in a folder, read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evenhand as eh

mlflow = pytest.importorskip("mlflow", reason="heavy; the rest of the tests does without it")

DATA, MODEL = eh.testing.toy_data(), eh.testing.toy_model()

# What MLflow itself says: its mappers use what SQLAlchemy 2.1 deprecates.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def run_with(lr: float, **given: Any) -> eh.Run:
    method = eh.algorithms.fedavg(eh.local.sgd(MODEL, lr, epochs=1, batch_size=4))
    return eh.simulate(method, DATA, rounds=4, eval_every=2, watch=eh.watch.mlflow(**given))


@pytest.mark.filterwarnings("ignore::evenhand.errors.EvenhandWarning")
def test_each_run_is_one_of_the_experiment(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'runs.db'}"
    run, wild = run_with(0.1, uri=uri, experiment="toys"), run_with(1e5, uri=uri, experiment="toys")
    client = mlflow.MlflowClient(uri)
    found = client.search_runs([client.get_experiment_by_name("toys").experiment_id])
    diverged, tracked = found  # the newest first
    assert tracked.info.run_name == f"fedavg on {DATA.name}, seed 0"
    assert tracked.data.params["seed"] == "0" and tracked.data.params["rounds"] == "4"
    for name, values in run.history.items():
        if name != "round":
            history = sorted((m.step, m.value) for m in client.get_metric_history(tracked.info.run_id, name))
            rounds = run.history["round"].tolist()
            known = [(r, x) for r, x in zip(rounds, values, strict=True) if r or not np.isnan(x)]
            assert history == known
    assert (tracked.info.status, tracked.data.tags["status"]) == ("FINISHED", "done")
    assert (diverged.info.status, diverged.data.tags["status"]) == ("FAILED", "diverged")
    assert wild.history["train_loss"][-1] > 1e3


def test_without_a_uri_it_is_mlflows_own_default(tmp_path: Path) -> None:
    watched = eh.watch.mlflow().begin("a", {"text": "x" * 10_000})
    watched.end("interrupted")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    [found] = client.search_runs([client.get_experiment_by_name("evenhand").experiment_id])
    assert found.info.status == "KILLED" and found.data.params["text"] == "x" * 500
