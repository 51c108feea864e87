"""Preconditioners, by which gradients are divided before they are clipped.

In this order: the arithmetic of adaptive steps; preconditioners that noisy gradients of the past make; gradients on
public examples, which cost no privacy; side information, which is made of their moments or is a fixed tree of scales;
and such scales from how often tokens occur.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from evenhand import local, tree
from evenhand._platform import check_process
from evenhand.errors import EvenhandError, array_of, whole_number
from evenhand.privacy._checks import check_decay, checked_step, pair
from evenhand.privacy.update_rules import Iteration, Query, UpdateRule
from evenhand.types import Array, ClientData, Key, Model, Params, PyTree

# --- moments and steps -----------------------------------------------------------------------------------


Kind: TypeAlias = Literal["rmsprop", "adam", "adagrad", "yogi"]


StepNumber: TypeAlias = float | optax.Schedule
"""A number, or one for each step: a function of the steps so far, from 0, such as a schedule of optax."""


def at_step(number: StepNumber, step: Array | int) -> Any:
    """The number of a step, counted from 0."""
    if not callable(number):
        return number
    with jax.numpy_dtype_promotion("standard"):  # optax's schedules mix types inside
        return jnp.asarray(number(step), jnp.float32)


def first_numbers(name: str, number: StepNumber, steps: int = 1) -> list[Any]:
    """The numbers of so many first steps; an error in a sentence if a schedule gives none."""
    if not callable(number):
        return [number] * steps
    try:
        given = np.asarray(jax.vmap(lambda step: at_step(number, step))(jnp.arange(steps)))
        # A sentence then shows 0.9, where float() of a float32 would be 0.8999999761581421.
        return [float(str(single)) for single in given]
    except (TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise EvenhandError(
            f"{name}: the schedule fails at step 0 ({reason}): give a function of the steps so far that gives a number."
        ) from error


class Moment(NamedTuple):
    """A second moment: how it follows squares, and what is added to its root."""

    kind: Kind
    decay: StepNumber
    eps: StepNumber

    def checked(self, method: str, kinds: tuple[Kind, ...], steps: int | None = None) -> Moment:
        """The same moment, if it is one of these kinds and its numbers are as :func:`check_decay` asks.

        Only a moment with ``steps``, those of a round, may have schedules, which are checked at each of them.
        """
        if self.kind not in kinds:
            raise EvenhandError(f"{method}(kind={self.kind!r}): give one of {', '.join(map(repr, kinds))}.")
        numbers = {f"{method}(decay=)": self.decay, f"{method}(eps=)": self.eps}
        scheduled = [name for name, number in numbers.items() if callable(number)]
        if scheduled and steps is None:
            raise EvenhandError(f"{scheduled[0]}: give a number, not a schedule, which adadps() takes.")
        count = whole_number("steps", steps, 1, 10**6) if scheduled else 1
        columns = (first_numbers(name, number, count) for name, number in numbers.items())
        for step, (decay, eps) in enumerate(zip(*columns, strict=True)):
            at = f" at step {step}" if scheduled else ""
            check_decay(method, decay, eps, at)
            if self.kind == "adam" and decay == 0.0:
                raise EvenhandError(
                    f"{method}(kind='adam', decay=0){at}: nothing would be left of private gradients."
                )
        return self

    def follow(self, moment: Params, square: Params, step: Array | int = 0) -> Params:
        """The moment after one more square, that of a step, both trees like the parameters."""
        decay = at_step(self.decay, step)

        def follow(v: Array, g2: Array) -> Array:
            if self.kind == "adagrad":
                return v + g2
            if self.kind == "yogi":
                return (v + (1.0 - decay) * jnp.sign(g2 - v) * g2).astype(v.dtype)
            return (decay * v + (1.0 - decay) * g2).astype(v.dtype)

        return jax.tree.map(follow, moment, square)

    def root(self, moment: Params, step: Array | int = 0) -> Params:
        r""":math:`\sqrt v + \epsilon`, with that of a step."""
        eps = at_step(self.eps, step)
        return jax.tree.map(lambda v: (jnp.sqrt(v) + eps).astype(v.dtype), moment)


class Moments(NamedTuple):
    """Steps so far, int32, and the two moments; the first one is None where it is not needed."""

    step: Array
    first: Params | None
    second: Params


class Adam(NamedTuple):
    """Adam, whose two moments may follow different gradients."""

    b1: float
    b2: float
    eps: float

    def init(self, params: Params) -> Moments:
        """Before the first step."""
        return Moments(jnp.int32(0), tree.zeros_like(params), tree.zeros_like(params))

    def step(self, state: Moments, first: Params, second: Params) -> tuple[Params, Moments]:
        """The direction after a gradient for the first moment and one for the second, and the state."""
        steps = state.step + 1
        first = tree.mix(self.b1, state.first, first)
        second = Moment("adam", self.b2, self.eps).follow(state.second, squares(second))
        since = steps.astype(jnp.float32)

        # Both moments begin at 0: the powers correct for it.
        def ratio(m: Array, v: Array) -> Array:
            return m / (1.0 - self.b1**since) / (jnp.sqrt(v / (1.0 - self.b2**since)) + self.eps)

        return jax.tree.map(ratio, first, second), Moments(steps, first, second)


def squares(gradient: Params) -> Params:
    """The square of every number."""
    return jax.tree.map(jnp.square, gradient)


# --- delayed preconditioners -----------------------------------------------------------------------------


class _DelayedState(NamedTuple):
    """Steps so far; the sum of the cycle's noisy gradients, read where its SGD phase ends; the second moment."""

    step: Array
    total: Params
    moment: Params


