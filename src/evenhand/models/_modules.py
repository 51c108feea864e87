"""What the adapters of modules share: their functions, the arguments that switch to training, and what is refused.

And layers of PyTorch that torchax computes slowly, or otherwise than PyTorch.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand._paths import named_path
from evenhand.errors import EvenhandError, perhaps
from evenhand.types import Array, Key, Params, PyTree, RunningStatistics

STATISTICS = (
    "the running statistics of heterogeneous clients cannot be averaged meaningfully; use a layer without them, "
    "e.g. GroupNorm or LayerNorm instead of BatchNorm"
)

CHOICE = (
    f'{STATISTICS}, or say what becomes of them: state="local" keeps them at their client (FedBN, SiloBN), '
    'state="average" averages them like parameters.'
)
"""Why statistics are refused by default, and the two other ways."""

State: TypeAlias = Literal["refuse", "average", "local"]
"""What becomes of running statistics."""


class Functions(NamedTuple):
    """What a module computes.

    Attributes:
      init: as of :class:`evenhand.types.Model`.
      apply: likewise.
      apply_train: likewise.
      start: the parameters that the module holds; None: they are drawn from a key.
      measured: shapes of the running statistics, as nested dicts among the parameters; empty: there are none.
      measure: where there are, ``forward`` of :class:`evenhand.types.RunningStatistics`.
    """

    init: Callable[[Key], Params]
    apply: Callable[[Params, Array], PyTree]
    apply_train: Callable[[Params, Array, Key], PyTree] | None
    start: Params | None = None
    measured: Mapping[Any, Any] = {}
    measure: Callable[[Params, Array, Array, Key], tuple[PyTree, Params]] | None = None

    def statistics(self, state: State) -> RunningStatistics | None:
        """The running statistics of a model of these functions."""
        if self.measure is None:
            return None
        paths = tuple(named_path(path) for path, _ in jax.tree.leaves_with_path(self.measured))
        return RunningStatistics(paths, self.measure, stay=state == "local")


def is_equinox(value: object) -> bool:
    """Whether this is a module of equinox, or a class of them; it is not imported for those who have none."""
    equinox = sys.modules.get("equinox")
    if equinox is None:
        return False
    return issubclass(value if isinstance(value, type) else type(value), equinox.Module)


def constant_init(params: Params) -> Callable[[Key], Params]:
    """``key -> params``, whatever the key."""
    start = jax.tree.map(jnp.asarray, params)

    def init(key: Key) -> Params:
        # A copy: the memory of a run's first parameters goes to those of the next round.
        return jax.tree.map(jnp.copy, start)

    return init


def call_modes(module: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of the module's ``__call__`` that say that it evaluates, and that it trains."""
    arguments = inspect.signature(module.__call__).parameters
    flags = {"train": True, "training": True, "is_training": True}
    flags |= {"deterministic": False, "use_running_average": False}
    training = {name: value for name, value in flags.items() if name in arguments}
    return {name: not value for name, value in training.items()}, training


Sample = Array | npt.NDArray[Any]
"""A row of inputs, of which only shape and type count."""


def sample_rows(sample: npt.ArrayLike) -> Sample:
    """Zeros like one row of the user's sample, ``(1, ...)``.

    Raises:
      EvenhandError: it has no rows.
    """
    # Not of JAX: only the shape counts, and each conversion would be a program.
    inputs = sample if isinstance(sample, jax.Array) else np.asarray(sample)
    if inputs.ndim == 0:
        raise EvenhandError("sample must have rows first, e.g. x[:1], but it is a single number.")
    return np.zeros((min(len(inputs), 1), *inputs.shape[1:]), jax.dtypes.canonicalize_dtype(inputs.dtype))


def any_key() -> Any:
    """A key where only shapes count: one with numbers would be a program."""
    return jax.eval_shape(jax.random.key, 0)


@contextmanager
def module_code(name: str, inputs: jax.ShapeDtypeStruct | Sample, cure: str) -> Generator[None]:
    """Turns what a module's own code raises on such inputs into one sentence, which ends with a ``cure``."""
    try:
        yield
    except EvenhandError:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise EvenhandError(
            f"{name} fails on inputs {inputs.dtype}{list(inputs.shape)} ({reason}): {cure}"
        ) from error


