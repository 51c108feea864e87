"""FedEx-LoRA: exact averages of the products of low-rank factors."""

from __future__ import annotations

from typing import NamedTuple

import jax
import optax

from evenhand import local, tree
from evenhand._low_rank import LowRank, adapted
from evenhand._paths import Named
from evenhand.aggregators.mean import reciprocal
from evenhand.algorithms import averaging
from evenhand.algorithms.averaging import Message
from evenhand.errors import ModelError, expect, truth_value
from evenhand.sampling import uniform
from evenhand.types import (
    Algorithm,
    Array,
    ClientData,
    Compression,
    Info,
    Key,
    Model,
    Params,
    Phase,
    PyTree,
    Sampling,
    Sum,
    Upload,
)

__all__ = ["fedex_lora"]


class _Server(NamedTuple):
    """The factors and all other trained parameters, and what the server has added to the weights, by path."""

    factors: Params
    residuals: Named


class _Direction(NamedTuple):
    """The mean change of the factors, and what their product lacks of the mean of the clients' products, by path."""

    factors: Params
    residuals: Named


def fedex_lora(work: local.Work, *, sampling: Sampling = uniform(), keep_partial: bool = False) -> Algorithm:
    r"""FedEx-LoRA: FedAvg on low-rank factors, whose server adds what the mean of the factors lacks to the weights.

    A model of :func:`evenhand.models.lora` has the weights :math:`W + R + s B A`, with :math:`s = \alpha / r` and a
    residual :math:`R`, which is 0 at first and constant for clients.  They train the factors, and with weights
    :math:`p_k` that sum to 1 the server sets

    .. math::
        A^{t+1} = \sum_k p_k A_k, \qquad B^{t+1} = \sum_k p_k B_k, \qquad
        R^{t+1} = R^t + s \Big( \sum_k p_k B_k A_k - B^{t+1} A^{t+1} \Big).

    The weights of the new model are therefore exactly the mean of the clients' weights:

    .. math:: W + R^{t+1} + s B^{t+1} A^{t+1} = W + R^t + s \sum_k p_k B_k A_k.

    FedAvg on the factors lacks the residual, which is the covariance of :math:`B_k` and :math:`A_k` over the clients.

    Args:
      work: local work on a model of ``lora``, made by :func:`evenhand.local.sgd`.
      sampling: as in :func:`evenhand.algorithms.fedavg`.
      keep_partial: as in ``fedavg``.

    The parameters of the result's ``model`` have the residual at ``"residual"`` beside the factors ``"a"`` and ``"b"``.
    ``eh.models.thaw(model, run.params)`` merges all of them into the weights.

    Raises:
      EvenhandError: an argument of the wrong kind; work that is not mini-batch descent, that keeps its optimiser, or
        that guarantees privacy.
      ModelError: the model has no factors, it was frozen after it got them, or only its factors ``b`` are trained, for
        which ``fedavg`` is exact.

    Edge cases: parameters that are trained in full (``also=``) are averaged as in ``fedavg``.  If one client takes part
    in a round, the residual stays as it is, and this is ``fedavg``.  For ``ditto`` or ``finetune`` around it, make
    their work on its ``model``; a personal model then has a residual of its own.

    Differs from the paper: there, all clients take part in each round, and the server sends the residual of one round
    as factors of rank :math:`m r`.  Here clients are sampled, and a client that is drawn gets the sum of the residuals
    of all rounds, which has full rank.

    Cost: a client sends :math:`r (i + o)` numbers for a matrix with ``i`` inputs and ``o`` outputs, and receives
    :math:`i o + r (i + o)`: more than all weights.  The server needs the factors of each client, so there are no secure
    sums, no noise and no other aggregator; it adds their products as they arrive.  ``fedavg`` on a model with
    ``lora(..., train="b")`` is exact with small messages in both directions.

    Example:
      >>> import jax, evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> whole = eh.models.mlp(64, classes=10, hidden=(32,))
      >>> model = eh.models.lora(whole, whole.init(jax.random.key(7)), rank=2, on="dense_0", also="output")
      >>> work = eh.local.sgd(model, 0.1, epochs=1, batch_size=10)
      >>> run = eh.simulate(fedex_lora(work), data, rounds=2)
      >>> run.info["floats"]["up"] == 2 * (64 + 32) + 32 * 10 + 10 + 1  # factors, the output layer and a weight
      True
      >>> run.info["floats"]["down"] - run.info["floats"]["up"] == 64 * 32 - 1  # the residual, and no weight
      True

    Source: Singhal, Ponkshe and Vepakomma, *FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning of
    Large Language Models*, ACL 2025.
    """
    local.check_work(
        work,
        objection="the server needs the product of each client's factors, which no noisy sum gives it: give this work, "
        'on a model of eh.models.lora(..., train="b"), to eh.algorithms.fedavg, which is exact then',
    )
    expect("sampling", sampling, Sampling, "eh.sampling.uniform()")
    low_rank = _factors_of(work)
    schedule, estimate, client_opt = local.parts_of(work, "fedex_lora")
    model = _with_residuals(work.model, low_rank)
    aggregator = _exact(low_rank)

    def train(message: Message, state: PyTree, data: ClientData, key: Key) -> tuple[Params, PyTree]:
        factors, residuals = low_rank.parted(message.params)

        def slope(factors: Params, batch: local.Batch, key: Key) -> Params:
            return low_rank.parted(estimate(low_rank.joined(factors, residuals), batch, key))[0]

        trained, _ = local.descent(schedule, slope, client_opt)(factors, data, key, optax.identity())
        return tree.subtract(trained, factors), state

    def server(state: _Server, direction: _Direction, reported: Array, key: Key) -> tuple[_Server, Info]:
        after = _Server(
            tree.add(state.factors, direction.factors), tree.add(state.residuals, direction.residuals)
        )
        norms = {"update_norm": direction.factors, "residual_norm": direction.residuals}
        return after, {name: tree.norm(change) for name, change in norms.items()}

    def served(state: _Server) -> Params:
        return low_rank.joined(state.factors, state.residuals)

    phase = Phase(
        broadcast=lambda state, client: Message(served(state), ()),
        report=lambda message, state, data: averaging.report(
            model, message.params, data, sampling, aggregator
        ),
        work=train,
        aggregator=aggregator,
        server=server,
        effort=work.effort,
    )
    return Algorithm(
        model=model,
        init=lambda params, clients: _Server(*low_rank.parted(params)),
        phases=(phase,),
        global_params=served,
        sampling=sampling,
        partial_work=truth_value("keep_partial", keep_partial),
        name="fedex_lora",
    )