def delayed_rule(
    method: str,
    step_sizes: tuple[StepNumber, StepNumber],
    clips: tuple[float, float],
    delay: int | tuple[int, int],
    moment: Moment,
    unbiased: bool = False,
    noise_first: bool = False,
    adaptive_first: bool = False,
) -> UpdateRule:
    """One query per step, whose answers in the SGD phase make the preconditioner of the next adaptive phase.

    Arguments are those of :func:`evenhand.privacy.dp2`; pairs are of the SGD phase and of the adaptive one.
    """
    sizes, clips = step_pair(method, step_sizes), clip_pair(method, clips)
    delays = delay if isinstance(delay, tuple) else (delay, delay)
    plain_steps, adaptive_steps = pair(f"{method}(delay", delays, "of the SGD phase and of the adaptive one")
    for steps in (plain_steps, adaptive_steps):
        whole_number("delay", steps, 1, 10**6)
    cycle = plain_steps + adaptive_steps
    ahead, early = (plain_steps, adaptive_steps) if adaptive_first else (0, 0)

    def init(params: Params) -> _DelayedState:
        return _DelayedState(jnp.int32(0), tree.zeros_like(params), tree.zeros_like(params))

    def phase(state: _DelayedState) -> tuple[Array, Params]:
        """Whether this step is plain, and what gradients are divided by."""
        # There is nothing to divide by before the first SGD phase has ended.
        plain = ((state.step + ahead) % cycle < plain_steps) | (state.step < early)
        ones = jax.tree.map(jnp.ones_like, state.moment)
        return plain, tree.select(plain, ones, moment.root(state.moment))

    def learnt(state: _DelayedState, deviation: Array) -> Params:
        square = squares(tree.scale(1.0 / plain_steps, state.total))
        if unbiased:
            # The mean of the phase's noise has a variance of its own, which its square would add.
            bias = jnp.square(deviation) / plain_steps
            square = jax.tree.map(lambda v: jnp.maximum(v - bias.astype(v.dtype), 0.0), square)
        return moment.follow(state.moment, square)

    def before(state: _DelayedState, iteration: Iteration) -> tuple[Query, _DelayedState]:
        place = (state.step + ahead) % cycle
        total = tree.select(place == 0, tree.zeros_like(state.total), state.total)
        second = tree.select(place == plain_steps, learnt(state, iteration.deviation(clips[0])), state.moment)
        state = _DelayedState(state.step, total, second)
        plain, scales = phase(state)
        return Query(jnp.where(plain, *clips), None if noise_first else scales), state

    def after(answer: Params, state: _DelayedState, iteration: Iteration) -> tuple[Params, _DelayedState]:
        plain, scales = phase(state)
        direction = tree.divide(answer, scales) if noise_first else answer
        size = jnp.where(plain, *(at_step(size, state.step) for size in sizes))
        state = _DelayedState(state.step + 1, tree.add(state.total, direction), state.moment)
        return tree.scale(size, direction), state

    return UpdateRule(method=method, optimiser=1.0, init=init, before=before, after=after)


def step_pair(method: str, step_sizes: tuple[StepNumber, StepNumber]) -> tuple[StepNumber, ...]:
    """The step size of each phase, checked; of a schedule, that of the first step."""

    def checked(size: StepNumber) -> StepNumber:
        first = checked_step(method, *first_numbers(f"{method}(step_sizes=)", size))
        return size if callable(size) else first

    return tuple(map(checked, pair(f"{method}(step_sizes", step_sizes, "of SGD and of the adaptive phase")))


