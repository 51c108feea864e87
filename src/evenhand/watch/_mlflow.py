"""MLflow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from evenhand.watch._watcher import Watched, Watcher, needed

__all__ = ["mlflow"]

_LONGEST = 500
"""Characters of a parameter that every store takes."""
_MOST = 100
"""Parameters that a server takes at once."""
_ENDED = {"failed": "FAILED", "diverged": "FAILED", "interrupted": "KILLED"}


def mlflow(uri: str | None = None, *, experiment: str = "evenhand") -> Watcher:
    """Follows each run as a run of MLflow: its settings are parameters, and what is measured are metrics by round.

    The tag ``"status"`` says how it ended.  A run that is resumed or repeated is another run there, with all of its
    history.

    Args:
      uri: a tracking server or a database, such as ``"sqlite:///runs.db"``; None: what ``MLFLOW_TRACKING_URI`` names,
        else ``mlflow.db`` in the current folder.
      experiment: what the runs belong to; it is made where there is none.

    Raises:
      EvenhandError: MLflow is not installed.
    """
    package = needed("mlflow", "mlflow")

    def begin(name: str, config: Mapping[str, Any]) -> Watched:
        client, entities = package.MlflowClient(uri), package.entities
        known = client.get_experiment_by_name(experiment)
        place = client.create_experiment(experiment) if known is None else known.experiment_id
        run = client.create_run(place, run_name=name).info.run_id
        parameters = [entities.Param(key, str(setting)[:_LONGEST]) for key, setting in config.items()]
        for first in range(0, len(parameters), _MOST):
            client.log_batch(run, params=parameters[first : first + _MOST])

        def log(round: int, numbers: Mapping[str, float]) -> None:
            now = int(time.time() * 1000)
            metrics = [entities.Metric(metric, x, now, round) for metric, x in numbers.items()]
            client.log_batch(run, metrics=metrics)

        def end(status: str) -> None:
            client.set_tag(run, "status", status)
            client.set_terminated(run, _ENDED.get(status, "FINISHED"))

        return Watched(log, end)

    return Watcher(begin)