def _factors_of(work: local.Work) -> LowRank:
    """The factors of the model of the work.

    Raises:
      ModelError: it has none that this method can use.
    """
    low_rank, name = adapted(work.model), work.model.name or "this model"
    if low_rank is None:
        raise ModelError(
            f"fedex_lora: {name} has no low-rank factors, or was frozen after it got them: make the model with "
            "eh.models.lora(model, params, ...), and freeze parameters before that."
        )
    if low_rank.fixed is not None:
        raise ModelError(
            f"fedex_lora: of {name}, only the factors B are trained, so the mean of the factors is exact: use fedavg."
        )
    return low_rank


def _with_residuals(model: Model, low_rank: LowRank) -> Model:
    """The model with residuals of zeros beside its first factors; one that has residuals is returned as it is."""
    _, residuals = low_rank.parted(jax.eval_shape(model.init, jax.random.key(0)))
    if residuals:
        return model
    return model._replace(
        init=lambda key: low_rank.joined(model.init(key), low_rank.no_residuals()),
    )


def _exact(low_rank: LowRank) -> Sum:
    """The mean of the factors' changes, and the covariance over clients of both factors of each matrix.

    The covariance of the changes is that of the factors themselves, which clients therefore need not send.
    """

    def lift(upload: Upload, public: PyTree, key: Key) -> PyTree:
        products = low_rank.products(upload.delta)
        return tree.scale(upload.weight, (upload.delta, products)), upload.weight

    def lower(total: PyTree, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        sums, weight = total
        factors, products = tree.scale(reciprocal(weight), sums)
        return _Direction(factors, tree.subtract(products, low_rank.products(factors))), state

    def bits(like: PyTree) -> int:
        return sum(8 * leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(like))

    # Clients send the factors, and the server multiplies them: as with short uploads, it is the server that lifts.
    whole = Compression(begin=lambda like: (), shorten=None, bits=bits)
    return Sum(init=lambda like, clients: (), lift=lift, lower=lower, compression=whole)
