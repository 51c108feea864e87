"""Ditto whose clients choose their penalty on validation examples of their own."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from evenhand import local, tree
from evenhand.algorithms.beside import beside, check_method, non_negative
from evenhand.errors import EvenhandError, expect, real_number, truth_value, whole_number
from evenhand.streams import Purpose, stream
from evenhand.types import Algorithm, Array, ClientData, Effort, Key, Params

__all__ = ["dynamic_ditto"]


class _Models(NamedTuple):
    """A model for each lambda, with a leading axis, and which one the client uses."""

    models: Params
    chosen: Array


def dynamic_ditto(
    method: Algorithm,
    work: local.Work,
    *,
    strong_attack: bool = False,
    lams: tuple[float, ...] | None = None,
    few_lam: float | None = None,
    few: int = 4,
    held_out: float = 0.1,
    per_run: bool = False,
) -> Algorithm:
    r"""Dynamic Ditto: each client chooses its own penalty from a few candidates, on held-out examples.

    The client's last training examples :math:`V_k` are held out from its personal model, which takes, per batch ``b``,

    .. math::
        v^{(\lambda)} = v_k - \eta \big( \nabla F_k(v_k; b) + \lambda (v_k - w^t) \big), \qquad
        v_k \leftarrow \arg\min_{v^{(\lambda)}} F(v^{(\lambda)}; V_k).

    With ``per_run`` each :math:`\lambda` has a separate model, and the client uses the one with the highest accuracy
    on :math:`V_k` after its latest round; ties go to the lower loss there, and then to the smaller :math:`\lambda`.

    Args:
      method, work: as in :func:`evenhand.personalization.ditto`; one gradient serves all candidates of a step, so that
        the work must be plain descent, unless ``per_run``.
      strong_attack: the one bit that clients are assumed to know: that malicious updates may be scaled up, or that more
        than half of the clients are malicious (half of them is not strong).
      lams: the candidates; None: (0.05, 0.1, 0.2) under a strong attack, else (0.1, 1, 2).  For StackOverflow the paper
        has (0.01, 0.05, 0.1) and (0.05, 0.1, 0.3).
      few_lam, few: the penalty of clients with fewer held-out examples than ``few``; None: 0.1 under a strong attack,
        else 1.
      held_out: the share of its training examples that a client holds out, rounded up to whole ones; in [0, 1).
      per_run: one model per candidate, chosen at the end; False: one model, chosen at every step.

    Raises:
      EvenhandError: an argument out of range, or work that is not plain descent.

    Edge cases: a step whose candidates all have a loss that is NaN or infinite is not taken.  The global method still
    trains on all examples; with ``per_run`` a client keeps one model per candidate.  ``lams=(c,)`` with
    ``held_out=0`` and ``few_lam=c`` is :func:`evenhand.personalization.ditto` with ``lam=c``.

    Differs from the paper, which leaves 4 and 5 held-out examples open: they suffice.  Its code chooses per step
    among (0.1, 1, 2), without the rule for few examples; "select a best lambda" may also mean per run.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> run = eh.simulate(dynamic_ditto(eh.algorithms.fedavg(work), work), data, rounds=4, cohort=5)
      >>> bool(run.history["test_accuracy"][-1] > run.history["test_accuracy"][0])
      True

    Source: Li et al., *Ditto: Fair and Robust Federated Learning Through Personalization*, ICML 2021, section 4 and
    appendix D.2.
    """
    check_method("dynamic_ditto", method, work)
    lams, few_lam = _penalties(lams, few_lam, few, held_out, strong_attack=strong_attack)
    if not truth_value("per_run", per_run) and work.step_size is None:
        raise EvenhandError(
            "dynamic_ditto() needs work with a plain step size, e.g. eh.local.sgd(model, 0.1, ...), or per_run=True."
        )
    model, name, number = method.model, f"dynamic_ditto({method.name or 'method'})", len(lams)

    def held_apart(data: ClientData) -> tuple[ClientData, ClientData, Array]:
        """The examples to train on, those held out (a client keeps at least one to train on), and the penalties."""
        # Less 1e-4: float32 has 0.3 * 50 a little above 15.
        count = jnp.ceil(held_out * data.size.astype(jnp.float32) - 1e-4).astype(jnp.int32)
        rest = data.size - jnp.minimum(count, jnp.maximum(data.size - 1, 0))
        valid = data._replace(start=data.start + rest, size=data.size - rest)
        own = jnp.where(valid.size < few, jnp.float32(few_lam), jnp.asarray(lams, jnp.float32))
        return data._replace(size=rest), valid, own

    def effort(data: ClientData) -> Effort:
        return work.effort(held_apart(data)[0])

    def by_step(personal: Params, received: Params, data: ClientData, key: Key) -> Params:
        rest, valid, own = held_apart(data)
        pull = _choosing(work, received, valid, own)
        return work.solve(personal, rest, stream(key, Purpose.PERSONAL), pull)[0]

    if not per_run:
        return beside(method, train=by_step, effort=effort, name=name)

    def by_run(personal: _Models, received: Params, data: ClientData, key: Key) -> _Models:
        rest, valid, own = held_apart(data)
        key, better = stream(key, Purpose.PERSONAL), model.metrics.get("accuracy")

        def candidate(pair: tuple[Params, Array]) -> tuple[Params, Array, Array]:
            params, _ = work.solve(pair[0], rest, key, local.proximal(pair[1], received))
            loss = local.full_loss(model, params, valid)
            score = local.full_loss(model._replace(losses=better), params, valid) if better else -loss
            return params, score, jnp.where(jnp.isfinite(loss), loss, jnp.inf)

        models, scores, losses = jax.lax.map(candidate, (personal.models, own))
        return _Models(models, jnp.lexsort((losses, -scores))[0].astype(jnp.int32))

    return beside(
        method,
        begin=lambda params: _Models(tree.stack([params] * number), jnp.int32(0)),
        train=by_run,
        serve=lambda own: tree.take(own.models, own.chosen),
        effort=lambda data: jax.tree.map(lambda count: number * count, effort(data)),
        name=name,
    )


def _choosing(
    work: local.Work, anchor: Params, valid: ClientData, own: Array
) -> optax.GradientTransformation:
    """Adds the penalty, with the candidate whose step gives the lowest loss on the held-out examples."""
    size = work.step_in(valid)

    def pull(updates: Params, params: Params | None) -> Params:
        def candidate(lam: Array) -> tuple[Params, Array]:
            # As the step that is taken: the penalty moves no running statistics.
            penalty = local.spared(local.proximal(lam, anchor), work.model.statistics, sign=1.0)
            pulled, _ = penalty.update(updates, optax.EmptyState(), params)
            assert size is not None
            step = tree.scale(size, pulled)
            loss = local.full_loss(work.model, tree.subtract(params, step), valid)
            return pulled, jnp.where(jnp.isfinite(loss), loss, jnp.inf)

        pulled, losses = jax.lax.map(candidate, own)
        best = tree.take(pulled, jnp.argmin(losses))
        return tree.select(jnp.min(losses) < jnp.inf, best, tree.zeros_like(best))

    return optax.stateless(pull)


def _penalties(
    lams: tuple[float, ...] | None, few_lam: float | None, few: int, held_out: float, *, strong_attack: bool
) -> tuple[tuple[float, ...], float]:
    """The candidates in rising order, and the penalty of clients with few examples: the paper's, if not given."""
    usual, rare = (
        ((0.05, 0.1, 0.2), 0.1) if truth_value("strong_attack", strong_attack) else ((0.1, 1.0, 2.0), 1.0)
    )
    if lams is not None:
        expect("lams", lams, list | tuple, "(0.1, 1.0)")
    lams = usual if lams is None else tuple(sorted(lams))
    for lam in lams:
        non_negative("dynamic_ditto", "lams", lam)
    if few_lam is not None:
        non_negative("dynamic_ditto", "few_lam", few_lam)
    whole_number("few", few, 0)
    if not lams or not 0.0 <= real_number(held_out) < 1.0:
        arguments = f"lams={lams}, held_out={held_out}"
        raise EvenhandError(
            f"dynamic_ditto({arguments}): give at least one candidate, and a share in [0, 1)."
        )
    return lams, rare if few_lam is None else few_lam
