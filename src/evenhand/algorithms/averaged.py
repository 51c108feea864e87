"""The averaged iterate of any method, in place of the last one."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand import tree
from evenhand.errors import EvenhandError, expect, real_number, truth_value
from evenhand.text import call_text
from evenhand.types import Algorithm, Array, Info, Key, Params, Phase, PyTree

__all__ = ["averaged"]


class _Averaged(NamedTuple):
    """The wrapped method's state, the mean of its global models, and the sum of their weights over the last one.

    The mean is in float32 where the model is in half precision, in which late rounds would not move it.
    """

    inner: PyTree
    mean: Params
    total: Array


def averaged(method: Algorithm, *, growth: float = 1.0, initial: bool = True) -> Algorithm:
    r"""Model averaging: runs a method unchanged; the result is the mean of its global models over the rounds.

    .. math::
        \bar w^T = \frac{\sum_{t=0}^T \beta_t w^t}{\sum_{t=0}^T \beta_t}, \qquad \beta_t = g^t

    Args:
      method: any method; its clients train from :math:`w^t`, never from the mean.
      growth: :math:`g \ge 1`: 1 weights all rounds equally, as AFL does; Delta-FL's theorem has :math:`1 / (1 -
        \gamma \lambda \tau / 2)` for :math:`\tau` local steps of size :math:`\gamma` with a ridge :math:`\lambda`.
      initial: whether the initial model, :math:`w^0`, counts.

    Raises:
      EvenhandError: ``growth`` below 1 or infinite; or a method that adapts to the loss of its global model.

    Personal models are not averaged; where a method has them, a run's metrics are theirs.  The last model is kept, too:
    ``method.global_params(run.state.server.inner)``, for the ``method`` given here.

    Edge cases: before the first round the result is the initial model.  A round without uploads does not count.
    With a large ``growth`` the result is the last model; nothing overflows, however many rounds there are.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=8)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> method = eh.algorithms.delta_fl(eh.local.sgd(model, 0.5, epochs=1, batch_size=10), theta=0.5)
      >>> runs = [eh.simulate(one, data, rounds=20, cohort=2) for one in (method, averaged(method, growth=1.1))]
      >>> last, mean = (float(run.history["train_loss"][-1]) for run in runs)
      >>> mean < last
      True

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, theorem 5; Mohri et al., *Agnostic Federated Learning*, ICML 2019.
    """
    initial = truth_value("initial", initial)
    expect("method", method, Algorithm, "eh.algorithms.fedavg(work)")
    if not 1.0 <= real_number(growth) < math.inf:
        raise EvenhandError(
            f"averaged(growth={growth}): the weights must grow by a finite factor of 1 or more."
        )
    if method.observe is not None:
        raise EvenhandError(
            "averaged() got a method that adapts to the loss of its global model, which averaging would change: "
            "give one that does not, e.g. fedprox() with a fixed mu."
        )

    def wrap(phase: Phase, *, last: bool) -> Phase:
        def broadcast(state: _Averaged, client: Array) -> PyTree:
            return phase.broadcast(state.inner, client)

        def server(state: _Averaged, direction: PyTree, reported: Array, key: Key) -> tuple[_Averaged, Info]:
            inner, info = phase.server(state.inner, direction, reported, key)
            if not last:
                return state._replace(inner=inner), info
            total = 1.0 + state.total * (1.0 / growth)
            moved = tree.subtract(tree.widened(method.global_params(inner)), state.mean)
            after = _Averaged(inner, tree.add(state.mean, tree.scale(1.0 / total, moved)), total)
            if phase.steps_if_empty and method.privacy is None:  # the count of uploads may be private
                after = tree.select(reported > 0, after, state._replace(inner=inner))
            return after, info

        return phase._replace(broadcast=broadcast, server=server)

    def mean(state: _Averaged) -> Params:
        shapes = jax.eval_shape(method.global_params, state.inner)
        return jax.tree.map(lambda leaf, own: leaf.astype(own.dtype), state.mean, shapes)

    *before, final = method.phases
    personal = method.personal_params
    options = {f"growth={growth:g}": growth != 1, "initial=False": not initial}
    return method._replace(
        name=call_text("averaged", method.name or "method", options),
        init=lambda params, n: _Averaged(method.init(params, n), tree.widened(params), jnp.float32(initial)),
        phases=(*(wrap(phase, last=False) for phase in before), wrap(final, last=True)),
        global_params=mean,
        personal_params=None if personal is None else lambda state, client: personal(state.inner, client),
    )