def check_trained(adapter: str, name: str, *, is_trained: bool) -> None:
    """Refuses a module that has no parameters to train."""
    if not is_trained:
        raise EvenhandError(f"{adapter} got {name}, which has no parameters: there is nothing to train.")


_PRIME = 10007


def check_rows_first(functions: Functions, sample: Sample) -> None:
    """Checks that the outputs, and layers that measure statistics, have a row for each row of inputs like ``sample``.

    Raises:
      EvenhandError: they have not.
    """
    params = jax.eval_shape(functions.init, any_key())
    # Two numbers of rows: outputs whose first axis has one of them by chance cannot have both.
    for rows in (2, 3):
        x = jax.ShapeDtypeStruct((rows, *sample.shape[1:]), sample.dtype)
        outputs = jax.eval_shape(functions.apply, params, x)
        for leaf in jax.tree.leaves(outputs):
            if leaf.shape[:1] != (rows,):
                raise EvenhandError(
                    f"The module's outputs must have rows first, but for {rows} inputs of shape "
                    f"{sample.shape[1:]} it returned shape {leaf.shape}; reduce over other axes only."
                )
    if functions.measure is not None:
        # A prime that no other axis has: a layer whose rows are not first is then refused by mask_like.
        x = jax.ShapeDtypeStruct((_PRIME, *sample.shape[1:]), sample.dtype)
        inside = jax.ShapeDtypeStruct((_PRIME,), jnp.bool_)
        _FOLDED.set(False)
        jax.eval_shape(functions.measure, params, x, inside, any_key())
        if _FOLDED.get():
            _check_padding(functions, functions.measure, sample)


# --- running statistics --------------------------------------------------------------------------------------------


def _check_padding(
    functions: Functions,
    measure: Callable[[Params, Array, Array, Key], tuple[PyTree, Params]],
    sample: Sample,
) -> None:
    """Checks that rows that pad a batch change nothing, where a module folds or repeats rows in ways of its own.

    Raises:
      EvenhandError: they do.
    """
    inside = jnp.arange(5) < 3
    key, shape = jax.random.key(0), (5, *sample.shape[1:])
    is_float = jnp.issubdtype(sample.dtype, jnp.floating)
    x = jax.random.normal(key, shape, sample.dtype) if is_float else jnp.zeros(shape, sample.dtype)
    other = jnp.where(inside.reshape(-1, *[1] * (x.ndim - 1)), x, x + jnp.asarray(1, x.dtype))
    run, params = jax.jit(measure), functions.init(key)
    for plain, changed in zip(
        *(jax.tree.leaves(run(params, rows, inside, key)[1]) for rows in (x, other)), strict=True
    ):
        if not jnp.allclose(plain, changed, rtol=1e-4, atol=1e-5):
            raise EvenhandError(
                "A layer that measures statistics got rows in another order than that of the batch, such as those of "
                "two views in one, or with time first, so that it would count rows that pad a batch: give the layer "
                "the rows of the batch, each with all that belongs to it, or use GroupNorm or LayerNorm."
            )


_FOLDED: ContextVar[bool] = ContextVar(
    "whether a layer got several rows for each of the batch", default=False
)

_INSIDE: ContextVar[Array | None] = ContextVar("rows that are inside", default=None)
"""The mask of the batch that is traced: it has to reach layers whose callers do not pass one."""


@contextmanager
def rows_inside(inside: Array) -> Generator[None]:
    """Within, layers measure their statistics on the rows that are ``inside``, a bool for each."""
    token = _INSIDE.set(inside)
    try:
        yield
    finally:
        _INSIDE.reset(token)


