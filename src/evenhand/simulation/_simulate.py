"""Running a method on data: ``simulate`` and the generator under it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError
from evenhand.simulation import _round
from evenhand.simulation._checkpoint import Checkpoints, identity
from evenhand.simulation._checks import check_model, check_numbers
from evenhand.simulation._engine import Program
from evenhand.simulation._progress import Progress
from evenhand.simulation._round import Rows
from evenhand.simulation._run import Run
from evenhand.simulation._session import Session
from evenhand.streams import Purpose, stream
from evenhand.systems import Systems
from evenhand.types import Algorithm, Attack

__all__ = ["iterate", "simulate"]


def simulate(
    algorithm: Algorithm,
    data: FederatedDataset,
    *,
    rounds: int,
    cohort: int | None = None,
    seed: int = 0,
    eval_every: int = 10,
    attack: Attack | None = None,
    systems: Systems | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
    lanes: int | None = None,
) -> Run:
    """Runs a federated method over simulated clients, on whatever device JAX finds.

    Args:
      algorithm: the method, e.g. ``eh.algorithms.fedavg(...)``.
      data: the clients' rows.
      rounds: how many rounds; 0 gives the untouched initial model.
      cohort: clients drawn per round, at most as many as there are; None: as many as there are, which is everybody
        unless the method samples with replacement.
      seed: decides everything random.  The same seed gives every method the same initial model, cohorts,
        stragglers and mini-batches, and the same run again bit for bit on the same hardware.
      eval_every: rounds between two evaluations of all clients; round 0 and the last one are always evaluated.
      attack: what liars among the clients do.
      systems: stragglers, e.g. ``eh.systems.stragglers(0.9)``.
      checkpoint: a folder that keeps the run's latest state, saved at each evaluation.  A run that finds one there
        goes on from it and ends with the same bits as one that was never interrupted; ask for more rounds to
        train further.  The checkpoint of another run is refused.
      progress: show a live bar.
      lanes: clients trained side by side; None: one on a CPU, up to 64 on an accelerator.  The result does not
        depend on it beyond rounding.

    Raises:
      EvenhandError: a number out of range, or parts that do not go together.

    Example:
      >>> import evenhand as eh, optax
      >>> data = eh.data.load("digits", clients=10)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> method = eh.algorithms.fedavg(model, client_opt=optax.sgd(0.1), epochs=1, batch_size=10)
      >>> run = simulate(method, data, rounds=4, cohort=5, eval_every=2)
      >>> run.history["round"].tolist()
      [0, 2, 4]
    """
    run = None
    for run in iterate(  # noqa: B007  (the last one is the result)
        algorithm,
        data,
        rounds=rounds,
        cohort=cohort,
        seed=seed,
        eval_every=eval_every,
        attack=attack,
        systems=systems,
        checkpoint=checkpoint,
        progress=progress,
        lanes=lanes,
    ):
        pass
    assert run is not None
    return run


def iterate(
    algorithm: Algorithm,
    data: FederatedDataset,
    *,
    rounds: int,
    cohort: int | None = None,
    seed: int = 0,
    eval_every: int = 10,
    attack: Attack | None = None,
    systems: Systems | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
    lanes: int | None = None,
) -> Iterator[Run]:
    """As :func:`simulate`, but hands out the :class:`Run` so far at each evaluation, the first at round 0.

    Use it to watch a run, to stop it early, or to keep what there is when it is interrupted.

    Example:
      >>> import evenhand as eh, optax
      >>> data = eh.data.load("digits", clients=10)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> method = eh.algorithms.fedavg(model, client_opt=optax.sgd(0.1), epochs=1, batch_size=10)
      >>> for run in iterate(method, data, rounds=100, eval_every=2):
      ...     if run.history["test_accuracy"][-1] > 0.5:
      ...         break
      >>> run.info["rounds"] < 100
      True
    """
    cohort = check_numbers(algorithm, data, rounds, seed, cohort, eval_every, lanes, systems, attack)
    check_model(algorithm.model, data)
    root = jax.random.key(seed)
    rows = device_rows(data, attack, seed)
    program = Program(
        algorithm=algorithm,
        cohort=cohort,
        capacity=int(data.train.sizes.max()),
        lanes=_default_lanes(cohort) if lanes is None else lanes,
        systems=systems,
        attack=attack,
        buffer=max(1, min(eval_every, rounds)),
    )
    params = algorithm.model.init(stream(root, Purpose.INIT))
    wires = _round.wires(algorithm, params, rows)
    state = _round.begin(algorithm, params, rows, wires)
    traffic = _round.traffic(algorithm, wires)
    session = Session(program, data, rows, root, seed, traffic)
    checkpoints = None
    if checkpoint is not None:
        checkpoints = Checkpoints(checkpoint, state, identity(program, data, state, rows, root, seed))
    with Progress(rounds, progress) as bar:
        yield from session.run(state, rounds, eval_every, checkpoints, bar)


def device_rows(data: FederatedDataset, attack: Attack | None, seed: int) -> Rows:
    """The training rows on the device, those of liars poisoned."""
    x, y = data.train.x, data.train.y
    liars = np.zeros(data.num_clients, bool)
    if attack is not None:
        if not 0.0 <= attack.fraction <= 1.0:
            raise EvenhandError(f"Attack(fraction={attack.fraction}): the share of liars must lie in [0, 1].")
        rng = np.random.default_rng((seed, int(Purpose.LIARS)))
        count = int(attack.fraction * data.num_clients + 1e-9)  # 29 % of 100 are 29, not 28.999999999999996
        liars[rng.choice(data.num_clients, count, replace=False)] = True
        if attack.rows is not None:
            x, y = x.copy(), y.copy()
            for k in np.flatnonzero(liars):
                own = slice(int(data.train.offsets[k]), int(data.train.offsets[k + 1]))
                poison = np.random.default_rng((seed, int(Purpose.ATTACK), int(k)))
                new_x, new_y = attack.rows(x[own], y[own], poison)
                if np.shape(new_x) != x[own].shape or np.shape(new_y) != y[own].shape:
                    raise EvenhandError(
                        f"Attack(rows=...) made rows of shape {np.shape(new_x)} with labels {np.shape(new_y)} from "
                        f"{x[own].shape} and {y[own].shape}: it must keep the shapes."
                    )
                x[own], y[own] = new_x, new_y
    starts, sizes = data.train.offsets[:-1].astype(np.int32), data.train.sizes.astype(np.int32)
    return Rows(jnp.asarray(x), jnp.asarray(y), jnp.asarray(starts), jnp.asarray(sizes), jnp.asarray(liars))


def _default_lanes(cohort: int) -> int:
    return 1 if jax.default_backend() == "cpu" else min(cohort, 64)
