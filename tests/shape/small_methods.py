"""Small but true versions of methods that differ most: they prove that the types can hold what is to come.

None of them needed a change to the engine.  They move into the package, grown up, with their own issues.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand import local, tree
from evenhand.streams import Purpose, stream
from evenhand.types import (
    Algorithm,
    Array,
    ClientData,
    Key,
    Params,
    Phase,
    PyTree,
    Report,
    Stack,
    Sum,
    Upload,
)


def krum(f: int) -> Stack:
    """Krum (Blanchard et al., 2017): the upload with the least sum of squared distances to its neighbours."""

    def apply(uploads: Upload, present: Array, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        leaves = jax.tree.leaves(uploads.delta)
        flat = jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)
        squares = jnp.sum(jnp.square(flat[:, None] - flat[None]), axis=-1)
        squares = jnp.sort(jnp.where(present, squares, jnp.inf), axis=1)[
            :, 1:
        ]  # the nearest is the upload itself
        near = jnp.arange(flat.shape[0] - 1) < jnp.maximum(jnp.sum(present) - f - 2, 1)
        score = jnp.where(present, jnp.sum(jnp.where(near, squares, 0.0), axis=1), jnp.inf)
        return tree.take(uploads.delta, jnp.argmin(score)), state

    return Stack(lambda like, clients: (), apply)


class _Median(NamedTuple):
    point: PyTree
    number: Array


def geometric_median(passes: int, smoothing: float = 1e-5) -> Sum:
    """RFA's smoothed Weiszfeld (Pillutla et al., 2022): the mean first, then reweighted means, each a secure sum."""

    def init(like: PyTree, clients: int) -> _Median:
        return _Median(like, jnp.int32(0))

    def lift(upload: Upload, public: _Median, key: Key) -> PyTree:
        distance = tree.norm(tree.subtract(upload.delta, public.point))
        closeness = jnp.where(public.number == 0, 1.0, 1.0 / jnp.maximum(distance, smoothing))
        weight = upload.weight * closeness
        return tree.scale(weight, upload.delta), weight

    def lower(total: PyTree, state: _Median, key: Key) -> tuple[PyTree, _Median]:
        deltas, weight = total
        point = tree.scale(jnp.where(weight > 0, 1.0 / jnp.where(weight > 0, weight, 1.0), 0.0), deltas)
        return point, _Median(point, (state.number + 1) % passes)

    return Sum(init, lift, lower, publish=lambda state: state, passes=passes)


class _Mine(NamedTuple):
    inner: PyTree
    params: Params


def ditto(inner: Algorithm, work: local.Work, *, lam: float) -> Algorithm:
    """Ditto (Li et al., ICML 2021) around any method: a personal model held near the broadcast one by lam."""

    def wrap(phase: Phase, last: bool) -> Phase:
        def report(message: PyTree, mine: _Mine, data: ClientData) -> Report:
            return phase.report(message, mine.inner, data)

        def train(message: PyTree, mine: _Mine, data: ClientData, key: Key) -> tuple[PyTree, _Mine]:
            delta, state = phase.work(message, mine.inner, data, key)
            if not last:
                return delta, _Mine(state, mine.params)
            anchor = local.proximal(lam, inner.received(message))
            params, _ = work.solve(mine.params, data, stream(key, Purpose.PERSONAL), anchor)
            return delta, _Mine(state, params)

        return phase._replace(report=report, work=train)

    final = len(inner.phases) - 1
    return inner._replace(
        phases=tuple(wrap(phase, index == final) for index, phase in enumerate(inner.phases)),
        init_client=lambda params: _Mine(inner.init_client(params), params),
        personal_params=lambda server, mine: mine.params,
    )