def clip_pair(method: str, clips: tuple[float, float]) -> tuple[float, float]:
    """The clip of each phase."""
    return pair(f"{method}(clips", clips, "of SGD and of the adaptive phase")


# --- public examples -------------------------------------------------------------------------------------


PublicExamples: TypeAlias = tuple[Array | np.ndarray, Array | np.ndarray]
"""Inputs and labels of examples that are not private."""


class Public(NamedTuple):
    """Public examples, and how gradients are taken on them.

    Attributes:
      x: inputs.
      y: labels.
      schedule: the mini-batches of one pass over them.
      estimate: the gradient on a mini-batch.
    """

    x: Any
    y: Any
    schedule: local.Batches
    estimate: local.Estimator

    def data(self) -> ClientData:
        """The examples as those of a client."""
        size = len(self.x)
        x, y = jnp.asarray(self.x), jnp.asarray(self.y)
        return ClientData(
            x=x, y=y, start=jnp.int32(0), size=jnp.int32(size), progress=jnp.float32(1.0), capacity=size
        )

    def gradient(self, params: Params, key: Key) -> Params:
        """The mean gradient on a mini-batch drawn without replacement, or on all examples."""
        order, masks = jax.random.split(key)
        return self.estimate(params, self.schedule.draw(self.data(), order)(jnp.int32(0)), masks)

    def moments(self, params: Params, key: Key) -> tuple[Params, Params]:
        """Over the mini-batches of one pass: the mean of their gradients, and of the squares of these."""

        def add(total: tuple[Params, Params], batch: local.Batch, key: Key) -> tuple[Params, Params]:
            gradient = self.estimate(params, batch, key)
            return tree.add(total, (gradient, squares(gradient)))

        data, nothing = self.data(), tree.zeros_like(params)
        sums = local.over_batches(self.schedule, add, (nothing, nothing), data, key)
        share = 1.0 / self.schedule.effort(data).steps.astype(jnp.float32)
        return tree.scale(share, sums)


def public_examples(method: str, model: Model, public: PublicExamples, batch_size: int | None) -> Public:
    """Public examples, checked.

    Raises:
      EvenhandError: they are not a pair of arrays of as many inputs as labels, all finite numbers, or a batch size is
        out of range.
    """
    local.check_model(model)
    x = y = np.empty(0)
    with suppress(TypeError, ValueError):  # no pair, or rows of several lengths
        x, y = map(np.asarray, public)
    if not x.ndim or not y.ndim or not 0 < len(x) == len(y):
        raise EvenhandError(f"{method}(public=...): give (x, y), as many inputs as labels, and at least one.")
    for name, values in (("inputs", x), ("labels", y)):
        numeric = jnp.issubdtype(values.dtype, jnp.number) or values.dtype == bool
        if not numeric or not np.isfinite(values).all():
            # A gradient that is not finite would leave nothing of private gradients but the noise.
            problem = "not all finite" if numeric else f"not numbers, but of the type {values.dtype}"
            raise EvenhandError(f"{method}(public=...): its {name} are {problem}: give finite numbers only.")
    return Public(x, y, local.batches(epochs=1, batch_size=batch_size), local.batch_gradient(model))


# --- side information ------------------------------------------------------------------------------------


PublicKind = Literal["rmsprop", "adam", "adagrad"]


class Side(NamedTuple):
    """Side information: the geometry of gradients without a look at private examples.

    Attributes:
      init: ``params -> state``.
      refresh: ``(state, iteration) -> state``, before each step.
      query: ``state -> query``, of gradients that are shifted and divided by it.
    """

    init: Callable[[Params], PyTree]
    refresh: Callable[[Any, Iteration], PyTree]
    query: Callable[[Any], Query]

    def before(self, state: PyTree, iteration: Iteration) -> tuple[Query, PyTree]:
        """What a rule does before the clip that knows nothing else."""
        state = self.refresh(state, iteration)
        return self.query(state), state