def mask_like(x: Array) -> Array | None:
    """Which rows of a layer's inputs count, of shape ``(rows, 1, ...)``; None: all.

    Raises:
      EvenhandError: the layer's rows are not those of the batch, nor several for each of them.
    """
    inside = _INSIDE.get()
    if inside is None:
        return None
    times, others = divmod(x.shape[0], inside.shape[0])
    if others or not times:
        raise EvenhandError(
            f"A layer that measures statistics got inputs of shape {x.shape} for a batch of {inside.shape[0]} rows: "
            "keep the rows first, so that the statistics leave out those that pad a batch."
        )
    _FOLDED.set(_FOLDED.get() or times > 1)
    # Where a module has folded an axis into the rows, such as time, each row is there several times in a row.
    return jnp.repeat(inside, times).reshape(-1, *[1] * (x.ndim - 1))


def check_kind(adapter: str, state: str) -> None:
    """Checks the argument ``state=`` of an adapter."""
    if state not in get_args(State):
        choices = get_args(State)
        raise EvenhandError(
            f"{adapter}(state={state!r:.40}): give one of {', '.join(map(repr, choices))}{perhaps(state, choices)}."
        )


def joined(params: Mapping[Any, Any], statistics: Mapping[Any, Any]) -> dict[Any, Any]:
    """Parameters and running statistics in one tree of nested dicts.

    Raises:
      EvenhandError: a statistic has the path of a parameter.
    """
    whole = dict(params)
    for name, part in statistics.items():
        if isinstance(part, Mapping) and isinstance(whole.get(name, {}), Mapping):
            whole[name] = joined(whole.get(name, {}), part)
        elif name in whole:
            raise EvenhandError(
                f"The module has a parameter and a running statistic of one name, {name}: rename one."
            )
        else:
            whole[name] = part
    return whole


