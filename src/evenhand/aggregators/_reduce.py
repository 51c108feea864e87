"""Aggregators at work: on a whole cohort's uploads, after something that changes these, and several as one.

:func:`aggregate` is for use outside training; :func:`reduce_uploads`, :func:`in_passes` and :func:`in_loop` run an
aggregator in a round.  :func:`before` puts a change of the uploads in front of another aggregator, and :func:`in_parts`
makes one sum of several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from evenhand import tree
from evenhand._platform import check_process
from evenhand.aggregators.stacked import is_large, suits_products
from evenhand.errors import EvenhandError, expect, truth_value
from evenhand.streams import Purpose, stream
from evenhand.types import (
    Aggregator,
    Array,
    Cohort,
    Key,
    Need,
    PyTree,
    Radial,
    Report,
    Stack,
    Sum,
    Summation,
    Upload,
)

# --- on a whole cohort's uploads, in as many passes as it needs --------------------------------------------------

Lift: TypeAlias = Callable[[Array, Upload, PyTree, Key], PyTree]
"""``(slot, upload, public, key) -> lifted``."""


def aggregate(
    aggregator: Aggregator,
    deltas: PyTree,
    weights: ArrayLike | None = None,
    losses: ArrayLike | None = None,
    seed: int = 0,
    masks: bool = False,
) -> PyTree:
    """The direction that ``aggregator`` computes from ``m`` uploads, outside any training run.

    Args:
      aggregator: a ``Sum`` or a ``Stack``.
      deltas: tree whose leaves have a leading axis ``m``.  Whole numbers count as float32.
      weights: ``(m,)`` weights; None: all 1.
      losses: ``(m,)`` losses for aggregators that need them.
      seed: for aggregators that draw at random.
      masks: draw the masks of secure sums, which cancel: they change no bit of the direction.

    Returns:
      A tree like one upload's delta; of uploads in half precision it is computed in float32, then rounded to theirs.
      As in a first round of training, uploads are shortened where the aggregator compresses them.  An upload is left
      out if its delta, its weight or, where needed, its loss is not finite, or if its weight is below 0.

    Raises:
      EvenhandError: leading axes disagree, there is no upload, or the aggregator needs losses and got none.

    Example:
      >>> import jax.numpy as jnp
      >>> from evenhand.aggregators import mean
      >>> aggregate(mean(), jnp.array([[0.0, 2.0], [4.0, 2.0]]), weights=jnp.array([3.0, 1.0])).tolist()
      [1.0, 2.0]
    """
    masks = truth_value("masks", masks)
    check_process()
    aggregator = aggregator if masks else aggregator.unmasked
    given = jax.tree.map(jnp.asarray, deltas)
    deltas = wide = tree.widened(given)
    sizes = {leaf.shape[:1] for leaf in jax.tree.leaves(deltas)}
    if len(sizes) != 1 or sizes & {(), (0,)}:
        raise EvenhandError(
            f"aggregate(): the leaves of deltas have leading axes {sorted(sizes)}; give one entry per upload."
        )
    (m,) = sizes.pop()
    if aggregator.needs_loss and losses is None:
        raise EvenhandError("aggregate(): this aggregator weights uploads by their loss; pass losses=.")
    weight = jnp.ones(m, jnp.float32) if weights is None else jnp.asarray(weights, jnp.float32)
    loss = jnp.full(m, jnp.nan, jnp.float32) if losses is None else jnp.asarray(losses, jnp.float32)
    if weight.shape != (m,) or loss.shape != (m,):
        raise EvenhandError(f"aggregate(): weights {weight.shape} and losses {loss.shape} must be ({m},).")
    root = jax.random.key(seed)
    deltas = _shortened(aggregator, deltas, jax.random.split(stream(root, Purpose.COMPRESSION), m))
    present = (weight >= 0) & jnp.isfinite(weight) & jnp.isfinite(jax.vmap(tree.norm)(deltas))
    present = present & jnp.isfinite(loss) if aggregator.needs_loss else present
    uploads = tree.among(present, Upload(deltas, weight, loss))
    state = aggregator.init(tree.zeros_like(tree.take(deltas, jnp.int32(0))), m)
    if isinstance(aggregator, Sum) and aggregator.weigh is not None:
        cohort = Cohort.of(jnp.arange(m, dtype=jnp.int32), present)
        weight, state = aggregator.weigh(Report(uploads.weight, uploads.loss), cohort, state)
        uploads = uploads._replace(weight=tree.among(present, weight))
    noise = jax.random.split(stream(root, Purpose.NOISE), m)
    # Outside of a program, its loops and choices would be compiled at each call, with the uploads as constants.
    reduced = _in_program(aggregator) if is_large(deltas) else partial(reduce_uploads, aggregator)
    direction, _ = reduced(uploads, present, state, stream(root, Purpose.AGGREGATOR), noise)
    return direction if tree.form(given) == tree.form(wide) else _narrowed(direction, given)


def _narrowed(direction: PyTree, deltas: PyTree) -> PyTree:
    """The direction in the precision of the uploads; that of whole numbers stays."""

    def narrow(leaf: Array, own: Array) -> Array:
        return leaf.astype(own.dtype) if jnp.issubdtype(own.dtype, jnp.inexact) else leaf

    return jax.tree.map(narrow, direction, deltas)


def _shortened(aggregator: Aggregator, deltas: PyTree, keys: Key) -> PyTree:
    """Uploads as clients send them that have not sent anything before."""
    if (compression := aggregator.compression) is None or (shorten := compression.shorten) is None:
        return deltas
    begin = compression.begin(tree.zeros_like(tree.take(deltas, jnp.int32(0))))
    return jax.vmap(lambda delta, key: shorten(delta, begin, key)[0])(deltas, keys)


def reduce_uploads(
    aggregator: Aggregator,
    uploads: Upload,
    present: Array,
    state: PyTree,
    key: Key,
    noise: Key,
    lift: Lift | None = None,
) -> tuple[PyTree, PyTree]:
    """``(direction, state)`` from stacked uploads.

    Args:
      aggregator: a ``Sum`` or a ``Stack``.
      uploads: leaves ``(m, ...)``; what empty slots hold does not matter.
      present: bool ``(m,)``, which of them are accepted.
      state: the aggregator's.
      key: the server's.
      noise: ``(m,)``, a key for each client, for the noise that it adds to its lifted upload.
      lift: in place of the aggregator's, where clients in some slots send what they should not.
    """
    if not isinstance(aggregator, Sum):
        read = uploads if aggregator.skips_absent else tree.among(present, uploads)
        if not jax.tree.leaves(read.delta):  # all of the model is personal: there is nothing to sum
            return read.delta, state
        return aggregator.apply(read, present, state, key)

    one_by_one = is_large(uploads.delta)

    def sum_of(public: PyTree, number: Array) -> PyTree:
        def lifted_by(slot: Array, present: Array, upload: Upload, noise: Key) -> PyTree:
            own = jax.random.fold_in(noise, number)
            lifted = aggregator.lift(upload, public, own) if lift is None else lift(slot, upload, public, own)
            return tree.select(present, lifted, tree.zeros_like(lifted))

        slots = (jnp.arange(present.shape[0], dtype=jnp.int32), present, uploads, noise)

        if aggregator.summation is not None and aggregator.summation.add is not None:
            # Lifted as without masks: other loops could round differently.
            lifted = (
                lax.map(lambda own: lifted_by(*own), slots) if one_by_one else jax.vmap(lifted_by)(*slots)
            )
            # Folded twice: folded once, it is the key that lower() draws noise from.
            secret = jax.random.fold_in(jax.random.fold_in(key, number), 1)
            return aggregator.summation.add(lifted, present, secret)
        if not one_by_one:
            lifted = jax.vmap(lifted_by)(*slots)
            return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), lifted)
        # One after another, as a sum over the leading axis of large arrays is many times slower on a CPU.
        like = jax.eval_shape(lifted_by, *jax.tree.map(lambda leaf: leaf[0], slots))

        def step(total: PyTree, own: tuple[Array, Array, Upload, Key]) -> tuple[PyTree, None]:
            return tree.add(total, aggregator.limbs_apart(lifted_by(*own))), None

        zeros = tree.zeros(jax.eval_shape(aggregator.limbs_apart, like))
        return aggregator.limbs_together(lax.scan(step, zeros, slots)[0], like)

    radial = aggregator.radial
    is_its_own = lift is None and radial is not None and radial.lift is aggregator.lift
    if radial is not None and is_its_own and suits_products(uploads.delta):
        return in_loop(aggregator, state, key, _by_products(radial, uploads, present, sum_of))
    return in_loop(aggregator, state, key, sum_of)


@lru_cache(maxsize=16)
def _program_of(aggregator: Aggregator) -> Callable[..., tuple[PyTree, PyTree]]:
    """:func:`reduce_uploads` as a program, the same for aggregators of the same functions."""
    return jax.jit(partial(reduce_uploads, aggregator))


def _in_program(aggregator: Aggregator) -> Callable[..., tuple[PyTree, PyTree]]:
    try:
        return _program_of(aggregator)
    except TypeError:  # it does not hash: somebody else has made it, with a list or an array in it
        return jax.jit(partial(reduce_uploads, aggregator))


_NEAR = 1 / 16
"""A squared distance over the squares of both lengths, below which it is computed from the difference."""


def _by_products(
    radial: Radial, uploads: Upload, present: Array, sum_of: Callable[[PyTree, Array], PyTree]
) -> Callable[[PyTree, Array], PyTree]:
    r"""``sum_of`` by two products with all uploads, which on a CPU take half the time of a loop over them.

    The first gives the distances, as :math:`\|x\|^2 - 2 x^\top z + \|z\|^2`.  That drowns in rounding where an upload
    is much closer to the point than to zero, or overflows: then ``sum_of`` takes its place.
    """
    leaves = jax.tree.leaves(uploads.delta)
    squares = jnp.square(jax.vmap(tree.norm)(uploads.delta))  # once for all passes

    def total_of(public: PyTree, number: Array) -> PyTree:
        point = radial.point(public)
        square = jnp.square(tree.norm(point))

        def inner_products() -> Array:
            pairs = zip(leaves, jax.tree.leaves(point), strict=True)
            return sum((_product(leaf, z, z.ndim) for leaf, z in pairs), jnp.zeros_like(squares))

        # Many sums begin at zero, which needs no product.
        inner = lax.cond(square > 0, inner_products, lambda: jnp.zeros_like(squares))
        lengths = squares + square
        apart = lengths - 2.0 * inner
        # Of what empty slots hold, which may be anything, nothing may be infinite: it is multiplied by zero.
        is_exact = jnp.where(present, apart > _NEAR * lengths, jnp.isfinite(squares))
        factors = radial.factor(jnp.sqrt(jnp.where(is_exact, apart, 1.0)), uploads.weight, public)
        factors = jnp.where(present, factors, 0.0)

        def products() -> PyTree:
            return jax.tree.map(lambda leaf: _product(factors, leaf, 1), uploads.delta), jnp.sum(factors)

        return lax.cond(jnp.all(is_exact), products, lambda: sum_of(public, number))

    return total_of


def _product(a: Array, b: Array, axes: int) -> Array:
    """Over the last axes of ``a`` and the first of ``b``, in full precision on every device."""
    return jnp.tensordot(a, b, axes, precision="highest")


def in_passes(
    aggregator: Sum, state: PyTree, key: Key, sum_of: Callable[[PyTree, int], PyTree]
) -> tuple[PyTree, PyTree]:
    """``(direction, state)`` in as many passes as the aggregator takes.

    Args:
      aggregator: a sum.
      state: its state.
      key: the server's, for all passes.
      sum_of: ``(public, number) -> total``, the sum over the accepted uploads of what is lifted in pass ``number``.
    """
    direction: PyTree = ()
    for number in range(aggregator.passes):
        total = sum_of(aggregator.publish(state), number)
        direction, state = aggregator.lower(total, state, jax.random.fold_in(key, number))
    return direction, state


def in_loop(
    aggregator: Sum, state: PyTree, key: Key, sum_of: Callable[[PyTree, Array], PyTree]
) -> tuple[PyTree, PyTree]:
    """As :func:`in_passes`, in a compiled loop, so a hundred passes need no larger program than one."""

    def one_pass(number: Array, state: PyTree) -> tuple[PyTree, PyTree]:
        total = sum_of(aggregator.publish(state), number)
        return aggregator.lower(total, state, jax.random.fold_in(key, number))

    # As it always was: checkpoints know a method by its traced program, names included.
    one_pass.__name__ = "one"
    once = jax.jit(one_pass)  # traced once, for the shapes and for the loop

    def step(number: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        return once(number, carry[1])

    if aggregator.passes == 1:
        return once(jnp.int32(0), state)
    begin = tree.zeros(jax.eval_shape(once, jnp.int32(0), state)[0])
    return lax.fori_loop(jnp.int32(0), jnp.int32(aggregator.passes), step, (begin, state))


# --- after a change of the uploads -------------------------------------------------------------------------------

Change: TypeAlias = Callable[[Upload, Array, Key], tuple[Upload, Array]]
"""``(uploads, present, key) -> (uploads, present)``, with the same or another number of slots."""


def before(
    then: Aggregator,
    change: Change,
    name: str,
    needs: tuple[Need, ...] | None = None,
    skips_absent: bool = False,
) -> Stack:
    """``then`` on what ``change`` makes of the uploads.

    Args:
      then: reduces the changed uploads.
      change: what comes before.
      name: that of the factory, for errors.
      needs: how many uploads the two of them need; None: as many as ``then``.
      skips_absent: whether ``change`` does not read what empty slots hold.

    Raises:
      EvenhandError: ``then`` weighs clients by their reports, which it would have to do before it sees an upload.
    """

    def reduced(rule: Aggregator, uploads: Upload, given: _Given) -> tuple[PyTree, PyTree]:
        changed, present = change(uploads, given.present, given.first)
        noises = jax.random.split(given.noise, present.shape[0])
        return reduce_uploads(rule, changed, present, given.state, given.second, noises)

    return _preceded(then, reduced, name, needs, skips_absent)


Factors: TypeAlias = Callable[[PyTree, Array], Array]
"""``(deltas, present) -> factors``, ``(m,)``, whatever empty slots hold."""


def rescaled(then: Aggregator, factors: Factors, name: str, needs: tuple[Need, ...] | None = None) -> Stack:
    """``then`` on uploads that are multiplied by ``factors``, which may depend on all; else as :func:`before`."""

    def reduced(rule: Aggregator, uploads: Upload, given: _Given) -> tuple[PyTree, PyTree]:
        by_slot = factors(uploads.delta, given.present)
        noises = jax.random.split(given.noise, given.present.shape[0])
        if not isinstance(rule, Sum):
            longer = jax.vmap(_times)(by_slot, uploads)
            return reduce_uploads(rule, longer, given.present, given.state, given.second, noises)

        # A sum multiplies what it reads: a copy of all uploads would cost twelve means of them on a CPU.
        def lift(slot: Array, upload: Upload, public: PyTree, key: Key) -> PyTree:
            return rule.lift(_times(by_slot[slot], upload), public, key)

        return reduce_uploads(rule, uploads, given.present, given.state, given.second, noises, lift)

    return _preceded(then, reduced, name, needs, skips_absent=True)


def _times(factor: Array, upload: Upload) -> Upload:
    return upload._replace(delta=tree.scale(factor, upload.delta))


class _Given(NamedTuple):
    present: Array
    state: PyTree
    first: Key
    second: Key
    noise: Key


def check_then(factory: str, then: Aggregator) -> None:
    """Checks that an aggregator follows, and not the function that makes one."""
    expect(f"{factory}(then=)", then, Aggregator, "eh.aggregators.mean()")


def _preceded(
    then: Aggregator,
    reduced: Callable[[Aggregator, Upload, _Given], tuple[PyTree, PyTree]],
    name: str,
    needs: tuple[Need, ...] | None,
    skips_absent: bool,
) -> Stack:
    """The aggregator that ``reduced`` makes of ``then``."""
    if isinstance(then, Sum) and then.weigh is not None:
        raise EvenhandError(
            f"{name}(then=): this aggregator weights clients by their reports before they train, so it cannot follow "
            "one that changes their uploads: give mean(), geometric_median() or another that takes uploads as they are."
        )

    # A server that has the uploads gains nothing by adding them under masks.
    rule = then.unmasked

    def apply(uploads: Upload, present: Array, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        return reduced(rule, uploads, _Given(present, state, *jax.random.split(key, 3)))

    needs = then.needs if needs is None else needs
    # Clients shorten their uploads before the server does anything with them, wherever that stands.
    return Stack(
        init=then.init,
        apply=apply,
        needs_loss=then.needs_loss,
        needs=needs,
        compression=then.compression,
        skips_absent=skips_absent,
    )


# --- several as one ----------------------------------------------------------------------------------------------


def in_parts(parts: Sequence[Sum]) -> Sum:
    """Several sums as one: a delta is a tuple with an entry for each, and so are weights and losses.

    Args:
      parts: the sums, each of one pass, that stream without masks.

    Raises:
      EvenhandError: some of them add whole numbers under :func:`evenhand.aggregators.secure`, and others do not; or
        one compresses uploads.
    """
    summations = [part.summation for part in parts]
    if any(part.compression is not None for part in parts):
        raise EvenhandError(
            "Methods side by side share their uploads, so no upload can be compressed alone: leave out quantized(...) "
            "and top_k(...), or train each method in a separate run."
        )
    if len({summation is not None and summation.bits for summation in summations}) > 1:
        raise EvenhandError(
            "Methods side by side share their uploads: give secure(...) to all of them, or to none."
        )

    def weigh(reports: Report, cohort: Cohort, states: PyTree) -> tuple[Array, PyTree]:
        weights, after = list[Array](), list[PyTree]()
        for j, (part, state) in enumerate(zip(parts, states, strict=True)):
            weight = reports.weight[:, j]
            if part.weigh is not None:
                weight, state = part.weigh(Report(weight, reports.loss[:, j]), cohort, state)
            weights.append(weight)
            after.append(state)
        return jnp.stack(weights, axis=1), tuple(after)

    def lift(upload: Upload, publics: PyTree, key: Key) -> PyTree:
        uploads = (Upload(delta, upload.weight[j], upload.loss[j]) for j, delta in enumerate(upload.delta))
        return tuple(
            part.lift(own, publics[j], jax.random.fold_in(key, j))
            for j, (part, own) in enumerate(zip(parts, uploads, strict=True))
        )

    def lower(totals: PyTree, states: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        done = [part.lower(totals[j], states[j], jax.random.fold_in(key, j)) for j, part in enumerate(parts)]
        return tuple(direction for direction, _ in done), tuple(state for _, state in done)

    return Sum(
        init=lambda likes, clients: tuple(part.init(likes[j], clients) for j, part in enumerate(parts)),
        lift=lift,
        lower=lower,
        publish=lambda states: tuple(part.publish(own) for part, own in zip(parts, states, strict=True)),
        weigh=weigh if any(part.weigh for part in parts) else None,
        needs_loss=any(part.needs_loss for part in parts),
        summation=_joined([summation for summation in summations if summation is not None]),
        needs=tuple(dict.fromkeys(need for part in parts for need in part.needs)),
        of_slots=any(part.of_slots for part in parts),
    )


def _joined(summations: Sequence[Summation]) -> Summation | None:
    """How a tuple of sums is found: each as it is alone."""
    if not summations:
        return None

    def add(lifted: PyTree, present: Array, key: Key) -> PyTree:
        parts = zip(summations, lifted, strict=True)
        return tuple(
            part.add(numbers, present, jax.random.fold_in(key, j))
            for j, (part, numbers) in enumerate(parts)
            if part.add is not None
        )

    return summations[0]._replace(
        add=add if all(part.add is not None for part in summations) else None,
        numbers=None,
        anything=None,
        in_limbs=all(part.in_limbs for part in summations),
        fewest=max(part.fewest for part in summations),
        clip=None,
    )