def side_information(
    method: str,
    model: Model,
    divided_by: Params | None,
    public: PublicExamples | None,
    batch_size: int | None,
    moment: Moment,
    refresh_every: int | None,
    steps: int = 1,
) -> Side:
    """Fixed scales, or moments of public gradients; ``steps`` are those of a round, if they are known.

    Raises:
      EvenhandError: both or none of them are given, or an argument is out of range.
    """
    local.check_model(model)
    if (divided_by is None) == (public is None):
        raise EvenhandError(
            f"{method}() needs exactly one of public= and divided_by=: give one of them, on the command line as "
            "--public FILE or --divided-by FILE."
        )
    if public is None:
        query = Query(divided_by=fitting_scales(method, model, divided_by))
        return Side(lambda params: (), lambda state, iteration: (), lambda state: query)
    moment.checked(method, ("rmsprop", "adam", "adagrad"), steps)
    examples = public_examples(method, model, public, batch_size)
    if refresh_every is not None:
        refresh_every = whole_number("refresh_every", refresh_every, 1)
        if callable(moment.decay) or callable(moment.eps):
            raise EvenhandError(
                f"{method}(refresh_every={refresh_every}): decay and eps of scales that do not follow every step are "
                "numbers: give numbers, or leave refresh_every= out."
            )
        if moment.kind == "adagrad":
            raise EvenhandError(
                f"{method}(kind='adagrad', refresh_every={refresh_every}): AdaGrad never starts over."
            )
    return _public_moments(examples, moment, refresh_every)


