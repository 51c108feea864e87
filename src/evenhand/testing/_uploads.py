"""The laws of an :data:`evenhand.types.Aggregator` and of an :class:`evenhand.types.Attack`, each as a check."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evenhand import rounds, tree
from evenhand._jaxpr import programs
from evenhand.aggregators import aggregate, reduce_uploads
from evenhand.simulation.program import Program
from evenhand.streams import keys_of
from evenhand.systems import Systems
from evenhand.testing._check import Check, are_equal, check_all, check_form, checks_of, form
from evenhand.types import Aggregator, Array, Attack, Cohort, PyTree, Report, Sampling, Stack, Sum, Upload

# --- aggregators ----------------------------------------------------------------------------------------------


def check_aggregator(
    aggregator: Aggregator,
    *,
    uploads: int = 7,
    keeps_consensus: bool = True,
    tolerance: float = 1e-5,
    like: PyTree = None,
) -> None:
    """Checks that an aggregator obeys the laws every aggregator must obey.

    * The direction has the structure, shapes and dtypes of a delta, and is finite.
    * It does not depend on the order of the uploads.
    * Empty slots have no vote: the direction with some slots filled is that of these uploads alone, also with NaN or
      1e30 in the empty ones where ``skips_absent=True`` says that they are not read.
    * Losses are read only with ``needs_loss=True``: without it clients report NaN, which leaves a sum's direction as it
      is, and any other finite.
    * The state keeps its structure, shapes and dtypes.
    * Uploads that all agree are returned as they are.  With ``keeps_consensus=False``, uploads of zeros give zeros, or
      noise that another seed changes.
    * The same seed gives the same bits; arguments are not modified.
    * For a sum: no uploads give zeros, unless noise is added; a declared sensitivity bounds ``||lift||`` for
      uploads of any size; one said to be radial multiplies by the factor that it gives for the distance.
    * For a sum with a ``release``: another key gives other noise, and over 200 keys the direction varies as much as the
      ``noise_multiplier`` promises for what one upload changes.
    * Where clients shorten their uploads: what is sent and what is kept have the forms of the upload and of the memory;
      the same key gives the same bits; an upload that is not finite is not made finite.  The order, and slots, are
      those of the uploads as the server reads them off, since clients may round at random.

    Args:
      aggregator: what is checked.
      uploads: the number of uploads to generate.
      keeps_consensus: whether equal uploads must be returned as they are; False for one that adds noise, clips or
        shortens.
      tolerance: relative difference allowed between two orders of summation.
      like: a tree with the structure and the shapes of one upload's delta, for the aggregator of a method that uploads
        something else than changes of parameters; its leaves may be arrays or ``jax.ShapeDtypeStruct``, and its values
        are not used.  None: a matrix and a number.

    Raises:
      AssertionError: a law does not hold; the message says which.

    Example:
      >>> import evenhand as eh
      >>> check_aggregator(eh.aggregators.mean())
    """
    check_all(
        aggregator_checks(
            aggregator, uploads=uploads, keeps_consensus=keeps_consensus, tolerance=tolerance, like=like
        )
    )


def aggregator_checks(
    aggregator: Aggregator,
    *,
    uploads: int = 7,
    keeps_consensus: bool = True,
    tolerance: float = 1e-5,
    like: PyTree = None,
) -> tuple[Check, ...]:
    """The laws of :func:`check_aggregator`, each as a check of its own, for a test runner to show one by one.

    Arguments are those of :func:`check_aggregator`; nothing is computed before the first check is called.

    Returns:
      Checks with a ``name``, in the order in which :func:`check_aggregator` calls them.

    Example:
      >>> import evenhand as eh
      >>> [check.name for check in aggregator_checks(eh.aggregators.krum(1))][:2]
      ['the direction has the form of an upload', 'the same uploads give the same bits']
    """
    rule = _Rule(aggregator, uploads, tolerance, like)
    is_sum = isinstance(aggregator, Sum)
    is_bounded = is_sum and aggregator.sensitivity is not None
    # As where it is used: a wrapper that gives the sum another lift leaves it behind.
    is_radial = is_sum and aggregator.radial is not None and aggregator.radial.lift is aggregator.lift
    is_loud = promised_noise(aggregator) > 0
    return checks_of(
        (True, "the direction has the form of an upload", rule.check_form),
        (True, "the same uploads give the same bits", rule.check_same_bits),
        (True, "the order does not matter", rule.check_order),
        (True, "empty slots have no vote", rule.check_slots),
        (not aggregator.needs_loss, "losses are read only if asked for", rule.check_losses),
        (True, "the state keeps its form", rule.check_state),
        (keeps_consensus, "uploads that agree are returned", rule.check_consensus),
        (is_sum, "nothing comes of no uploads", rule.check_nothing),
        (is_bounded, "the sensitivity bounds uploads", rule.check_sensitivity),
        (is_loud, "the noise is as large as the release says", rule.check_noise),
        (not keeps_consensus, "uploads of zeros give zeros or fresh noise", rule.check_zeros),
        (is_radial, "the lift is a factor of the distance", rule.check_radial),
        (aggregator.compression, "short uploads keep forms, and hide nothing", rule.check_compression),
        (True, "arguments are not modified", rule.check_arguments),
    )


class _Rule:
    """An aggregator under test: its laws, and the uploads that they share."""

    def __init__(self, aggregator: Aggregator, count: int, tolerance: float, like: PyTree = None) -> None:
        # Laws of sums are checked for sums alone.
        self.aggregator: Any = aggregator
        self.tolerance, self.like = tolerance, like
        rng = np.random.default_rng(0)

        def drawn(*shape: int) -> Any:
            return rng.normal(size=(count, *shape)).astype(np.float32)

        deltas: Any = {"w": drawn(3, 2), "b": (drawn(),)}
        if like is not None:
            deltas = jax.tree.map(lambda leaf: drawn(*np.shape(leaf)), like)
        weights: Any = rng.integers(1, 20, count).astype(np.float32)
        losses: Any = rng.uniform(0.1, 3.0, count).astype(np.float32)
        self.uploads = Upload(deltas, weights, losses)
        self.copies = jax.tree.map(np.copy, self.uploads)
        self.order = rng.permutation(count)
        self.upload = jax.tree.map(lambda leaf: leaf[0], deltas)

    def direction(self, uploads: Upload, seed: int = 0) -> PyTree:
        weights, losses = map(jnp.asarray, uploads[1:])
        try:
            direction = aggregate(self.aggregator, uploads.delta, weights, losses, seed)
        except (AttributeError, KeyError, IndexError) as error:
            if self.like is not None:
                raise
            raise AssertionError(
                f"The aggregator cannot read uploads of a matrix and a number ({error!r:.100}): if those of its method "
                "have another form, give like=, a tree of zeros with that form."
            ) from error
        return jax.tree.map(np.array, direction)

    @cached_property
    def once(self) -> PyTree:
        return self.direction(self.uploads)

    @cached_property
    def given(self) -> Upload:
        return jax.tree.map(jnp.asarray, self.uploads)

    def state(self) -> PyTree:
        return self.aggregator.init(tree.zeros_like(self.upload), len(self.order))

    def check_form(self) -> None:
        check_form(self.once, self.upload, "The direction does not look like a delta")
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(self.once)), (
            "The direction of finite uploads is not finite: guard divisions by 0, such as by a sum of weights."
        )

    def check_same_bits(self) -> None:
        assert _gap(self.once, self.direction(self.uploads)) == 0, (
            "The same uploads gave different bits: draw from the key that lift, lower or apply gets, not from "
            "numpy.random."
        )

    def check_order(self) -> None:
        # In another order clients have other keys, and may round to other numbers.
        plain = self.aggregator._replace(compression=None)
        read = _Rule(plain, len(self.order), self.tolerance, self.like)
        turned = read.direction(jax.tree.map(lambda leaf: leaf[self.order], self.uploads))
        assert _gap(read.once, turned) <= self.tolerance, (
            "The direction depends on the order of the uploads: an upload may not count by the number of its slot."
        )

    def check_slots(self) -> None:
        check_slots(self.aggregator, self.given, np.arange(len(self.order)), self.state(), self.tolerance)

    def check_losses(self) -> None:
        unknown = self.direction(self.uploads._replace(loss=np.full_like(self.uploads.loss, np.nan)))
        # A stack may mark uploads by all of their numbers, to deal them to buckets at random.
        is_same = are_equal(self.once, unknown) or isinstance(self.aggregator, Stack)
        assert is_same and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(unknown)), (
            "The direction depends on losses, which are NaN in training unless the aggregator has needs_loss=True."
        )

    def check_state(self) -> None:
        state, present = self.state(), jnp.ones(len(self.order), bool)
        after = jax.eval_shape(self.reduced, self.given, present, state, jax.random.key(0))[1]
        assert tree.form(after) == tree.form(state), (
            "The state after a round does not have the structure, shapes and dtypes of the one before."
        )

    def reduced(self, uploads: Upload, present: Array, state: PyTree, key: Any) -> tuple[PyTree, PyTree]:
        """The direction and the state after a round, without the masks of a secure sum."""
        ids, (server, clients) = jnp.arange(len(self.order), dtype=jnp.int32), jax.random.split(key)
        reports, cohort = Report(uploads.weight, uploads.loss), Cohort.of(ids, present)
        weights, state, _ = rounds.weighed(self.aggregator, reports, cohort, state)
        uploads, noise = uploads._replace(weight=weights), jax.random.split(clients, len(ids))
        return reduce_uploads(self.aggregator.unmasked, uploads, present, state, server, noise)

    def check_consensus(self) -> None:
        same = jax.tree.map(lambda leaf: np.repeat(leaf[:1], len(self.order), axis=0), self.uploads.delta)
        gap = _gap(self.direction(self.uploads._replace(delta=same)), self.upload)
        assert gap <= self.tolerance, (
            "Uploads that all agree are not returned as they are: divide by the sum of the weights that they get, or "
            "give keeps_consensus=False for an aggregator that clips, shortens or adds noise."
        )

    def lifted(self, uploads: Upload) -> PyTree:
        lift = jax.jit(jax.vmap(self.aggregator.lift, in_axes=(0, None, None)))
        return lift(uploads, self.aggregator.publish(self.state()), jax.random.key(0))

    def check_nothing(self) -> None:
        state, total = self.state(), tree.zeros_like(tree.take(self.lifted(self.given), jnp.int32(0)))
        nothing, after = self.aggregator.lower(total, state, jax.random.key(0))
        is_noisy = self.aggregator.sensitivity is not None or promised_noise(self.aggregator) > 0
        gap = 0.0 if is_noisy else _gap(nothing, tree.zeros_like(nothing))
        assert gap == 0, (
            "The sum of no uploads does not give zeros: for a total of zeros lower must return zeros, so divide by "
            "jnp.maximum(weight, 1e-9), say, and add nothing."
        )
        is_kept = jax.tree.structure(after) == jax.tree.structure(state)
        assert is_kept, "Lowering changed the state's structure."

    def check_zeros(self) -> None:
        zeros = self.uploads._replace(delta=jax.tree.map(np.zeros_like, self.uploads.delta))
        direction = self.direction(zeros)
        is_zero = not any(leaf.any() for leaf in jax.tree.leaves(direction))
        assert is_zero or not are_equal(direction, self.direction(zeros, seed=1)), (
            "Uploads of zeros give a direction that is not zero, and the same for every seed: noise must be drawn from "
            "the key that lift, lower or apply gets."
        )

    def check_noise(self) -> None:
        """By the inequality of Hammersley, Chapman and Robbins, which holds whatever is done to a noisy sum."""
        everybody = jnp.ones(len(self.order), bool)
        # As long as a clip lets it be, and once without it, or with its opposite in its place.
        uploads = self.given._replace(delta=tree.scale(1e4, self.given.delta))
        is_fixed = self.aggregator.release.sampling == "fixed"
        turned = uploads._replace(delta=jax.tree.map(lambda leaf: leaf.at[0].multiply(-1.0), uploads.delta))
        others = (turned, everybody) if is_fixed else (uploads, everybody.at[0].set(False))

        def direction(uploads: Upload, present: Array, key: Any) -> Array:
            leaves = jax.tree.leaves(self.reduced(uploads, present, self.state(), key)[0])
            return jnp.concatenate(list(map(jnp.ravel, leaves)))

        keys = jax.random.split(jax.random.key(7), _DRAWS)
        draw = jax.jit(jax.vmap(direction, (None, None, 0)))
        drawn, moved = (np.array(draw(*given, keys), np.float64) for given in (others, (uploads, everybody)))
        assert np.ptp(drawn, axis=0).any(), (
            "Another key gives the same noise: that of a release must be drawn from the key that lift or lower gets."
        )
        # Projected on what the upload changes, found by half of the keys, so that their noise is not counted as change.
        change, half = moved - drawn, _DRAWS // 2
        along = change[:half].mean(axis=0)
        changes, numbers = change[half:] @ along, drawn @ along
        surely = changes.mean() - 5 * changes.std() / np.sqrt(half)
        promised, mechanism = promised_noise(self.aggregator), self.aggregator.release.mechanism
        # Gaussian noise that is only added is as large as it says.
        is_added = mechanism == "gaussian" and changes.std() <= 1e-3 * abs(changes.mean())
        ratio = 1 / promised if is_added else np.sqrt(np.expm1(min(promised**-2, 700.0)))
        assert surely <= 1.25 * ratio * numbers.std(), (
            "One upload changes the direction by more than the release allows: the noise is smaller than its "
            "noise_multiplier times the sensitivity. Add noise of that deviation to the sum, before any division."
        )

    def check_sensitivity(self) -> None:
        bound = self.aggregator.sensitivity * (1 + 1e-5)
        for size in (1e-3, 1.0, 1e4):
            scaled = self.given._replace(delta=tree.scale(size, self.given.delta))
            norms = jax.vmap(tree.norm)(self.lifted(scaled))
            assert jnp.max(norms) <= bound, (
                "An upload's contribution exceeds the declared sensitivity: lift must clip all that it returns "
                "together, a weight or a count too."
            )

    def check_radial(self) -> None:
        radial, state = self.aggregator.radial, self.state()
        for _ in range(2):  # at the first point and at the one that a pass leads to
            public = self.aggregator.publish(state)
            lifted = jax.vmap(self.aggregator.lift, in_axes=(0, None, None))(
                self.given, public, jax.random.key(0)
            )
            distances = jax.vmap(lambda delta, z: tree.norm(tree.subtract(delta, z)), in_axes=(0, None))(
                self.given.delta, radial.point(public)
            )
            factors = radial.factor(distances, self.given.weight, public)
            multiples = jax.vmap(tree.scale)(factors, self.given.delta)
            gap = _gap(lifted, (multiples, factors))
            assert gap <= self.tolerance, "The lift is not the upload times its factor, and the factor."
            total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), lifted)
            _, state = self.aggregator.lower(total, state, jax.random.key(0))

    def check_compression(self) -> None:
        upload = jax.tree.map(jnp.asarray, self.upload)
        compression, like = self.aggregator.compression, tree.zeros_like(upload)
        memory, keys = compression.begin(like), jax.random.split(jax.random.key(0), 2)
        shorten = jax.jit(compression.shorten)
        sent, kept = shorten(upload, memory, keys[0])
        words = "What is sent or kept does not have the form of the upload or of the memory."
        assert (form(sent), form(kept)) == (form(self.upload), form(memory)), words
        again = shorten(upload, memory, keys[0])
        assert are_equal((sent, kept), again), "The same key gave another short upload."
        *others, last = jax.tree.leaves(upload)
        for value in (jnp.nan, jnp.inf):
            unsound = last.ravel().at[0].set(value).reshape(last.shape)
            broken = jax.tree.unflatten(jax.tree.structure(upload), [*others, unsound])
            assert not jnp.isfinite(tree.norm(shorten(broken, memory, keys[1])[0])), (
                "A short upload hides a number that is not finite."
            )
        bits = compression.bits(like)
        assert isinstance(bits, int) and bits > 0, "A short upload must have a whole number of bits, above 0."

    def check_arguments(self) -> None:
        assert self.once is not None, "what would have written to them"
        assert _gap(self.copies, self.uploads) == 0, "The aggregator wrote to its arguments."


_DRAWS = 200
"""Keys over which noise is measured: its deviation is then known to a twentieth."""


def reads_weights(aggregator: Aggregator, uploads: Upload, state: PyTree) -> bool:
    """Whether an aggregator makes anything of the weights that clients report."""
    m = len(uploads.weight)
    everybody, noise = jnp.ones(m, bool), jax.random.split(jax.random.key(0), m)

    def direction(weight: Array) -> PyTree:
        given = uploads._replace(weight=weight)
        return reduce_uploads(aggregator.unmasked, given, everybody, state, jax.random.key(0), noise)[0]

    return any(programs.used_inputs(jax.make_jaxpr(direction)(uploads.weight)))


# --- cohorts --------------------------------------------------------------------------------------------------


def check_cohorts(program: Program, sizes: Array) -> None:
    """Checks the cohort of the first round, of clients of these sizes, and what systems make of it."""
    algorithm, m = program.algorithm, min(program.cohort, len(sizes))
    keys = rounds.roots(algorithm, keys_of(0))
    cohort = rounds.cohort(algorithm, None, sizes, m, keys, 0, 0)
    _check_sampling(algorithm.sampling, cohort, sizes, m)
    if program.systems is not None:
        _check_systems(program.systems, cohort, len(sizes), keep_partial=algorithm.partial_work)


def _check_sampling(sampling: Sampling, cohort: Cohort, sizes: Array, m: int) -> None:
    """Checks a cohort that was drawn of clients of these sizes, and one among some of them."""
    clients = len(sizes)
    assert form(cohort) == form(Cohort.of(jnp.zeros(jnp.shape(cohort.ids), jnp.int32))), (
        "A cohort does not have an id (int32), a present (bool) and a progress (float32) in each slot: return "
        "Cohort.of(ids) or Cohort.of(ids, present) from Sampling.draw."
    )
    drawn = _members(cohort)
    assert all(0 <= k < clients for k in drawn), (
        f"A cohort holds a client that does not exist: Sampling.draw must give ids from 0 to len(sizes) - 1, here "
        f"{clients - 1}."
    )
    assert sampling.repeats or len(set(drawn)) == len(drawn), (
        "A cohort holds a client twice: draw without replacement, or set Sampling(repeats=True)."
    )
    weights = np.asarray(jax.vmap(sampling.weight)(jnp.sort(sizes)))
    assert np.isfinite(weights).all() and np.all(weights >= 0) and np.all(np.diff(weights) >= 0), (
        "Sampling.weight is below 0 or not finite, or falls with the size: a run rejects weights above that of the "
        "largest client."
    )
    if sampling.among is None or sampling.scheduled is not None:
        return
    key, some, every = jax.random.key(9), jnp.arange(clients) % 2 == 0, jnp.ones(clients, bool)
    assert all(k % 2 == 0 for k in _members(sampling.among(key, sizes, some, m))), (
        "Sampling.among draws a client that is absent: draw among those that are present, and leave other slots empty."
    )
    assert _members(sampling.among(key, sizes, every, m)) == _members(sampling.draw(key, sizes, m)), (
        "Sampling.among draws another cohort than Sampling.draw with the same key, though all clients are present."
    )


def _check_systems(systems: Systems, cohort: Cohort, clients: int, *, keep_partial: bool) -> None:
    """Checks what systems make of a cohort, which clients they say are present, and the time that these take."""
    after, before = systems.draw(jax.random.key(8), cohort, keep_partial), _members(cohort)
    assert all(_members(after).count(k) <= before.count(k) for k in _members(after)), (
        "Systems.draw returns a client that is not in the cohort, or was absent: return the cohort with fewer present, "
        "such as cohort._replace(present=cohort.present & stays)."
    )
    assert np.all(np.asarray(after.progress)[np.asarray(after.present)] >= 0), (
        "Systems.draw returns a progress below 0 or NaN: it is the share of its work that a client does."
    )
    if systems.present is not None:
        present = systems.present(jax.random.key(8), jnp.int32(0), clients)
        assert form(present) == form(jnp.zeros(clients, bool)), (
            "Systems.present does not return one bool for each client, an array of shape (clients,)."
        )
    if systems.pace is not None:
        seconds = np.asarray(systems.pace.per_example(jnp.arange(clients, dtype=jnp.int32)))
        assert seconds.shape == (clients,) and np.all((seconds >= 0) & np.isfinite(seconds)), (
            "Pace.per_example does not return a finite number of seconds, at least 0, for each client that it gets."
        )


def _members(cohort: Cohort) -> list[int]:
    return np.asarray(cohort.ids)[np.asarray(cohort.present)].tolist()


# --- aggregators, inside a method too --------------------------------------------------------------------------


def promised_noise(aggregator: Aggregator) -> float:
    """The noise multiplier that an aggregator declares; 0: none."""
    release = aggregator.release if isinstance(aggregator, Sum) else None
    return 0.0 if release is None else release.noise_multiplier


def check_slots(aggregator: Aggregator, uploads: Upload, ids: Any, state: PyTree, tolerance: float) -> None:
    """Checks that the direction with two of three slots filled is that of the uploads in them alone.

    Whatever the empty ones hold, if the aggregator says that it does not read them.
    """
    if isinstance(aggregator, Sum) and aggregator.of_slots:
        return  # its weights count empty slots, as it says
    key, noise = jax.random.key(5), jax.random.split(jax.random.key(6), len(ids))
    ids, filled = jnp.asarray(ids, jnp.int32), np.arange(len(ids)) % 3 != 1

    @jax.jit  # one program for some slots, where each operation would be one
    def direction(uploads: Upload, state: PyTree, slots: Any, present: Any, filler: Any) -> PyTree:
        taken, cohort = jax.tree.map(lambda leaf: leaf[slots], uploads), Cohort.of(ids[slots], present)
        reports = tree.among(present, Report(taken.weight, taken.loss))
        weights, after, _ = rounds.weighed(aggregator, reports, cohort, state)
        taken = Upload(taken.delta, weights, reports.loss)
        taken = tree.among(present, taken, jax.tree.map(lambda leaf: jnp.full_like(leaf, filler), taken))
        return reduce_uploads(aggregator, taken, present, after, key, noise[slots])[0]

    whole, zero = np.arange(len(ids)), np.float32(0.0)
    some = direction(uploads, state, whole, filled, zero)
    alone = direction(uploads, state, np.flatnonzero(filled), np.ones(int(filled.sum()), bool), zero)
    assert _gap(some, alone) <= tolerance, (
        "An empty slot counts: the direction with some slots filled is not that of the uploads in them. Leave out the "
        "slots that are not present, and divide by the number or the weights of the others."
    )
    if all(need.works(1) for need in aggregator.needs):
        _check_finite(direction(uploads, state, whole, whole == 0, zero), "if it is the only one of a round")
    # As large as an upload can be whose norm is finite, and whose numbers have room in their dtype.
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(uploads.delta)}
    size = min([1e18, *(float(jnp.finfo(dtype).max) / 4 for dtype in dtypes)])
    factor = size / jnp.maximum(tree.norm(tree.take(uploads.delta, jnp.int32(0))), 1e-6)

    def enlarged(leaf: Array) -> Array:
        return leaf.at[0].set((factor * leaf[0].astype(jnp.float32)).astype(leaf.dtype))

    large = uploads._replace(delta=jax.tree.map(enlarged, uploads.delta))
    _check_finite(direction(large, state, whole, filled, zero), f"if its norm is {size:g}".replace("e+", "e"))
    if isinstance(aggregator, Stack) and aggregator.skips_absent:
        # A rejected upload stays in its slot.
        for filler in (np.float32(np.nan), np.float32(1e30)):
            assert _gap(direction(uploads, state, whole, filled, filler), some) <= tolerance, (
                f"An empty slot is read: with {filler:.3g} in it the direction is another, though skips_absent=True "
                "says that what it holds does not matter."
            )


def _check_finite(direction: PyTree, occasion: str) -> None:
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(direction)), (
        f"An accepted upload gives a direction that is not finite {occasion}, which no later round repairs: guard "
        "divisions by 0 and products that are too large for float32, or say in needs= how many uploads it takes."
    )


def _gap(a: PyTree, b: PyTree) -> float:
    """The largest difference between two trees, relative to the larger of 1 and their entries; NaN if one is NaN."""
    pairs = [(np.array(x), np.array(y)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
    gaps = [np.max(np.abs(x - y) / max(1.0, np.max(np.abs(x))), initial=0.0) for x, y in pairs]
    # Python's own maximum would pass over a NaN.
    return float(np.max(gaps, initial=0.0))


# --- attacks --------------------------------------------------------------------------------------------------


def check_attack(attack: Attack, *, classes: int = 2, is_random: bool = False, tokens: bool = False) -> None:
    """Checks that an attack obeys the laws every attack must obey.

    * Poisoned examples, false uploads and agreed uploads have the structure, shapes and dtypes of the true ones.
    * Poisoned and fresh examples have finite features and labels of the classes.
    * The same key gives the same bits.  If the attack draws at random, another key gives other uploads; where it leaves
      these as they are, another key or stream gives other examples, reports or agreed uploads.
    * Fresh examples depend on none but the client's own, and change no others.
    * A coalition's uploads do not depend on the deltas, weights and losses of empty slots, nor on the honest clients'
      order.
    * Arguments are not modified.

    Args:
      attack: what is checked.
      classes: labels are from 0 to ``classes - 1``.
      is_random: whether its uploads are drawn at random; of an attack without false uploads, whether anything is.
      tokens: whether examples are rows of tokens, and labels the tokens that follow them.

    Raises:
      AssertionError: a law does not hold; the message says which.

    Example:
      >>> import evenhand as eh
      >>> check_attack(eh.attacks.sign_flip(0.2))
    """
    check_all(attack_checks(attack, classes=classes, is_random=is_random, tokens=tokens))


def attack_checks(
    attack: Attack, *, classes: int = 2, is_random: bool = False, tokens: bool = False
) -> tuple[Check, ...]:
    """The laws of :func:`check_attack` that concern what the attack does, each as a check of its own.

    Arguments are those of :func:`check_attack`; nothing is computed before the first check is called.

    Returns:
      Checks with a ``name``, in the order in which :func:`check_attack` calls them; none for an attack on the sum
      alone.

    Example:
      >>> import evenhand as eh
      >>> [check.name for check in attack_checks(eh.attacks.sign_flip(0.2))]
      ['false uploads have the form of true ones', 'uploads follow their keys']
    """
    made = _Made(attack, classes, is_random, tokens)
    sends = attack.upload or attack.reply
    is_drawn = is_random and sends is None and made.parts
    return checks_of(
        (attack.rows, "poisoned examples have the form of clean ones", made.check_rows_form),
        (attack.rows, "examples follow their stream and are copied", made.check_rows),
        (attack.rows, "poisoned examples are finite and of the classes", made.check_rows_values),
        (attack.fresh, "fresh examples have the form of clean ones", made.check_fresh_form),
        (attack.fresh, "fresh examples are the client's own", made.check_fresh),
        (attack.fresh, "fresh examples are finite and of the classes", made.check_fresh_values),
        (sends, "false uploads have the form of true ones", made.check_upload_form),
        (sends, "uploads follow their keys", made.check_upload),
        (attack.report, "false reports have the form of true ones", made.check_report),
        (attack.collude, "agreed uploads have the form of true ones", made.check_coalition_form),
        (attack.collude, "coalitions ignore empty slots and the order of others", made.check_coalition),
        (is_drawn, "another key gives another attack", made.check_draws),
    )


class _Made:
    """An attack under test: its laws, and what it is given."""

    def __init__(self, attack: Attack, classes: int, is_random: bool, tokens: bool) -> None:
        self.attack: Any = attack  # its laws are checked only for the parts that it has
        self.is_random, self.classes = is_random, classes
        rng = np.random.default_rng(0)
        features = rng.integers(0, classes, (9, 4)) if tokens else rng.normal(size=(9, 4))
        self.x = features.astype(np.int32 if tokens else np.float32)
        self.y = rng.integers(0, classes, 9).astype(np.int32)
        # From before anything saw them: what writes the same twice changes only the first time.
        self.clean = (self.x.copy(), self.y.copy())
        self.w = rng.normal(size=(7, 3, 2)).astype(np.float32)

    @cached_property
    def deltas(self) -> PyTree:
        return {"w": jnp.asarray(self.w), "b": jnp.arange(7.0)}

    @cached_property
    def keys(self) -> Any:
        return jax.random.split(jax.random.key(0), 2)

    @property
    def parts(self) -> list[Callable[[int], PyTree]]:
        """What the attack makes of all but uploads, each given the number of a key or stream."""
        attack, examples = self.attack, ((self.attack.rows, self.rows), (self.attack.fresh, self.fresh))
        all_parts = (*examples, (attack.report, self.report), (attack.collude, self.agreed))
        return [make for is_made, make in all_parts if is_made]

    def rows(self, which: int = 0) -> Any:
        return self.attack.rows(self.x, self.y, np.random.default_rng(1 + which))

    def check_rows_form(self) -> None:
        clean = [(part.shape, part.dtype) for part in (self.x, self.y)]
        poisoned = [(np.shape(part), np.asarray(part).dtype) for part in self.rows()]
        assert poisoned == clean, f"Poisoned examples do not look like clean ones: {poisoned} for {clean}."

    def check_rows(self) -> None:
        assert are_equal(self.rows(), self.rows()), "The same stream gave other poisoned examples."
        assert are_equal((self.x, self.y), self.clean), "The attack wrote to the examples."

    def check_rows_values(self) -> None:
        self._check_values(self.rows())

    def _check_values(self, examples: tuple[Any, Any]) -> None:
        x, y = map(np.asarray, examples)
        assert np.isfinite(x).all(), "The attack makes features that are not finite."
        assert not y.size or 0 <= y.min() <= y.max() < self.classes, (
            f"The attack makes labels outside of 0 to {self.classes - 1}: if there are more classes, give classes=."
        )

    def fresh(self, which: int = 0, x: Any = None, y: Any = None) -> tuple[Any, Any]:
        x, y = (jnp.asarray(self.clean[i] if part is None else part) for i, part in enumerate((x, y)))
        return self.attack.fresh(x, y, jnp.int32(6), self.keys[which])

    def check_fresh_form(self) -> None:
        check_form(self.fresh(), self.clean, "Fresh examples do not look like clean ones")

    def check_fresh(self) -> None:
        drawn = self.fresh()
        assert are_equal(drawn, self.fresh()), "The same key gave other examples."
        others = [part[6:] for part in drawn]
        assert are_equal(others, [part[6:] for part in self.clean]), (
            "The attack changed examples beyond those of the client."
        )
        # Beyond its rows stand copies of the first, as in a run.
        copies = (np.concatenate([part[:6], part[[0, 0, 0]]]) for part in self.clean)
        own, alone = ([part[:6] for part in examples] for examples in (drawn, self.fresh(0, *copies)))
        assert are_equal(own, alone), "Fresh examples depend on rows beyond those of the client."

    def check_fresh_values(self) -> None:
        self._check_values(self.fresh())

    def upload(self, which: int) -> tuple[PyTree, PyTree]:
        true, params = (tree.take(self.deltas, jnp.int32(client)) for client in (0, 1))
        sent = true if self.attack.upload is None else self.attack.upload(true, self.keys[which])
        return sent if self.attack.reply is None else self.attack.reply(sent, params, self.keys[which]), true

    def check_upload_form(self) -> None:
        sent, true = self.upload(0)
        check_form(sent, true, "A false upload does not look like a true one")

    def check_upload(self) -> None:
        sent = self.upload(0)[0]
        assert are_equal(sent, self.upload(0)[0]), "The same key gave another upload."
        differs = not are_equal(sent, self.upload(1)[0])
        assert differs == self.is_random, (
            "Another key gives the same upload, though is_random=True: draw from the key that upload gets."
            if self.is_random
            else "Another key gives another upload: check an attack that draws at random with is_random=True."
        )

    def report(self, which: int = 0) -> Report:
        return self.attack.report(Report(jnp.float32(3.0), jnp.float32(0.5)), self.keys[which])

    def check_report(self) -> None:
        false = self.report()
        true = Report(jnp.float32(3.0), jnp.float32(0.5))
        check_form(false, true, "A false report does not look like a true one")
        assert are_equal(false, self.report()), "The same key gave another report."

    @cached_property
    def cohort(self) -> Upload:
        return Upload(self.deltas, jnp.arange(1.0, 8.0), jnp.ones(7))

    def agreed(self, which: int = 0, uploads: Upload | None = None, order: Any = slice(None)) -> PyTree:
        """What a coalition of two sends, where the last slot is empty."""
        malicious, present = jnp.array([0, 0, 1, 0, 1, 0, 0], bool), jnp.array([1, 1, 1, 1, 1, 1, 0], bool)
        given = jax.tree.map(lambda leaf: leaf[order], self.cohort if uploads is None else uploads)
        return self.attack.collude(given, malicious, present, self.keys[which])

    def check_coalition_form(self) -> None:
        check_form(self.agreed(), self.deltas, "The coalition's uploads do not look like those of its cohort")

    def check_coalition(self) -> None:
        agreed = self.agreed()
        assert are_equal(agreed, self.agreed()), "The same key gave other uploads of the coalition."
        # Zeros, as in a run.
        empty = jax.tree.map(lambda leaf: leaf.at[6].set(0.0), self.cohort)
        words = "The coalition depends on empty slots or on the order of the honest clients."
        for changed in (self.agreed(0, empty), self.agreed(0, order=jnp.array([3, 1, 2, 0, 4, 5, 6]))):
            for a, b in zip(jax.tree.leaves(agreed), jax.tree.leaves(changed), strict=True):
                a, b = (np.asarray(leaf, np.float32)[[2, 4]] for leaf in (a, b))
                np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3, err_msg=words)

    def check_draws(self) -> None:
        assert any(not are_equal(part(0), part(1)) for part in self.parts), (
            "Another key gives the same attack, though is_random=True: draw from the key or the stream that it gets."
        )
