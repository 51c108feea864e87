"""Runs that the identity tests of the fair methods share, each method compiled once."""

from __future__ import annotations

import math
from functools import cache, partial

import numpy as np
from identity_runs import DATA, MODEL, flat

import evenhand as eh
from evenhand.types import Algorithm

WORK = eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=4)
STEP = eh.local.sgd(MODEL, 0.1, steps=1)
"""One full-batch step, for methods that differ in the aggregation alone: it compiles fast."""
EQUAL_WEIGHTS = eh.sampling.uniform(weighted=False)
alg = eh.algorithms
_tilt = partial(alg.fedtilt, WORK, classes=3)


def example_tilt(t: float) -> eh.local.Work:
    """Local work on the tilted loss of each batch."""
    return eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=4, risk=eh.risks.tilted(t))


METHODS: dict[str, Algorithm] = {
    "fedavg": alg.fedavg(STEP),
    "fedavg, equal weights": alg.fedavg(STEP, sampling=EQUAL_WEIGHTS),
    "fedavg, batches": alg.fedavg(WORK, sampling=EQUAL_WEIGHTS),
    "fedprox 0.5, equal weights": alg.fedprox(WORK, mu=0.5, sampling=EQUAL_WEIGHTS),
    "fedavg, examples tilted 2": alg.fedavg(example_tilt(2.0), sampling=EQUAL_WEIGHTS),
    "fedavg, examples tilted 0": alg.fedavg(example_tilt(0.0), sampling=EQUAL_WEIGHTS),
    "q 0": alg.qfedavg(STEP, q=0.0, lipschitz=10.0, sampling=EQUAL_WEIGHTS),
    "q 0, by examples": alg.qfedavg(STEP, q=0.0, lipschitz=3.0, sampling=eh.sampling.uniform()),
    "q 1": alg.qfedavg(STEP, q=1.0, lipschitz=10.0, sampling=EQUAL_WEIGHTS),
    "t 0": alg.term(STEP, t=0.0),
    "t 1e-6": alg.term(STEP, t=1e-6),
    "t 1": alg.term(STEP, t=1.0),
    "t 0, running": alg.term(STEP, t=0.0, running=0.5),
    "t 0, reference": alg.term(STEP, t=0.0, reference=True),
    "t 1, newest only": alg.term(STEP, t=1.0, running=1.0),
    "t inf": alg.term(STEP, t=math.inf),
    "t 1000": alg.term(STEP, t=1000.0),
    "theta 1": alg.delta_fl(STEP, theta=1.0),
    "theta 1, filtered": alg.delta_fl(STEP, theta=1.0, filtered=True),
    "theta 1, smoothed": alg.delta_fl(STEP, theta=1.0, nu=0.3),
    "theta 0.5": alg.delta_fl(STEP, theta=0.5),
    "theta 0.5, filtered": alg.delta_fl(STEP, theta=0.5, filtered=True),
    "theta 0.5, equal weights": alg.delta_fl(STEP, theta=0.5, sampling=EQUAL_WEIGHTS),
    "theta 0.5, filtered, equal weights": alg.delta_fl(
        STEP, theta=0.5, filtered=True, sampling=EQUAL_WEIGHTS
    ),
    "theta 0.5, as printed, equal weights": alg.delta_fl(
        STEP, theta=0.5, filtered=True, strict=False, sampling=EQUAL_WEIGHTS
    ),
    "theta 0.6, filtered, equal weights": alg.delta_fl(
        STEP, theta=0.6, filtered=True, sampling=EQUAL_WEIGHTS
    ),
    "theta 0.5, hardly smoothed": alg.delta_fl(STEP, theta=0.5, nu=1e-4),
    "theta 0.5, all smoothed": alg.delta_fl(STEP, theta=0.5, nu=1e6),
    "theta 0.01": alg.delta_fl(STEP, theta=0.01),
    "theta 0.01, nu 1": alg.delta_fl(STEP, theta=0.01, nu=1.0),
    "tilts 0": _tilt(),
    "tilts 0, mu 2": _tilt(prox_mu=2.0),
    "tilts 0, mu 0": _tilt(prox_mu=0.0),
    "tilts 0, mu inf": _tilt(prox_mu=math.inf),
    "tilts 0, tied": _tilt(prox_mu=0.5, tied=True),
    "tilts 0, personal step": _tilt(personal=eh.local.sgd(MODEL, 0.3, epochs=2, batch_size=4)),
    "tilts 2": _tilt(tilt_class=2.0, tilt_sample=2.0),
    "tilts 2 and -1": _tilt(tilt_class=2.0, tilt_sample=-1.0),
    "tilts 2 and -1, any labels": alg.fedtilt(WORK, tilt_class=2.0, tilt_sample=-1.0),
    "server tilt 0.5": _tilt(tilt_server=0.5),
    "server tilt 1e-6": _tilt(tilt_server=1e-6),
    "afl 0": alg.afl(MODEL, gamma_w=0.1, gamma_lambda=0.0),
    "afl 0.1": alg.afl(MODEL, gamma_w=0.1, gamma_lambda=0.1),
    "fedsgd": alg.qfedsgd(MODEL, q=0.0, lipschitz=10.0),
}


@cache
def run(name: str, rounds: int = 3, cohort: int | None = None) -> eh.Run:
    """The method's run over the toy clients."""
    return eh.simulate(METHODS[name], DATA, rounds=rounds, cohort=cohort, seed=0)


def end(name: str, rounds: int = 3, cohort: int | None = None) -> np.ndarray:
    """The global parameters at its end."""
    return flat(run(name, rounds, cohort).params)


def served(name: str) -> np.ndarray:
    """What each client is served."""
    return np.stack([flat(run(name).personal_params(k)) for k in range(DATA.num_clients)])
