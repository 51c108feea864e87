"""What can be wrong with a simulation before it starts, each in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from evenhand.data import FederatedDataset
from evenhand.errors import Argument, EvenhandError, expect, whole_number
from evenhand.simulation._served import Untrained
from evenhand.simulation._size import check_size
from evenhand.streams import MAX_ROUNDS
from evenhand.systems import Systems
from evenhand.types import Algorithm, Array, Attack, Model, Sampling

__all__ = ["check_first_losses", "check_model", "check_numbers"]


def check_numbers(
    algorithm: Algorithm,
    data: FederatedDataset,
    rounds: int,
    seed: int,
    cohort: int | None,
    eval_every: int,
    lanes: int | None,
    devices: int | None,
    eval_clients: int | None,
    systems: Systems | None,
    attack: Attack | None,
    untrained: str,
) -> int:
    """The slots of a cohort, no more than there are clients."""
    check_parts(algorithm, data, systems, attack)
    if untrained not in get_args(Untrained):
        raise EvenhandError(Argument("untrained", repr(untrained)), ": give 'global' or 'initial'.")
    whole_number("rounds", rounds, 0, MAX_ROUNDS - 1)
    whole_number("seed", seed, 0, 2**32 - 1)
    for name, value in (
        ("cohort", cohort),
        ("eval_every", eval_every),
        ("lanes", lanes),
        ("devices", devices),
        ("eval_clients", eval_clients),
    ):
        if value is not None:
            whole_number(name, value, 1)
    params = jax.eval_shape(algorithm.model.init, jax.random.key(0))
    stateful = bool(jax.tree.leaves(jax.eval_shape(algorithm.init_client, params)))
    if algorithm.sampling.repeats and stateful:
        raise EvenhandError(
            "This method keeps a state at each client, and its sampling can draw a client twice in one round: "
            "sample without replacement, e.g. sampling=eh.sampling.uniform()."
        )
    slots = _slots(algorithm.sampling, data.num_clients, cohort)
    for need in (need for phase in algorithm.phases for need in phase.aggregator.needs):
        if not need.works(slots):
            raise EvenhandError(
                f"{need.name} needs {need.least(slots)} uploads, the cohort has {slots}: as many malicious clients as "
                "it is to expect would leave no honest upload. Draw a larger cohort, or let it expect fewer of them."
            )
    return slots


def _slots(sampling: Sampling, clients: int, cohort: int | None) -> int:
    if sampling.slots is None:
        return clients if cohort is None else min(cohort, clients)
    slots = sampling.slots(clients)
    if cohort is not None and sampling.rate is not None:
        raise EvenhandError(
            Argument("cohort", str(cohort)),
            f": this method draws its cohorts by itself, at a rate of {sampling.rate:g}: "
            "leave the cohort out, and give the method another rate.",
        )
    if cohort is not None and min(cohort, clients) != slots:
        raise EvenhandError(
            Argument("cohort", str(cohort)),
            f": this method rests on cohorts of {slots}: leave the cohort out, or give the method another one.",
        )
    return slots


def check_parts(algorithm: object, data: object, systems: object, attack: object) -> None:
    """Each part is what its argument's name says; the likeliest slips get their cure."""
    expect("algorithm", algorithm, Algorithm, "eh.algorithms.fedavg(work)")
    expect(
        "data", data, FederatedDataset, "eh.data.load(...), or eh.data.from_arrays(x, y, client) of arrays"
    )
    expect("systems", systems, Systems | None, "eh.systems.stragglers(0.5)")
    expect("attack", attack, Attack | None, "eh.types.Attack(fraction=0.2, ...)")


def check_model(model: Model, data: FederatedDataset) -> None:
    """The model fits the machine, takes the data's rows and gives one loss per row."""
    check_size(model, data)
    x, y = jnp.asarray(data.train.x[:2]), jnp.asarray(data.train.y[:2])

    def losses(x: Array, y: Array) -> Array:
        return model.losses(model.apply(model.init(jax.random.key(0)), x), y)

    try:
        shape = jax.eval_shape(losses, x, y).shape
    except (TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise EvenhandError(
            f"The model does not fit the data {data.name!r}, whose rows are {x.dtype}{list(x.shape[1:])} with labels "
            f"{y.dtype}{list(y.shape[1:])}: give a model for such rows ({reason})."
        ) from error
    if shape != (x.shape[0],):
        raise EvenhandError(
            f"The model's losses have shape {shape} for {x.shape[0]} rows: they must be one number per row, unreduced."
        )


def check_first_losses(
    clients: Mapping[str, Mapping[str, Any]], data: FederatedDataset, drawn: Any = None, adapted: bool = False
) -> None:
    """The initial model has a finite loss at every client: labels out of the model's range show here."""
    what = ", adapted to its own rows," if adapted else ""
    cure = "; or let the adaptation take smaller steps" if adapted else ""
    who = np.arange(data.num_clients) if drawn is None else drawn
    for split, sizes in (("train", data.train.sizes), ("valid", data.valid.sizes), ("test", data.test.sizes)):
        bad = np.flatnonzero(~np.isfinite(clients[split]["loss"]) & (sizes[who] > 0))
        if len(bad):
            name, count = data.client_ids[who[bad[0]]], f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            raise EvenhandError(
                f"Client {name!r}{count} has {split} rows on which the loss of the initial model{what} is not finite: "
                f"check that its labels lie in the model's range and its features are of ordinary size{cure}."
            )