def fitting_scales(method: str, model: Model, divided_by: Params) -> Params:
    """Scales in the types of the parameters, checked to be above 0 there, and a tree like these."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    scales, gaps = jax.tree.map(array_of, divided_by), map(np.ma.is_masked, jax.tree.leaves(divided_by))

    def is_alike(leaf: np.ndarray, like: jax.ShapeDtypeStruct) -> bool:
        return jnp.issubdtype(leaf.dtype, jnp.number) and leaf.shape == like.shape

    same = jax.tree.structure(scales) == jax.tree.structure(shapes)
    if any(gaps) or not same or not jax.tree.all(jax.tree.map(is_alike, scales, shapes)):
        raise EvenhandError(
            f"{method}(divided_by=...): give a tree like the parameters, with arrays of their shapes, in "
            "which nothing is masked."
        )
    scales = jax.tree.map(lambda leaf, like: jnp.asarray(leaf).astype(like.dtype), scales, shapes)
    for leaf in jax.tree.leaves(scales):
        if not bool(jnp.all((leaf > 0) & jnp.isfinite(leaf))):
            raise EvenhandError(
                f"{method}(divided_by=...): give finite numbers above 0 only, also after they are rounded to "
                f"{leaf.dtype}, the type of the parameters."
            )
    return scales


def _public_moments(public: Public, moment: Moment, refresh_every: int | None) -> Side:
    momentum = moment.kind == "adam"

    def init(params: Params) -> Moments:
        zeros = tree.zeros_like(params)
        return Moments(jnp.int32(0), zeros if momentum else None, zeros)

    def moved(state: Moments, gradient: Params, second: Params) -> tuple[Params | None, Params]:
        return tree.mix(
            at_step(moment.decay, state.step), state.first, gradient
        ) if momentum else None, second

    def refresh(state: Moments, iteration: Iteration) -> Moments:
        params, key = iteration.params, iteration.key
        if refresh_every is None:
            gradient = public.gradient(params, key)
            after = moved(state, gradient, moment.follow(state.second, squares(gradient), state.step))
        else:
            after = jax.lax.cond(
                state.step % refresh_every == 0,
                lambda: moved(state, *public.moments(params, key)),
                lambda: (state.first, state.second),
            )
        return Moments(state.step + 1, *after)

    def query(state: Moments) -> Query:
        step = state.step - 1  # it has counted the step for which it was refreshed
        if refresh_every is None:
            scales = moment.root(state.second, step)
        else:
            eps = at_step(moment.eps, step)
            scales = jax.tree.map(lambda v: jnp.sqrt(v + eps), state.second)
        if not momentum:
            return Query(divided_by=scales)
        decay = at_step(moment.decay, step)
        # (decay g + (1 - decay) M) / A is (g + (1 - decay) / decay M) / (A / decay).
        shift = tree.scale((1.0 - decay) / decay, state.first)
        return Query(divided_by=tree.scale(1.0 / decay, scales), plus=shift)

    return Side(init, refresh, query)


# --- scales from tokens ----------------------------------------------------------------------------------


def token_frequencies(
    model: Model, x: Array | np.ndarray, *, most: float = 1e4, unit: float = 100.0
) -> Params:
    r"""Scales :math:`A` that are small for rare tokens, whose weights then take larger steps.

    .. math:: A_j = \frac{100}{\min(10^4, \max_k f_k / f_j)}, \qquad f_j = \frac{\text{count}_j + 0.1}{n} + 10^{-10}

    for the weights of token :math:`j`, and 1 for biases.

    Args:
      model: a linear model or embedding of tokens: weights are the arrays whose first axis has an entry for each token.
      x: how often each token occurs in each text, ``(n, tokens)``.  **These texts should be public**: where they are
        the private ones, :math:`A` tells about them what no accountant sees.
      most: the largest factor between the steps of two tokens, :math:`10^4` above.
      unit: the scale of the most frequent token, 100 above.

    Returns:
      A tree like the parameters, for ``divided_by`` of :func:`evenhand.privacy.adadps`.

    Raises:
      EvenhandError: ``x`` is not a matrix of counts, or the model has no weights for that many tokens.

    Edge cases: biases keep the scale 1, so that ``unit`` decides how much of the clip they take.  Where texts are
    padded to a length, as in the authors' code, padding is the most frequent token, and the scales of all words are
    smaller: give it a column, or divide ``most`` and ``unit`` by how much more frequent than any word it would be.

    Differs from the paper: its code counts the tokens of the private texts.

    Example:
      >>> import evenhand as eh, numpy as np
      >>> model = eh.models.softmax_regression(features=3, classes=2)
      >>> scales = token_frequencies(model, np.array([[8, 1, 0], [8, 0, 0]]))
      >>> [round(float(scale), 2) for scale in scales["kernel"][:, 0]]
      [100.0, 6.83, 0.62]

    Source: Li et al., *Private Adaptive Optimization with Side Information*, ICML 2022, section 4.2, with the constants
    of its code.
    """
    counts = _sums("token_frequencies", x)
    if not most >= 1.0 or not 0.0 < unit < np.inf:
        raise EvenhandError(
            f"token_frequencies(most={most}, unit={unit}): give at least 1, and a number above 0."
        )
    shares = (counts + 0.1) / len(x) + 1e-10
    return _on_weights("token_frequencies", model, unit / np.minimum(most, shares.max() / shares))


def tfidf_scales(model: Model, x: Array | np.ndarray, *, special: Sequence[int] = (0, 1, 2)) -> Params:
    r"""Scales :math:`A` that are small for tokens of large TF-IDF, whose weights then take larger steps.

    .. math:: A_j = \frac1{10 \, \big(\sum_i \text{tfidf}_{ij} + 10^{-10}\big)}

    for the weights of token :math:`j`, 100 for those of special tokens, and 1 for biases.

    Args:
      model: as in :func:`token_frequencies`.
      x: the TF-IDF of each token in each text, ``(n, tokens)``, **of public texts**, as there.
      special: tokens for padding, the start of a text, and words outside the vocabulary.

    Returns:
      A tree like the parameters, for ``divided_by`` of :func:`evenhand.privacy.adadps`.

    Raises:
      EvenhandError: as :func:`token_frequencies`, or a special token that does not exist.

    Differs from the paper: its code takes the TF-IDF of the private texts, and document frequencies from the test set,
    too.

    Example:
      >>> import evenhand as eh, numpy as np
      >>> model = eh.models.softmax_regression(features=3, classes=2)
      >>> scales = tfidf_scales(model, np.array([[9.0, 0.1, 0.0], [9.0, 0.1, 0.5]]), special=(0,))
      >>> [round(float(scale), 2) for scale in scales["kernel"][:, 0]], scales["bias"].tolist()
      ([100.0, 0.5, 0.2], [1.0, 1.0])

    Source: as :func:`token_frequencies`.
    """
    sums = 10.0 * (_sums("tfidf_scales", x) + 1e-10)
    for token in special:
        if not 0 <= token < len(sums):
            raise EvenhandError(f"tfidf_scales(special={tuple(special)}): tokens are 0 to {len(sums) - 1}.")
        sums[token] = 0.01
    return _on_weights("tfidf_scales", model, 1.0 / sums)


def _sums(method: str, x: Array | np.ndarray) -> np.ndarray:
    """The sum of each column, in float64."""
    values = np.asarray(x)
    if values.ndim != 2 or not len(values) or not np.isfinite(values).all() or (values < 0).any():
        raise EvenhandError(
            f"{method}(): give one row of numbers of at least 0 for each text, one column per token."
        )
    return values.sum(axis=0, dtype=np.float64)


def _on_weights(method: str, model: Model, scales: np.ndarray) -> Params:
    check_process()
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    are_weights = jax.tree.map(lambda leaf: leaf.ndim >= 2 and leaf.shape[0] == len(scales), shapes)
    if not any(jax.tree.leaves(are_weights)):
        raise EvenhandError(f"{method}(): the model has no weights for {len(scales)} tokens.")

    def spread(leaf: Array, is_weight: bool) -> Array:
        if not is_weight:
            return jnp.ones(leaf.shape, leaf.dtype)
        column = jnp.asarray(scales, leaf.dtype).reshape(-1, *[1] * (leaf.ndim - 1))
        return jnp.broadcast_to(column, leaf.shape)

    return jax.tree.map(spread, shapes, are_weights)
