"""A cohort's local work and the reduction of its uploads, streamed where the aggregator allows it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from evenhand import rounds, tree
from evenhand.aggregators import in_loop, in_passes, reduce_uploads
from evenhand.simulation._client import Client, Shared, Trained
from evenhand.simulation._groups import Groups, Members, side_by_side, sum_of
from evenhand.simulation.store import States
from evenhand.types import Aggregator, Array, Key, PyTree, Sum, Upload

__all__ = ["Reduced", "reduced", "stacked"]


class Reduced(NamedTuple):
    """The result of a cohort's work.

    Attributes:
      direction: what the uploads are reduced to.
      memory: the aggregator's state.
      states: the new states, one per slot of the groups, as :meth:`Groups.as_dealt` gives them.
      accepted: which uploads were accepted, bool ``(m,)``.
    """

    direction: PyTree
    memory: PyTree
    states: PyTree
    accepted: Array


def reduced(
    aggregator: Aggregator,
    memory: PyTree,
    client: Client,
    shared: Shared,
    groups: Groups,
    states: States,
    key: Key,
    noise: Key,
    ids: Array,
) -> Reduced:
    """Trains the cohort and reduces what it sends, in the least memory that the aggregator allows.

    A sum in one pass keeps no upload.  A sum in several passes keeps the uploads on the device that made them, and
    reduces them pass by pass.  Any other aggregator gets all of them at once.
    """
    if not isinstance(aggregator, Sum) or not aggregator.streams:
        return stacked(aggregator, memory, client, shared, groups, states, key, noise, ids)
    if aggregator.passes > 1:
        return _in_passes(aggregator, memory, client, shared, groups, states, key)

    def on_device(
        members: Members, fixed: tuple[Shared, States, PyTree]
    ) -> tuple[PyTree, tuple[PyTree, Array]]:
        shared, states, public = fixed

        def lifted(group: Members, done: Trained) -> PyTree:
            return _lifted(public, 0, client, shared, group, done.upload, done.accepted)

        def step(total: PyTree, group: Members) -> tuple[PyTree, tuple[PyTree, Array]]:
            done = _train(client, group, (shared, states))
            return tree.add(total, lifted(group, done)), (done.state, done.accepted)

        first = tree.take(members, jnp.int32(0))
        like = jax.eval_shape(lambda: lifted(first, _train(client, first, (shared, states))))
        return lax.scan(step, _zeros(like), members)

    fixed = shared, states, aggregator.publish(memory)
    totals, (states_after, accepted) = groups.devices.each(on_device, groups.members, fixed)
    direction, memory = in_passes(aggregator, memory, key, lambda public, number: groups.total(totals))
    return Reduced(direction, memory, groups.as_dealt(states_after), groups.ungroup(accepted))


def _in_passes(
    aggregator: Sum,
    memory: PyTree,
    client: Client,
    shared: Shared,
    groups: Groups,
    states: States,
    key: Key,
) -> Reduced:
    done = groups.map_groups(partial(_train, client), (shared, states))

    def total_of(public: PyTree, number: Array) -> PyTree:
        def on_device(kept: tuple[Members, Upload, Array], fixed: tuple[PyTree, Array, Shared]) -> PyTree:
            public, number, shared = fixed

            def lifted(group: tuple[Members, Upload, Array]) -> PyTree:
                members, uploads, accepted = group
                return _lifted(public, number, client, shared, members, uploads, accepted)

            def step(total: PyTree, group: tuple[Members, Upload, Array]) -> tuple[PyTree, None]:
                return tree.add(total, lifted(group)), None

            like = jax.eval_shape(lambda: lifted(tree.take(kept, jnp.int32(0))))
            return lax.scan(step, _zeros(like), kept)[0]

        kept = groups.members, done.upload, done.accepted
        return groups.total(groups.devices.each(on_device, kept, (public, number, shared)))

    direction, memory = in_loop(aggregator, memory, key, total_of)
    return Reduced(direction, memory, groups.as_dealt(done.state), groups.ungroup(done.accepted))


def stacked(
    aggregator: Aggregator,
    memory: PyTree,
    client: Client,
    shared: Shared,
    groups: Groups,
    states: States,
    key: Key,
    noise: Key,
    ids: Array,
    agreed: Callable[[Upload, Array], Upload] | None = None,
) -> Reduced:
    """As :func:`reduced`, with all uploads at once; ``agreed`` has colluding clients replace theirs.

    ``noise`` has the key of each client of the cohort, ``(m,)``, and ``ids`` the clients.
    """
    done = groups.map_groups(partial(_train, client), (shared, states))
    delta = groups.by_coordinate(done.upload.delta)
    (weight, loss), accepted = groups.ungroup((done.upload[1:], done.accepted))
    uploads = Upload(delta, weight, loss)
    if agreed is not None:
        uploads = agreed(tree.among(accepted, uploads), accepted)
        accepted = accepted & jax.vmap(rounds.accepts_delta, axis_size=len(accepted))(uploads.delta)

    def lift(slot: Array, upload: Upload, public: PyTree, key: Key) -> PyTree:
        return client.lift(shared, ids[slot], upload, public, key)

    direction, memory = groups.devices.whole(
        reduce_uploads(aggregator, uploads, accepted, memory, key, noise, lift)
    )
    return Reduced(direction, memory, groups.as_dealt(done.state), accepted)


def _train(client: Client, members: Members, fixed: tuple[Shared, States]) -> Trained:
    """One group's local work, clients side by side."""
    shared, states = fixed
    return side_by_side(partial(client.train, shared), members, states.of(members.ids))


def _lifted(
    public: PyTree,
    number: Array | int,
    client: Client,
    shared: Shared,
    members: Members,
    uploads: Upload,
    accepted: Array,
) -> PyTree:
    """What one group adds to the sum of pass ``number``."""

    def lift(member: Members, upload: Upload) -> PyTree:
        key = jax.random.fold_in(client.noise(shared, member), number)
        return client.lift(shared, member.ids, upload, public, key)

    return sum_of(accepted, side_by_side(lift, members, uploads))


def _zeros(like: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
