"""Trackers that follow runs while they train: TensorBoard, MLflow, Weights & Biases, or one of your own.

``eh.simulate(..., watch=eh.watch.tensorboard("logs"))``, or several in a list, and the same for ``eh.study``.  A
tracker is a :class:`Watcher`, a function that begins to follow a run:

Example:
  >>> import evenhand as eh
  >>> def begin(name, config):
  ...     def log(round, numbers):
  ...         print(round, f"{numbers['train_loss']:.2f}")
  ...     return eh.watch.Watched(log, end=print)
  >>> method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
  >>> run = eh.simulate(method, eh.testing.toy_data(), rounds=2, eval_every=2, watch=eh.watch.Watcher(begin))
  0 ...
  2 ...
  done
"""

from evenhand.watch._mlflow import mlflow
from evenhand.watch._tensorboard import tensorboard
from evenhand.watch._wandb import wandb
from evenhand.watch._watcher import Watch, Watched, Watcher, Watching, watchers

__all__ = ["Watch", "Watched", "Watcher", "Watching", "mlflow", "tensorboard", "wandb", "watchers"]
