"""What a run will take: its work, memory and time, from rounds that are trained, timed and thrown away."""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from evenhand._platform import check_process
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError
from evenhand.evaluation import Metrics, check_metrics
from evenhand.rounds import RoundState
from evenhand.simulation._job import Job, Untrained, check_first_losses, check_job, check_model
from evenhand.simulation._simulate import Measure, Session, Stretch, Train
from evenhand.simulation.evaluating import Evaluation, Served
from evenhand.simulation.program import ROWS, USEFUL
from evenhand.simulation.setup import set_up
from evenhand.systems import Systems
from evenhand.types import Algorithm, Attack, Params

_FEWEST, _PART = 7, 5
"""Rounds that are timed if time allows, and the part of a run that is timed at most if these are fewer."""


class Expectation(NamedTuple):
    """What a run is expected to take.

    Attributes:
      rounds: of the run.
      evaluations: how often all evaluated clients are evaluated, the measurement of further metrics included.
      clients: slots of a cohort.
      parameters: numbers in the model.
      steps: local steps of a round, all clients together, the mean over the rounds that were timed.
      examples: examples that a round trains on, each as often as it is used, likewise.
      sent: bytes that a client receives (``"down"``) and sends (``"up"``) in a round that it takes part in.
      timed: rounds that were trained and timed.
      compiling: seconds of the set-up, which compiles the rounds and the evaluation.
      per_round: seconds of a round in the fastest, the mean and the slowest of the stretches that were timed, without
        the first one if there are others; the slowest is NaN where there is one stretch only.
      per_evaluation: seconds of an evaluation.
      memory: the largest number of bytes so far, ``"process"``: of the process, all that it holds included; and
        ``"device"``: of an accelerator.  A number that the system does not report is left out.
    """

    rounds: int
    evaluations: int
    clients: int
    parameters: int
    steps: float
    examples: float
    sent: dict[str, float]
    timed: int
    compiling: float
    per_round: tuple[float, float, float]
    per_evaluation: float
    memory: dict[str, int]

    @property
    def seconds(self) -> tuple[float, float, float]:
        """The time of the whole run by the fastest, the mean and the slowest rounds."""
        rest = self.compiling + self.evaluations * self.per_evaluation
        fastest, mean, slowest = (rest + self.rounds * seconds for seconds in self.per_round)
        return fastest, mean, slowest


def estimate(
    algorithm: Algorithm,
    data: FederatedDataset,
    *,
    rounds: int,
    cohort: int | None = None,
    seed: int = 0,
    eval_every: int = 10,
    attack: Attack | None = None,
    systems: Systems | None = None,
    lanes: int | None = None,
    devices: int | None = None,
    eval_clients: int | None = None,
    untrained: Untrained = "global",
    stream: bool | None = None,
    metrics: Metrics = (),
    start: Params | None = None,
    masks: bool = False,
    budget: float = 3.0,
) -> Expectation:
    """Estimates the work, memory and time of :func:`evenhand.simulate` with these arguments.

    The first rounds of the run are trained on the device, timed, and thrown away; nothing is written.  Stretches of 1,
    2, 4, ... rounds are timed until they have taken ``budget`` seconds, or are a fifth of the run.  The estimate is
    less sure where cohorts or clients differ much in size, where the machine has other work, and of a run whose first
    rounds are unlike the later ones.  Saving checkpoints and writing a report come on top.

    Args:
      algorithm: as in :func:`evenhand.simulate`, and so are all others but the last.
      data: the clients' examples.
      rounds: how many rounds; at least 1.
      cohort: clients drawn per round.
      seed: of all randomness.
      eval_every: rounds between two evaluations of all clients.
      attack: what malicious clients do.
      systems: stragglers and dropouts.
      lanes: clients trained side by side on a device.
      devices: the number of devices over which a cohort is spread.
      eval_clients: number of clients to evaluate.
      untrained: the model for clients whose personal model never trained.
      stream: whether the training rows stay on the host.
      metrics: metrics of a set of examples.
      start: the parameters from which training begins.
      masks: whether secure sums draw their masks.
      budget: seconds of training after which no further stretch begins.

    Raises:
      EvenhandError: as :func:`evenhand.simulate` does, or there are no rounds.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> method = eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1, batch_size=10))
      >>> expected = estimate(method, data, rounds=1000, cohort=5, eval_every=100)
      >>> expected.evaluations, expected.parameters
      (11, 650)
    """
    arguments = dict(locals())
    arguments.pop("budget")
    job = Job.from_arguments(arguments)
    check_process()
    check_job(job)
    if rounds < 1:
        raise EvenhandError("estimate(rounds=0): give at least one round, since its time is to be measured.")
    check_model(algorithm.model, data)
    check_metrics(job.measured, algorithm.client_model, data)
    return _timed(job, budget)


