"""q-MAML: an initial model from which every client, not just the average one, learns well in one step."""

from __future__ import annotations

import jax.numpy as jnp
import optax
from jax import lax

from evenhand import aggregators, local, tree
from evenhand.algorithms.fedavg import fedavg
from evenhand.errors import EvenhandError, whole_number
from evenhand.sampling import proportional
from evenhand.types import Algorithm, ClientData, Effort, Key, Model, Params, PyTree, Report, Sampling

__all__ = ["qmaml"]


def qmaml(
    model: Model,
    *,
    q: float,
    step_size: float,
    lipschitz: float | None = None,
    adapt: bool = True,
    support: float = 0.5,
    finetune_steps: int = 5,
    sampling: Sampling = proportional(replace=False),
) -> Algorithm:
    r"""q-MAML: first-order meta-learning in which clients with high loss after an adaptation step count more.

    .. math::
        w_k = w^t - \eta \nabla F_k(w^t; D_k), \qquad
        w^{t+1} = w^t - \frac{\sum_k F_k^q g_k}{\sum_k q F_k^{q-1} \|g_k\|^2 + L F_k^q}, \quad
        F_k = F_k(w_k; D_k'), \quad g_k = \nabla F_k(w_k; D_k')

    with a client's first examples as support set :math:`D_k` and the others as query set :math:`D_k'`.

    Args:
      model: what is trained.
      q: 0 is first-order MAML.
      step_size: :math:`\eta`, the size of the inner step.
      lipschitz: :math:`L`; None: ``1 / step_size``.
      adapt: take the inner step; False: the baseline that is finetuned only for evaluation.
      support: share of a client's examples in its support set; each of the two sets has at least one.
      finetune_steps: gradient steps that every client takes on its support set, from the global model, before it is
        evaluated; 0 evaluates the global model itself.
      sampling: as in ``qfedavg``.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: a client with a single example uses it as support and as query.

    Differs from the paper in that every step uses all support and query examples, not a batch of each, and both sets
    are training examples.  A run's metrics are those of models finetuned on the support sets; for the accuracy before
    finetuning call ``eh.evaluation.evaluate(model, run.params, data.test)``.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=8)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> run = eh.simulate(qmaml(model, q=0.1, step_size=0.1), data, rounds=5, cohort=4, seed=0)
      >>> bool(run.history["train_loss"][-1] < run.history["train_loss"][0])
      True

    Source: Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020, algorithm 5.
    """
    if not 0.0 < step_size < float("inf"):
        raise EvenhandError(f"qmaml(step_size={step_size}): the step must be a finite number above 0.")
    if not 0.0 < support < 1.0:
        raise EvenhandError(f"qmaml(support={support}): the support set's share must lie between 0 and 1.")
    whole_number("finetune_steps", finetune_steps, 0, 10**6)
    curvature = 1.0 / step_size if lipschitz is None else lipschitz

    def halves(data: ClientData) -> tuple[ClientData, ClientData]:
        """A client's support and query sets."""
        share = jnp.floor(support * data.size.astype(jnp.float32)).astype(jnp.int32)
        count = jnp.clip(share, 1, jnp.maximum(data.size - 1, 1))
        skipped = jnp.where(data.size < 2, 0, count)
        query = data._replace(start=data.start + skipped, size=data.size - skipped)
        return data._replace(size=jnp.minimum(count, data.size)), query

    def inner_step(params: Params, support_set: ClientData) -> Params:
        return tree.subtract(params, tree.scale(step_size, local.full_gradient(model, params, support_set)))

    def adapted(params: Params, data: ClientData) -> tuple[Params, ClientData]:
        """The model after the inner step, and the examples that it is then evaluated on."""
        support_set, query = halves(data)
        return (inner_step(params, support_set) if adapt else params), query

    def finetuned(params: Params, data: ClientData, key: Key) -> Params:
        support_set, _ = halves(data)
        return lax.fori_loop(0, finetune_steps, lambda _, params: inner_step(params, support_set), params)

    def solve(
        params: Params, data: ClientData, key: Key, correction: optax.GradientTransformation
    ) -> tuple[Params, PyTree]:
        gradient = local.full_gradient(model, *adapted(params, data))
        gradient, state = correction.update(gradient, correction.init(params), params)
        return tree.subtract(params, tree.scale(1.0 / curvature, gradient)), state

    def effort(data: ClientData) -> Effort:
        rows = sum((part.size for part in halves(data)[0 if adapt else 1 :]), jnp.int32(0))
        return Effort(rows, rows)

    method = fedavg(
        local.Work(model, solve, effort), aggregator=aggregators.qfedavg(q, curvature), sampling=sampling
    )
    (phase,) = method.phases

    def report(message: PyTree, client_state: PyTree, data: ClientData) -> Report:
        return Report(sampling.weight(data.size), local.full_loss(model, *adapted(message.params, data)))

    return method._replace(
        phases=(phase._replace(report=report),),
        adapt=finetuned if finetune_steps > 0 else None,
        name=f"qmaml(q={q:g}, step_size={step_size:g})",
    )
