"""How even the models are over clients and over the classes within them, in percent and percentage points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

import evenhand as eh
from evenhand import tree
from evenhand.types import Array, ClientData, Key, Params, PyTree

__all__ = ["evenness", "local_work", "of", "told", "with_one_model", "with_own_models", "with_stacked_models"]

NDArray: TypeAlias = npt.NDArray[Any]
Measures: TypeAlias = dict[str, float]


def evenness(
    ditto: eh.Algorithm, tune: Callable[[Params, eh.data.FederatedDataset, int], Params], run: eh.Run
) -> Measures:
    """What is told of a run at its end: of the clients' own models, of the shared one, and of that after more work.

    Args:
      ditto: the method whose shared model is tuned.
      tune: what :func:`local_work` gives.
      run: any.
    """
    if not run.info["rounds"]:
        return {}
    drawn = run.last_round > 0
    model, data = run.algorithm.model, run.data
    found = {"own": with_own_models(run, drawn), "shared": with_one_model(model, run.params, data, drawn)}
    if run.algorithm is ditto:
        tuned = tune(run.params, data, run.seed)
        found["tuned"] = with_stacked_models(model, tuned, data, drawn)
    return {f"{part} {name}": value for part, each in found.items() for name, value in each.items()}


def of(part: str, runs: Sequence[Measures]) -> list[Measures]:
    """What :func:`evenness` told of one part: ``"own"``, ``"shared"`` or ``"tuned"``."""
    names = [name for name in runs[0] if name.startswith(f"{part} ")]
    return [{name.removeprefix(f"{part} "): run[name] for name in names} for run in runs]


def told(accuracy: NDArray, counts: NDArray, drawn: NDArray) -> Measures:
    r"""Accuracy, :math:`\sigma`, :math:`\mu_\sigma` and :math:`\sigma_\sigma`, all clients counting alike.

    Args:
      accuracy: a share of 1, ``(clients, 2)``, of both classes of each client.
      counts: their test rows.
      drawn: which clients were in any cohort; the same four numbers are told of them alone, as a client that never was
        still has the initial model, or the global one.
    """
    percent = 100.0 * accuracy
    each = np.sum(percent * counts, axis=1) / np.sum(counts, axis=1)
    spread = np.std(percent, axis=1)

    def over(who: NDArray, prefix: str) -> Measures:
        return {
            f"{prefix}acc": float(np.mean(each[who])),
            f"{prefix}sigma": float(np.std(each[who])),
            f"{prefix}mu_sigma": float(np.mean(spread[who])),
            f"{prefix}sigma_sigma": float(np.std(spread[who])),
        }

    collapsed = float(np.sum(percent[drawn].min(axis=1) < 10.0))
    everybody = np.ones(len(each), bool)
    return {
        **over(everybody, ""),
        **over(drawn, "drawn_"),
        "drawn_worst_class": float(percent[drawn].min()),
        "drawn_collapsed": collapsed,
        "never_drawn": float(np.sum(~drawn)),
    }


def with_own_models(run: eh.Run, drawn: NDArray) -> Measures:
    """Of the models that a run serves."""
    found = run.class_metrics()
    return told(found.accuracy.reshape(-1, 2), found.counts.reshape(-1, 2), drawn)


def with_one_model(
    model: eh.Model, params: Params, data: eh.data.FederatedDataset, drawn: NDArray
) -> Measures:
    """Of one model for everybody."""
    split = _by_class(data)
    found = eh.evaluation.evaluate(model, params, split)["accuracy"]
    return told(found.reshape(-1, 2), split.sizes.reshape(-1, 2), drawn)


def with_stacked_models(
    model: eh.Model, params: Params, data: eh.data.FederatedDataset, drawn: NDArray
) -> Measures:
    """Of a model per client, in leaves with a leading axis of clients."""
    split = _by_class(data)
    prepared = eh.evaluation.prepare(split)
    found = eh.evaluation.evaluate_personal(model, params, prepared, params_of=_holder)["accuracy"]
    return told(found.reshape(-1, 2), split.sizes.reshape(-1, 2), drawn)


def local_work(
    method: eh.Algorithm,
) -> Callable[[Params, eh.data.FederatedDataset, int], Params]:
    """``(params, data, seed) -> params`` of all clients, stacked: those after their work of one more round."""
    (phase,) = method.phases

    @partial(jax.jit, static_argnames="capacity")
    def everybody(
        params: Params, x: Array, y: Array, windows: tuple[Array, Array], keys: Key, capacity: int
    ) -> Params:
        message = phase.broadcast(method.init(params, len(keys)), jnp.int32(0))

        def one(of: tuple[tuple[Array, Array], Key]) -> Params:
            (start, size), key = of
            delta, _ = phase.work(message, (), ClientData(x, y, start, size, jnp.float32(1), capacity), key)
            return tree.add(params, delta)

        return jax.lax.map(one, (windows, keys))

    def work(params: Params, data: eh.data.FederatedDataset, seed: int) -> Params:
        train = data.train
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 83), data.num_clients)
        windows = tuple(jnp.asarray(part, jnp.int32) for part in (train.offsets[:-1], train.sizes))
        return everybody(
            params, jnp.asarray(train.x), jnp.asarray(train.y), windows, keys, capacity=int(train.sizes.max())
        )

    return work


def _holder(states: PyTree, place: Array) -> Params:
    return tree.take(states, place // 2)


def _by_class(data: eh.data.FederatedDataset) -> eh.data.Split:
    """The test rows, which lie class by class within each client, as if each such class were a client."""
    cells = np.repeat(np.arange(data.num_clients), data.test.sizes) * (data.num_classes or 1) + data.test.y
    starts = np.flatnonzero(np.diff(cells, prepend=-1))
    return data.test._replace(offsets=np.append(starts, data.test.rows))
