"""What the adapters of modules share: their functions, the arguments that switch to training, and what is refused.

And what torchax computes otherwise than PyTorch: statistics of a batch, and tensors that share memory.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

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


# --- tensors of PyTorch that share memory --------------------------------------------------------------------------


@cache
def part_types() -> tuple[Any, Any]:
    """The types of tensors that share the numbers of others: those that surely do, and those that may be copies."""
    import torch  # pyright: ignore[reportMissingImports]
    from torchax.ops.mappings import j2t_dtype  # pyright: ignore[reportMissingImports]
    from torchax.view import View  # pyright: ignore[reportMissingImports]

    class Part(View):  # pyright: ignore[reportUntypedBaseClass]
        """A tensor that shares the numbers of its parent: a change of one in place is a change of the other.

        Args:
          parent: another part, or a tensor of torchax.
          value: its numbers now.
          read: the parent's numbers -> its own.
          write: new numbers of its own, and the parent's -> the parent's new ones.
        """

        @staticmethod
        def __new__(cls: Any, parent: Any, value: Array, read: Any = None, write: Any = None) -> Any:
            dtype = j2t_dtype(value.dtype)
            return torch.Tensor._make_wrapper_subclass(cls, value.shape, device="meta", dtype=dtype)

        def __init__(self, parent: Any, value: Array, read: Any = None, write: Any = None) -> None:
            super().__init__(parent, None, parent._env)
            self.value, self.whole, self.form = value, parent.jax(), getattr(parent, "form", None)
            self.read, self.write = read, write

        def jax(self) -> Array:
            whole = self.parent.jax()
            if whole is self.whole:
                return self.value
            if getattr(self.parent, "form", None) is not self.form:
                _refuse_form()
            return self.read(whole)

        def update(self, new_values: Any, view_infos: None = None) -> None:
            del view_infos  # of torchax's own
            new = self._env.t2j_iso(new_values)
            overwrite(self.parent, self.write(new.astype(self.value.dtype), self.parent.jax()))

    class Copy(Part):
        """A tensor that PyTorch copied, or not, by how its parent lies in memory, which is not known here."""

        is_changed = False

        def jax(self) -> Array:
            return self.value if self.is_changed or self.parent.jax() is self.whole else _refuse_copy()

        def update(self, new_values: Any, view_infos: None = None) -> None:
            del view_infos
            origin = memory(self.parent)
            while isinstance(origin, Copy) and not origin.is_changed:
                origin = memory(origin.parent)
            origin.jax = _refuse_copy  # for those who read it from now on
            self.value, self.is_changed = self._env.t2j_iso(new_values).astype(self.value.dtype), True

    return Part, Copy


def memory(tensor: Any) -> Any:
    """The tensor that holds the numbers of this, which may be a part of it."""
    part, copied = part_types()
    while isinstance(tensor, part) and not isinstance(tensor, copied):
        tensor = tensor.parent
    return tensor


def is_traced(value: Any) -> bool:
    """Whether this is a tensor whose numbers are JAX's."""
    from torchax.tensor import Tensor  # pyright: ignore[reportMissingImports]

    return isinstance(value, (Tensor, part_types()[0]))


def overwrite(tensor: Any, new: Array) -> None:
    """Changes a tensor in place."""
    if isinstance(tensor, part_types()[0]):
        tensor.update(new)
    else:
        tensor._elem = new.astype(tensor._elem.dtype)


@contextmanager
def histories_kept(tensors: Any) -> Generator[None]:
    """Inside, what changes these tensors in place under the module's own ``no_grad()`` leaves them their gradients."""
    import torch  # pyright: ignore[reportMissingImports]

    holders = [] if torch.is_grad_enabled() else [memory(tensor) for tensor in tensors]
    before = [(holder, holder.jax()) for holder in holders]
    yield
    for holder, old in before:
        new = holder.jax()
        if new is not old:
            overwrite(holder, with_gradient_of(new, old))


def scattered(read: Callable[[Array], Array], new: Array, whole: Array, operation: str) -> Array:
    """The ``whole`` with ``new`` numbers in the places that ``read`` takes, which moves numbers and no more.

    Raises:
      EvenhandError: it may take a number twice, or take a part of it.
    """
    is_overlapping = new.size > whole.size or operation in ("as_strided", "unfold")
    if is_overlapping or new.dtype != whole.dtype:
        raise EvenhandError(
            f"from_torch: the module changes in place what {operation}() returned, whose numbers are not each a number "
            f"of the tensor that it was taken from: change a copy, {operation}(...).clone()."
        )

    if not jnp.issubdtype(new.dtype, jnp.floating):  # of which JAX transposes few operations
        places = read(jnp.arange(whole.size).reshape(whole.shape))
        return whole.ravel().at[places.ravel()].set(new.ravel()).reshape(whole.shape)

    def back(numbers: Array) -> Array:
        shape = jax.ShapeDtypeStruct(whole.shape, numbers.dtype)
        return jax.linear_transpose(read, shape)(numbers)[0]

    placed = back(new)
    return placed if new.size == whole.size else jnp.where(back(jnp.ones_like(new)) == 1, placed, whole)