def parted(whole: Mapping[Any, Any], like: Mapping[Any, Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The parameters, and the running statistics, which are where ``like`` has them; empty dicts are left out."""
    params, statistics = dict[Any, Any](), dict[Any, Any]()
    for name, part in whole.items():
        if name not in like:
            params[name] = part
        elif isinstance(like[name], Mapping):
            params[name], statistics[name] = parted(part, like[name])
            if not params[name]:
                del params[name]
        else:
            # A lie about a variance, or an average of unlike ones by a rule that overshoots, has no square root.
            is_variance = str(name) in ("var", "running_var")
            statistics[name] = jnp.maximum(part, 0.0) if is_variance else part
    return params, statistics


# --- layers of PyTorch ---------------------------------------------------------------------------------------------


@jax.custom_jvp
def with_gradient_of(value: Array, old: Array) -> Array:
    """The value, with the gradient of ``old``."""
    del old
    return value


@with_gradient_of.defjvp
def _as_old(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return primals[0], tangents[1]


def batch_norm_layer(environment: Any) -> Callable[..., Any]:
    r"""``torch.nn.functional.batch_norm``, which measures its statistics on the rows of the batch that are inside.

    .. math::
        \mu = \tfrac{1}{n} \sum_i x_i, \quad \sigma^2 = \tfrac{1}{n} \sum_i (x_i - \mu)^2, \quad
        y = \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta

    with the statistics moved by ``momentum`` towards :math:`\mu` and :math:`\tfrac{n}{n - 1} \sigma^2`.
    """

    def run(
        x: Any,
        mean: Any,
        var: Any,
        weight: Any = None,
        bias: Any = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        values, scale, shift = environment.t2j_iso((x, weight, bias))
        if mean is None:
            raise EvenhandError(
                "A BatchNorm without running statistics normalises by the batch in evaluation, too, so that the rows "
                "of a batch change each other's predictions: leave track_running_stats=True, or use GroupNorm."
            )
        axes = (0, *range(2, values.ndim))
        along = (1, -1, *[1] * (values.ndim - 2))
        center, spread = environment.t2j_iso((mean, var))
        if training:
            inside = mask_like(values)
            weights = jnp.ones((len(values), *[1] * (values.ndim - 1))) if inside is None else inside
            weights = weights.astype(jnp.float32)
            count = jnp.maximum(jnp.sum(weights) * (values.size // (values.shape[0] * values.shape[1])), 1.0)
            center = jnp.sum(values * weights, axes) / count
            spread = jnp.sum(jnp.square(values - center.reshape(along)) * weights, axes) / count
            unbiased = spread * count / jnp.maximum(count - 1.0, 1.0)
            for buffer, new in ((mean, center), (var, unbiased)):
                old = environment.t2j_iso(buffer)
                buffer.copy_(
                    environment.j2t_iso((1.0 - momentum) * old + momentum * jax.lax.stop_gradient(new))
                )
        outputs = (values - center.reshape(along)) * jax.lax.rsqrt(spread + eps).reshape(along)
        outputs = outputs if scale is None else outputs * scale.reshape(along)
        return environment.j2t_iso(outputs if shift is None else outputs + shift.reshape(along))

    return run


def group_norm_layer(environment: Any) -> Callable[..., Any]:
    """``torch.nn.functional.group_norm``, channel by channel first: a picture split into groups would be turned."""

    def run(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        values, scale, shift = environment.t2j_iso((input, weight, bias))
        groups = num_groups
        n, channels, *sizes = values.shape
        axes, along = tuple(range(2, values.ndim)), (n, channels, *[1] * len(sizes))

        def mean(x: Array) -> Array:
            """Over each group, for each of its channels."""
            by_group = jnp.mean(jnp.mean(x, axis=axes).reshape(n, groups, channels // groups), axis=-1)
            return jnp.repeat(by_group, channels // groups, axis=1)

        apart = values - mean(values).reshape(along)
        factor = jax.lax.rsqrt(mean(jnp.square(apart)) + eps)
        outputs = apart * (factor if scale is None else factor * scale[None]).reshape(along)
        return environment.j2t_iso(outputs if shift is None else outputs + shift.reshape(along[1:]))

    return run


def average_pool_layer(environment: Any, plain: Callable[..., Array]) -> Callable[..., Any]:
    """``aten.avg_pool2d`` and its kin: ``plain``, but for ``ceil_mode``, whose last windows torchax divides wrongly."""

    def run(
        x: Any,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] | int = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        values = environment.t2j_iso(x)
        if not ceil_mode:
            options = (kernel_size, stride, padding, False, count_include_pad, divisor_override)
            return environment.j2t_iso(plain(values, *options))
        dims, strides = len(kernel_size), stride or kernel_size
        pads = [(0, 0)] * (values.ndim - dims)
        counts = np.ones(())
        paddings = [int(pad) for pad in np.broadcast_to(padding, dims)]
        for size, width, step, pad in zip(values.shape[-dims:], kernel_size, strides, paddings, strict=True):
            windows = -(-(size + 2 * pad - width) // step) + 1
            windows -= (windows - 1) * step >= size + pad  # the last one begins inside
            starts = np.arange(windows) * step - pad
            pads.append((pad, max(int(starts[-1]) + width - size, 0)))
            # A window counts what it has of the padded input, or of the input.
            low, high = (-pad, size + pad) if count_include_pad else (0, size)
            counts = counts[..., None] * (np.minimum(starts + width, high) - np.maximum(starts, low))
        leading = (1,) * (values.ndim - dims)
        sums = jax.lax.reduce_window(
            values, 0.0, jax.lax.add, (*leading, *kernel_size), (*leading, *strides), pads
        )
        return environment.j2t_iso(sums / jnp.asarray(divisor_override or counts, values.dtype))

    return run


def householder_layer(environment: Any) -> Callable[..., Any]:
    r"""``torch.linalg.householder_product``, of which JAX has no gradient.

    .. math::
        \prod_i (I - \tau_i v_i v_i^\top) = I - V (I + D U)^{-1} D V^\top, \quad D = \operatorname{diag}(\tau)

    where :math:`U` is the part of :math:`V^\top V` above its diagonal.
    """

    def run(reflectors: Any, scales: Any) -> Any:
        lower, tau = environment.t2j_iso((reflectors, scales))
        (m, n), k = lower.shape[-2:], tau.shape[-1]
        v = jnp.tril(lower, -1)[..., :k] + jnp.eye(m, k)
        above = jnp.triu(jnp.matrix_transpose(v) @ v, 1)
        inner = jnp.linalg.solve(jnp.eye(k) + tau[..., None] * above, tau[..., None] * jnp.eye(k))
        return environment.j2t_iso(jnp.eye(m, n) - v @ inner @ jnp.matrix_transpose(v[..., :n, :]))

    return run
