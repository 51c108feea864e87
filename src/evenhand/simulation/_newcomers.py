"""How clients are served that took no part in the training."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp

from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError
from evenhand.evaluation import Metric
from evenhand.rounds import RoundState
from evenhand.simulation._checks import check_model
from evenhand.simulation._evaluation import Evaluation
from evenhand.simulation._served import Served, Untrained
from evenhand.simulation.setup import set_up
from evenhand.simulation.store import Kept, stored
from evenhand.types import Algorithm, PyTree

__all__ = ["serve_newcomers"]


def serve_newcomers(
    algorithm: Algorithm,
    server: PyTree,
    data: FederatedDataset,
    like: FederatedDataset,
    seed: int,
    untrained: Untrained,
    metrics: Sequence[Metric] = (),
) -> tuple[Kept, Served]:
    """The states of new clients, each what a client begins with from the present global model, and their metrics.

    Args:
      algorithm: the method.
      server: its state.
      data: the new clients.
      like: the clients that it was trained on.
      seed: of the run.
      untrained: as in :func:`evenhand.simulate`; the initial personal state is the one of the present global model.
      metrics: what is measured besides the model's own metrics.
    """
    for what, old, new in (
        ("examples of shape", like.feature_shape, data.feature_shape),
        ("features of type", like.train.x.dtype, data.train.x.dtype),
    ):
        if old != new:
            raise EvenhandError(
                f"serve({data.name!r}): it has {what} {new}, but the model was trained on {old}."
            )
    check_model(algorithm.model, data)
    setup = set_up(algorithm, data, cohort=1, seed=seed)
    one = algorithm.init_client(algorithm.global_params(server))
    never = jnp.zeros(data.num_clients, jnp.int32)
    state = RoundState(server, setup.state.aggregators, stored(one, data.num_clients), never)
    evaluation = Evaluation(setup, data, seed, None, untrained)
    served = evaluation.served(state)
    return Kept(state), served.with_metrics(evaluation.measured(state, metrics)) if metrics else served
