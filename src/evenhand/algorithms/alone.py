"""One holder of data, who trains alone, round after round."""

from __future__ import annotations

import jax.numpy as jnp

from evenhand.aggregators import mean
from evenhand.errors import EvenhandError
from evenhand.local import Work, check_work
from evenhand.sampling import uniform
from evenhand.types import Algorithm, Params, Phase, Report

__all__ = ["alone"]


def alone(work: Work) -> Algorithm:
    r"""Central training: the only client continues its local work in each round.

    .. math:: \min_w F(w) = \frac1n \sum_i f(x_i; w)

    Rounds only say when the model is measured and saved: what an optimiser has learnt, such as Adam's moments, lives
    on from round to round.  The methods of central papers, private ones among them, run like federated ones this way.

    Args:
      work: :func:`evenhand.local.sgd`, or private work such as :func:`evenhand.privacy.dp_sgd`; its guarantee is kept.

    Raises:
      EvenhandError: more than one client; or work that cannot be continued.

    Edge cases: two rounds of ten steps differ from one of twenty in their batches, which are drawn anew in each round,
    and in nothing else.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=1)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> work = eh.local.sgd(model, 0.5, steps=20, batch_size=50)
      >>> run = eh.simulate(alone(work), data, rounds=5)
      >>> bool(run.history["test_accuracy"][-1] > 0.8)
      True

    Source: the usual training of one model in one place, as in Li et al., *Private Adaptive Optimization with Side
    Information*, ICML 2022, algorithm 8.
    """
    if (steps := check_work(work, private=True, keeps=True, statistics_stay=True).continued) is None:
        raise EvenhandError(
            "alone() continues local work from round to round, and this work cannot be: give eh.local.sgd(...)."
        )

    def init(params: Params, clients: int) -> Params:
        if clients != 1:
            raise EvenhandError(
                f"alone() is for one client, and there are {clients}: pool the data, as in eh.data.from_arrays(x, y, "
                "client=numpy.zeros(len(y))), or give a federated method."
            )
        return params

    phase = Phase(
        broadcast=lambda state, client: state,
        report=lambda message, state, data: Report(jnp.float32(1.0), jnp.float32(jnp.nan)),
        work=steps.solve,
        aggregator=mean(),
        server=lambda state, direction, reported, key: (direction, {}),
        effort=work.effort,
    )
    return Algorithm(
        model=work.model,
        init=init,
        phases=(phase,),
        global_params=lambda state: state,
        sampling=uniform(weighted=False),
        init_client=steps.init,
        received=lambda message: message,
        privacy=work.privacy,
        name="alone",
    )