def _timed(job: Job, budget: float) -> Expectation:
    """As :func:`estimate`, of a job that has been checked."""
    begin = time.perf_counter()
    setup = set_up(job)
    evaluation = Evaluation(job, setup.program, setup.keys, setup.source, setup.store)
    session, model = Session(setup, job, evaluation), job.algorithm.model
    served = _served(session, setup.state)
    adapted, served_model = job.algorithm.adapt is not None, job.algorithm.client_model
    check_first_losses(served.clients, job.data, served_model, evaluation.drawn, adapted)
    # No rounds: the call compiles them.
    state = _trained(session, setup.state, 0, 0).state
    compiled = time.perf_counter()
    _served(session, state)
    measured = time.perf_counter()
    stretches, seconds = _stretches(session, state, budget)
    # The first call of a program is slower than all others.
    settled = seconds[1:] or seconds
    per_round = [spent / count for count, spent in settled]
    mean = sum(spent for _, spent in settled) / sum(count for count, _ in settled)
    sent = session.meter.read({}, 0)["per_client_and_round"]
    return Expectation(
        rounds=job.rounds,
        evaluations=1 + -(-job.rounds // job.eval_every) + bool(job.measured),
        clients=setup.program.cohort,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))),
        steps=_mean(stretches, USEFUL),
        examples=_mean(stretches, ROWS),
        sent={way: float(sent[way]["bytes"]) for way in ("down", "up")},
        timed=sum(count for count, _ in seconds),
        compiling=compiled - begin,
        per_round=(min(per_round), mean, max(per_round) if len(per_round) > 1 else float("nan")),
        per_evaluation=measured - compiled,
        memory=_memory(),
    )


def _served(session: Session, state: RoundState) -> Served:
    served = session.answer(Measure(state))
    assert isinstance(served, Served)
    jax.block_until_ready(served.clients)
    return served


def _trained(session: Session, state: RoundState, first: int, count: int) -> Stretch:
    stretch = session.answer(Train(state, first, count))
    assert isinstance(stretch, Stretch)
    return stretch


def _stretches(
    session: Session, state: RoundState, budget: float
) -> tuple[list[Stretch], list[tuple[int, float]]]:
    """Stretches of rounds with their numbers of rounds and seconds, until they have taken the budget."""
    stretches, seconds = list[Stretch](), list[tuple[int, float]]()
    done, count, begin = 0, 1, time.perf_counter()
    # Not all of a short run: it would be no estimate.
    most = min(session.job.rounds, max(_FEWEST, session.job.rounds // _PART))
    while done < most and (not done or time.perf_counter() - begin < budget):
        count = min(count, most - done, session.program.buffer)
        stretch = _trained(session, state, done, count)
        state, done, count = stretch.state, done + stretch.rounds, 2 * count
        # Without the state, whose memory goes to the next stretch.
        stretches.append(stretch._replace(state=()))
        seconds.append((stretch.rounds, sum(stretch.seconds.values())))
    return stretches, seconds


def _mean(stretches: list[Stretch], name: str) -> float:
    """What a round reports under a name, on average."""
    return float(np.mean(np.concatenate([stretch.infos[name] for stretch in stretches]), dtype=np.float64))


def _memory() -> dict[str, int]:
    """The largest number of bytes that the process and the device have had so far, where that is known."""
    peaks = dict[str, Any]()
    try:
        import resource  # Windows has none
    except ImportError:
        pass
    else:
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peaks["process"] = largest if sys.platform == "darwin" else 1024 * largest
    if (peak := (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")) is not None:
        peaks["device"] = peak
    return peaks