def is_surely_view(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether a tensor in a ``new`` shape is a view in PyTorch, whatever the layout: its axes are only split."""
    sizes = iter([size for size in new if size != 1])
    for size in () if 0 in new else old:
        rest = size
        while rest > 1:
            rest, remainder = divmod(rest, next(sizes, rest))
            if remainder:
                return False
    return True


class Sharing:
    """A base of an environment of torchax, before its own: views share their numbers, as those of PyTorch do."""

    def dispatch(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Computes an operation of PyTorch."""
        import torch  # pyright: ignore[reportMissingImports]

        kwargs = kwargs or {}
        if isinstance(func, torch._ops.OpOverload):
            return self._marked(func, types, args, kwargs)
        methods, source = torch.Tensor, cast("Any", args[0] if args else None)
        merging = {methods.reshape, methods.reshape_as, methods.flatten, methods.ravel}
        merging |= {torch.reshape, torch.flatten, torch.ravel, methods.contiguous}
        if func in merging and is_traced(source):
            new = func(*args, **kwargs)
            is_view = func is not methods.contiguous and is_surely_view(source.shape, new.shape)
            return new if is_view else part_types()[1](source, new.jax())
        if func is methods.__getitem__ and is_traced(source):
            return self._item(*args)
        environment: Any = super()
        results = environment.dispatch(func, types, args, dict(kwargs))
        if func is methods.to and is_traced(source) and is_traced(results) and results.dtype == source.dtype:
            if kwargs.get("copy") or [x for x in args if isinstance(x, bool)][1:2] == [True]:
                return environment.j2t_iso(results.jax())
            is_same = kwargs.get("memory_format") is None
            return source if is_same else part_types()[1](source, source.jax())
        out = kwargs.get("out")
        if is_traced(out) and results is not out:
            overwrite(out, jnp.asarray(environment.t2j_iso(results)))
            return out
        return results

    def _item(self, source: Any, index: Any) -> Any:
        """``source[index]``, which is a view but for lists and tensors of several indices."""
        import torch  # pyright: ignore[reportMissingImports]

        base, indices = cast("Any", super()), index if isinstance(index, tuple) else (index,)
        if any(isinstance(x, bool | list) or (isinstance(x, torch.Tensor) and x.ndim) for x in indices):
            whole = base.j2t_iso(source.jax())
            return base.dispatch(torch.Tensor.__getitem__, (), (whole, index), {})
        places = tuple(base.t2j_iso(x) if isinstance(x, torch.Tensor) else x for x in indices)

        def read(whole: Array) -> Array:
            return whole[places]

        def write(new: Array, whole: Array) -> Array:
            return whole.at[places].set(new)

        return part_types()[0](source, read(source.jax()), read, write)

    def _marked(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """An operation of which PyTorch says which tensors it changes, and whether its results are views."""
        import torch  # pyright: ignore[reportMissingImports]

        base, arguments = cast("Any", super()), func._schema.arguments
        returned = [x.alias_info for x in func._schema.returns]
        named = dict(zip((x.name for x in arguments), args, strict=False)) | kwargs
        written = [x for x in arguments if x.alias_info is not None and x.alias_info.is_write]
        changed = {str(x.alias_info.before_set): named[x.name] for x in written if x.name in named}
        is_reforming = torch.Tag.inplace_view in func.tags
        _check_changed(changed.values(), named.values(), is_reforming=is_reforming)
        lowered = self._lowered(func, is_reforming=is_reforming)

        def compute(*first: Any) -> Any:
            return base.dispatch(lowered, types, (*first, *args[1:]), dict(kwargs))

        if any(mark is not None and not mark.is_write for mark in returned) and is_traced(args[0]):
            return self._views(func, args[0], compute)
        traced = {mark: tensor for mark, tensor in changed.items() if is_traced(tensor)}
        with histories_kept(() if is_reforming else traced.values()):
            results = compute(*args[:1])
            several = list(results) if len(returned) > 1 else [results]
            for i, mark in enumerate(returned):
                tensor = traced.get(str(mark and mark.before_set))
                if mark is None and args and several[i] is args[0]:
                    several[i] = base.j2t_iso(base.t2j_iso(several[i]))  # of torchax, which copies nothing
                if tensor is not None and several[i] is not tensor:
                    overwrite(tensor, base.t2j_iso(several[i]))
                    if is_reforming:
                        _reform(tensor, func, args)
                    several[i] = tensor
            return tuple(several) if len(returned) > 1 else several[0] if returned else results

    def _views(self, func: Any, source: Any, compute: Callable[[Any], Any]) -> Any:
        """The results of an operation that are views of its source in PyTorch."""
        import torch  # pyright: ignore[reportMissingImports]

        environment, name = cast("Any", self), func._schema.name.removeprefix("aten::")
        if name == "detach":
            return environment.detached(source)
        # How a view lies in memory is not known here.
        if name == "as_strided" and type(source) is part_types()[0]:
            raise EvenhandError(
                "from_torch: the module calls as_strided() of a view: use a copy, .contiguous().as_strided(...)."
            )
        results = compute(source)
        is_list = isinstance(results, (list, tuple))

        def view(place: int, value: Any) -> Any:
            def read(whole: Array) -> Array:
                with torch.enable_grad():  # the gradients are those of this array
                    again = compute(environment.j2t_iso(whole))
                return environment.t2j_iso(again[place] if is_list else again)

            def write(new: Array, whole: Array) -> Array:
                return scattered(read, new, whole, name)

            is_same = value is source
            return value if is_same else part_types()[0](source, environment.t2j_iso(value), read, write)

        return [view(*pair) for pair in enumerate(results)] if is_list else view(0, results)

    def _lowered(self, func: Any, *, is_reforming: bool) -> Any:
        """The operation, or the like that returns what this changes in place, if torchax lacks this."""
        from torchax.tensor import OperatorNotFound  # pyright: ignore[reportMissingImports]

        environment = cast("Any", self)
        try:
            environment._get_op_or_decomp(func)
        except OperatorNotFound:
            is_reforming = True
        name, _, overload = str(func).rpartition(".")  # "aten.add_.Tensor"
        if not is_reforming or not name.endswith("_"):
            return func
        named = {str(operation): operation for operation in (*environment._ops, *environment._decomps)}
        plain = name.removesuffix("_")
        return named.get(f"{plain}.{overload}", named.get(plain, func))


def copy_layer(environment: Any) -> Callable[..., Any]:
    """``x.copy_(y)``, whose result :class:`Sharing` writes."""

    def run(x: Any, y: Any, non_blocking: bool = False) -> Any:
        del non_blocking
        old, new = environment.t2j_iso((x, y))
        return environment.j2t_iso(jnp.broadcast_to(jnp.asarray(new, old.dtype), old.shape))

    return run


def tensor_members(assign: Callable[[Any, Any, Any], None]) -> dict[str, Any]:
    """Members of torchax's tensors that reach no dispatch, as those of PyTorch; ``assign`` is its own ``x[i] = y``."""
    import torch  # pyright: ignore[reportMissingImports]

    methods, parameter = torch.Tensor, torch.nn.Parameter

    def assigned(tensor: Any, index: Any, value: Any) -> None:
        with histories_kept([tensor]):
            changed = tensor._env.j2t_iso(tensor.jax())
            assign(changed, index, value)
            overwrite(tensor, changed.jax())

    def detached(tensor: Any) -> Any:
        return tensor._env.detached(tensor)

    def renewed(tensor: Any, value: Any) -> None:
        overwrite(detached(tensor), tensor._env.t2j_iso(value))

    def cut(tensor: Any) -> Any:
        overwrite(tensor, jax.lax.stop_gradient(tensor.jax()))
        return tensor

    def copied(tensor: Any, memo: dict[int, Any]) -> Any:
        new = tensor._env.j2t_iso(tensor.jax())
        is_parameter = getattr(tensor, "_is_param", False)
        memo[id(tensor)] = parameter(new, tensor.requires_grad) if is_parameter else new
        return memo[id(tensor)]

    members = {"__setitem__": assigned, "data": property(detached, renewed), "detach": detached}
    members |= {
        "detach_": cut,
        "flatten": methods.flatten,
        "type_as": methods.type_as,
        "__deepcopy__": copied,
    }
    # torchax gives them no memory in PyTorch.
    return members | {"is_meta": False}


def _reform(tensor: Any, func: Any, args: Any) -> None:
    """Gives a tensor, whose numbers have a new shape, this shape for PyTorch, too."""
    from torch.utils._mode_utils import no_dispatch  # pyright: ignore[reportMissingImports]

    tensor.form = object()  # by which its views see it
    with no_dispatch():
        func(*args)


def _check_changed(changed: Any, values: Any, *, is_reforming: bool) -> None:
    """Checks that what is changed in place are tensors that can be."""
    part, _ = part_types()
    if is_reforming and any(isinstance(x, part) for x in changed):
        _refuse_form()
    if any(map(is_traced, changed)) or not any(map(is_traced, values)):
        return
    if changed:
        raise EvenhandError(
            "from_torch: the module makes a tensor by torch.zeros() or the like and writes its inputs or weights into "
            "it, which JAX cannot: make it by x.new_zeros(...) or torch.zeros_like(x), of the tensor x to be written."
        )


def _refuse_copy() -> Any:
    raise EvenhandError(
        "from_torch: the module changes in place what reshape(), flatten() or contiguous() returned, or its source, "
        "and reads the other afterwards. Whether the two share memory depends on a layout that JAX does not have: "
        "write view() if they should, and clone() if they should not."
    )


def _refuse_form() -> None:
    raise EvenhandError(
        "from_torch: the module changes the shape of a view in place, or of a tensor that has views: write e.g. "
        "x = x.unsqueeze(1) rather than x.unsqueeze_(1)."
    )
