"""q-MAML and its relatives: an initial model from which every client, not just the average one, learns in one step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax import lax

from evenhand import aggregators, local, tree
from evenhand.algorithms.fedavg import fedavg
from evenhand.errors import EvenhandError, real_number, truth_value, whole_number
from evenhand.sampling import proportional
from evenhand.types import (
    Aggregator,
    Algorithm,
    ClientData,
    Effort,
    Key,
    Model,
    Params,
    PyTree,
    Report,
    Sampling,
)

__all__ = ["qmaml"]


def qmaml(
    model: Model,
    *,
    q: float | None = None,
    step_size: float,
    lipschitz: float | None = None,
    adapt: bool = True,
    second_order: bool = False,
    support: float = 0.5,
    finetune_steps: int = 5,
    aggregator: Aggregator | None = None,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    sampling: Sampling = proportional(replace=False),
) -> Algorithm:
    r"""q-MAML: meta-learning that weights clients with high loss after adaptation more; also plain MAML.

    .. math::
        w_k = w^t - \eta \nabla F_k(w^t; D_k), \qquad
        w^{t+1} = w^t - \frac{\sum_k F_k^q g_k}{\sum_k q F_k^{q-1} \|g_k\|^2 + L F_k^q}, \quad
        F_k = F_k(w_k; D_k'), \quad g_k = \nabla F_k(w_k; D_k')

    with a client's first examples as support set :math:`D_k` and the others as query set :math:`D_k'`.  With
    ``second_order``, :math:`g_k` is the gradient of :math:`F_k` in :math:`w^t`, through the step:
    :math:`(I - \eta \nabla^2 F_k(w^t; D_k)) \nabla F_k(w_k; D_k')`.

    An ``aggregator`` takes the place of the fraction: it gets :math:`-g_k / L` and, as losses, :math:`F_k` after the
    step.  With ``second_order=True``, ``lipschitz=1.0`` and such a server optimiser as ``optax.adam(0.001)``,

    * ``eh.aggregators.mean()`` is MAML;
    * ``eh.aggregators.risk_weighted(eh.risks.tilted(t))`` is TERM-MAML, with weights :math:`\propto e^{t F_k}`;
    * ``eh.aggregators.ascending_mixture(step, unbiased=True)`` is TR-MAML, for the worst mixture of clients.

    Args:
      model: what is trained.
      q: 0 is the mean over clients.  Give this or an ``aggregator``.
      step_size: :math:`\eta`, the size of the inner step.
      lipschitz: :math:`L`; None: ``1 / step_size``.
      adapt: take the inner step; False: the baseline that is finetuned only for evaluation.
      second_order: differentiate through the inner step; False: take :math:`g_k` for the gradient in :math:`w^t`, which
        saves a Hessian-vector product.
      support: share of a client's examples in its support set; each of the two sets has at least one.
      finetune_steps: gradient steps that every client takes on its support set, from the global model, before it is
        evaluated; 0 evaluates the global model itself.
      aggregator: reduces the uploads to one direction; None: that of q-FedAvg.
      server_opt, sampling: as in ``qfedavg``.

    Raises:
      EvenhandError: a number out of range, or both or neither of ``q`` and ``aggregator``.

    Edge cases: a client with a single example uses it as support and as query.  Without the inner step,
    or where losses are linear, both orders are the same.  Splits shuffle a client's examples; where test examples were
    given, or none are held out, they stay in the order of the data: if that is by label, the two sets have different
    labels, so shuffle them first.

    Differs from the papers in that every step uses all support and query examples, not a batch of each, and both sets
    are training examples.  A run's metrics are those of models finetuned on the support sets; the accuracy before
    finetuning is in ``run.client_metrics()["global_accuracy"]``.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=8)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> tilt = eh.aggregators.risk_weighted(eh.risks.tilted(2.0))
      >>> for method in (
      ...     qmaml(model, q=0.1, step_size=0.1),
      ...     qmaml(model, step_size=0.1, second_order=True, aggregator=tilt),  # TERM-MAML
      ... ):
      ...     run = eh.simulate(method, data, rounds=5, cohort=4, seed=0)
      ...     assert run.history["train_loss"][-1] < run.history["train_loss"][0]

    Source: Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020, algorithm 5; MAML: Finn, Abbeel and
    Levine, ICML 2017; TR-MAML: Collins, Mokhtari and Shakkottai, *Task-Robust Model-Agnostic Meta-Learning*, NeurIPS
    2020; TERM-MAML: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, section on fair meta-learning.
    """
    adapt, second_order = truth_value("adapt", adapt), truth_value("second_order", second_order)
    _check(step_size, lipschitz, support, finetune_steps)
    curvature = 1.0 / step_size if lipschitz is None else lipschitz

    def inner_step(params: Params, support_set: ClientData) -> Params:
        return tree.subtract(params, tree.scale(step_size, local.full_gradient(model, params, support_set)))

    def adapted(params: Params, data: ClientData) -> tuple[Params, ClientData]:
        """The model after the inner step, and the examples that it is then evaluated on."""
        support_set, query = _halves(data, support)
        return (inner_step(params, support_set) if adapt else params), query

    def finetuned(params: Params, data: ClientData, key: Key) -> Params:
        support_set, _ = _halves(data, support)
        return lax.fori_loop(0, finetune_steps, lambda _, params: inner_step(params, support_set), params)

    def solve(
        params: Params, data: ClientData, key: Key, correction: optax.GradientTransformation
    ) -> tuple[Params, PyTree]:
        gradient = local.full_gradient(model, *adapted(params, data))
        if second_order and adapt:
            # The step's Jacobian is symmetric, so that no reverse pass through the loop over examples is needed.
            support_set, _ = _halves(data, support)
            gradient = jax.jvp(lambda w: inner_step(w, support_set), (params,), (gradient,))[1]
        gradient, state = correction.update(gradient, correction.init(params), params)
        return tree.subtract(params, tree.scale(1.0 / curvature, gradient)), state

    def effort(data: ClientData) -> Effort:
        support_set, query = _halves(data, support)
        rows = support_set.size + query.size if adapt else query.size
        return Effort(rows, rows + support_set.size if second_order and adapt else rows)

    rule = _one_of(q, curvature, aggregator)
    method = fedavg(
        local.Work(model, solve, effort), server_opt=server_opt, aggregator=rule, sampling=sampling
    )
    (phase,) = method.phases

    def report(message: PyTree, client_state: PyTree, data: ClientData) -> Report:
        return Report(sampling.weight(data.size), local.full_loss(model, *adapted(message.params, data)))

    if phase.aggregator.needs_loss:
        phase = phase._replace(report=report)
    fair, order = "" if q is None else f"q={q:g}, ", ", second_order=True" if second_order else ""
    name = f"qmaml({fair}step_size={step_size:g}{order})"
    return method._replace(phases=(phase,), adapt=finetuned if finetune_steps > 0 else None, name=name)


def _one_of(q: float | None, curvature: float, aggregator: Aggregator | None) -> Aggregator:
    """The aggregator of q-FedAvg, or the one that is given."""
    if q is not None and aggregator is None:
        return aggregators.qfedavg(q, curvature)
    if q is None and aggregator is not None:
        return aggregator
    raise EvenhandError(
        "qmaml(): give either q=, for the step of q-FedAvg, or aggregator=, such as mean() for MAML."
    )


def _check(step_size: float, lipschitz: float | None, support: float, finetune_steps: int) -> None:
    """Checks what no part of the method checks."""
    if lipschitz is not None and not 0.0 < real_number(lipschitz) < float("inf"):
        raise EvenhandError(f"qmaml(lipschitz={lipschitz}): give a finite number above 0.")
    if not 0.0 < real_number(step_size) < float("inf"):
        raise EvenhandError(f"qmaml(step_size={step_size}): the step must be a finite number above 0.")
    if not 0.0 < real_number(support) < 1.0:
        raise EvenhandError(f"qmaml(support={support}): the support set's share must lie between 0 and 1.")
    whole_number("finetune_steps", finetune_steps, 0, 10**6)


def _halves(data: ClientData, support: float) -> tuple[ClientData, ClientData]:
    """A client's support and query sets."""
    share = jnp.floor(support * data.size.astype(jnp.float32)).astype(jnp.int32)
    count = jnp.clip(share, 1, jnp.maximum(data.size - 1, 1))
    skipped = jnp.where(data.size < 2, 0, count)
    query = data._replace(start=data.start + skipped, size=data.size - skipped)
    return data._replace(size=jnp.minimum(count, data.size)), query
