"""MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenhand.watch._watcher import Watched, Watcher, needed

__all__ = ["mlflow"]

_LONGEST = 500
"""Most characters of a parameter's value."""


def mlflow(uri: str | None = None, *, experiment: str = "evenhand") -> Watcher:
    """Makes a run of MLflow for each run: settings are parameters, what is measured are metrics by round.

    A run that is resumed, or repeated, is another run of MLflow, with the whole history.

    Args:
      uri: of the tracking server or store; None: that of the environment variable ``MLFLOW_TRACKING_URI``, else a local
        store.
      experiment: which the runs belong to; it is made if needed.

    Raises:
      EvenhandError: the package ``mlflow`` or ``mlflow-skinny`` is not installed.
    """
    package = needed("mlflow", "mlflow")

    def begin(name: str, config: Mapping[str, Any]) -> Watched:
        client = package.MlflowClient(uri)
        found = client.get_experiment_by_name(experiment)
        place = client.create_experiment(experiment) if found is None else found.experiment_id
        run = client.create_run(place, run_name=name).info.run_id
        for key, value in config.items():
            client.log_param(run, key, str(value)[:_LONGEST])

        def log(round: int, numbers: Mapping[str, float]) -> None:
            for metric, number in numbers.items():
                client.log_metric(run, metric, number, step=round)

        def end(status: str) -> None:
            client.set_tag(run, "status", status)
            client.set_terminated(run, _STATUS.get(status, "FINISHED"))

        return Watched(log, end)

    return Watcher(begin)


_STATUS = {"failed": "FAILED", "diverged": "FAILED", "interrupted": "KILLED"}
