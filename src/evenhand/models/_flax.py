"""Models of flax modules: linen ones, nnx ones, which hold their parameters, and functions that make nnx ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, TypeAlias

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy.typing as npt

from evenhand._paths import Patterns, named_path
from evenhand._platform import check_process
from evenhand.errors import EvenhandError
from evenhand.models._frozen import frozen_start
from evenhand.models._modules import (
    CHOICE,
    STATISTICS,
    Functions,
    Sample,
    State,
    any_key,
    call_modes,
    check_kind,
    check_rows_first,
    check_trained,
    constant_init,
    is_equinox,
    joined,
    mask_like,
    module_code,
    parted,
    rows_inside,
    sample_rows,
)
from evenhand.models.losses import LossLike, PerRow, default_metrics, resolve
from evenhand.types import Array, Key, Model, Params, PyTree

_NnxModule: TypeAlias = Any
"""An ``nnx.Module``, or a function ``nnx.Rngs -> nnx.Module``; flax.nnx is not imported for those who need none."""


def from_flax(
    module: nn.Module | _NnxModule,
    *,
    loss: LossLike,
    sample: npt.ArrayLike,
    metrics: Mapping[str, PerRow] | None = None,
    frozen: Patterns = (),
    state: State = "refuse",
) -> Model:
    r"""A model made from a flax module, linen or nnx.

    The parameters are linen's ``"params"`` collection, or nnx's ``Param`` variables as nested dicts.
    Training differs from evaluation where ``__call__`` has a boolean argument ``train``, ``training`` or
    ``deterministic``, which is then passed, and where an nnx module draws random numbers (``module.train()``
    and ``module.eval()``). Dropout draws from the key of the training step. Equal linen modules give equal models,
    whose runs share compiled programs.

    An nnx module holds its parameters, such as those of a model that was trained before. They are the start:

    .. math:: w^0 = w_{\mathrm{module}} \quad \text{for every key of } \mathtt{model.init}.

    The module itself is never changed, and what is done to it later does not change the model.

    Args:
      module: a linen module, whose parameters are drawn from a key; an nnx module, whose parameters are the start; or
        a function ``rngs -> nnx.Module``, e.g. ``lambda rngs: Net(rngs=rngs)``, to draw those of an nnx module.
      loss: ``(outputs, y) -> (rows,)``; one of :mod:`evenhand.models.losses`, such as ``focal(gamma=2.0)``; or
        ``"cross_entropy"``, ``"squared_error"``, ``"hinge"``, ``"logistic"``.
      sample: inputs of the right shape and dtype, ``(rows, ...)``, e.g. ``x[:1]``; their values do not
        matter.
      metrics: name -> ``(outputs, y) -> (rows,)``; None: those that go with the loss (accuracy, errors), if
        any.
      frozen: patterns of the parameters of an nnx module that stay as they are, as of :func:`freeze`.
      state: what becomes of BatchNorm's running statistics.  ``"average"``: they are sent and averaged like parameters;
        ``"local"``: each client keeps its own, and they are never sent (SiloBN; with the layers' scales and shifts:
        :func:`evenhand.personalization.fedbn`); ``"refuse"``: a module that has them is refused.  They are in the
        parameters beside the layer's own, as ``"mean"`` and ``"var"``, and are measured in training, on the examples
        of a batch and not on the rows that pad it.

    Raises:
      EvenhandError: the loss has an unknown name; the module keeps state other than parameters, and it is no
        BatchNorm's or ``state`` is ``"refuse"``; it has no parameters; its outputs do not have rows first; it
        draws random numbers in evaluation, or in training from another stream than ``"dropout"``; it fails on inputs
        like the sample; it is neither a module nor a function that makes one; or ``frozen`` is given for parameters
        that are drawn.

    Edge cases: two nnx modules with equal parameters give models that are not equal, so their runs may compile the same
    program twice. A parameter that two layers of an nnx module share is one parameter.

    Example:
      >>> import flax.linen as nn, jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.from_flax(nn.Dense(3), loss="cross_entropy", sample=jnp.zeros((1, 4)))
      >>> params = model.init(jax.random.key(0))
      >>> model.losses(model.apply(params, jnp.zeros((2, 4))), jnp.array([0, 2])).shape
      (2,)
      >>> from flax import nnx
      >>> trained = nnx.Linear(4, 3, rngs=nnx.Rngs(7))
      >>> model = models.from_flax(trained, loss="cross_entropy", sample=jnp.zeros((1, 4)))
      >>> bool((model.init(jax.random.key(0))["kernel"] == trained.kernel[...]).all())
      True
    """
    check_process()
    if is_equinox(module):
        raise EvenhandError(
            "from_flax got a module of equinox: give it to eh.models.from_equinox(module, loss=..., sample=...)."
        )
    if isinstance(module, type) and issubclass(module, nn.Module):
        raise EvenhandError(
            f"from_flax got the class {module.__name__} itself: give it an instance, {module.__name__}(...)."
        )
    row_loss, inputs = resolve(loss), sample_rows(sample)
    check_kind("from_flax", state)
    keeps = state != "refuse"
    functions = _linen(module, inputs, keeps) if isinstance(module, nn.Module) else _nnx(module, keeps)
    _check_calls(functions, inputs, type(module).__name__)
    chosen = default_metrics(row_loss) if metrics is None else metrics
    is_module = isinstance(module, nn.Module) or functions.start is not None
    name = type(module).__name__ if is_module else ""
    model = Model(
        init=functions.init,
        apply=functions.apply,
        losses=row_loss,
        metrics=dict(chosen),
        apply_train=functions.apply_train,
        name=name,
        statistics=functions.statistics(state),
    )
    return frozen_start(model, frozen, functions.start, "from_flax")


_CALL = (
    "give from_flax a sample of what its __call__ takes, which is one array, and a boolean train if it has layers such "
    "as Dropout."
)


def _check_calls(functions: Functions, inputs: Sample, name: str) -> None:
    """Checks that a module has parameters, and that both of its passes can be computed for such inputs."""
    params = jax.eval_shape(functions.init, any_key())
    is_trained = len(jax.tree.leaves(params)) > len(jax.tree.leaves(functions.measured))
    check_trained("from_flax", name, is_trained=is_trained)
    rows = jax.ShapeDtypeStruct((2, *inputs.shape[1:]), inputs.dtype)
    with module_code(name, rows, _CALL):
        try:
            if functions.apply_train is not None:
                jax.eval_shape(functions.apply_train, params, rows, any_key())
        except flax.errors.InvalidRngError as error:
            raise EvenhandError(
                f'{name} draws random numbers in training from another stream than "dropout": draw them with '
                'make_rng("dropout").'
            ) from error
        try:
            check_rows_first(functions, inputs)
        except flax.errors.ModifyScopeVariableError as error:
            raise EvenhandError(
                f"{name} measures running statistics in evaluation, too; give its __call__ a boolean "
                "argument train and pass use_running_average=not train to its BatchNorm layers."
            ) from error
        except flax.errors.InvalidRngError as error:
            raise EvenhandError(
                f"{name} draws random numbers in evaluation; give its __call__ a boolean "
                "argument train and pass deterministic=not train to its Dropout layers."
            ) from error


# --- linen --------------------------------------------------------------------------------------------------


def _linen(module: nn.Module, sample: Sample, keeps: bool) -> Functions:
    """Equal modules give the same functions, so that runs with them share compiled programs."""
    like = jax.ShapeDtypeStruct(sample.shape, sample.dtype)
    try:
        hash(module)
    except TypeError:  # it has a list, a dict or an array
        return _functions_of(module, "", like, keeps)
    return _known_functions(module, repr(module), like, keeps)


def _functions_of(module: nn.Module, text: str, like: jax.ShapeDtypeStruct, keeps: bool) -> Functions:
    """The functions of a module; ``text`` tells 1 from 1.0, which are equal."""
    evaluating, training = call_modes(type(module))

    def variables(key: Key) -> Mapping[str, Any]:
        # Zeros made while this is traced: made before, they would be two programs.
        return module.init({"params": key}, jnp.zeros(like.shape, like.dtype), **evaluating)

    def init(key: Key) -> Params:
        drawn = variables(key)
        return joined(drawn.get("params", {}), drawn[_MEASURED]) if measured else drawn.get("params", {})

    def opened(params: Params) -> dict[str, Params]:
        return (
            dict(zip(("params", _MEASURED), parted(params, measured), strict=True))
            if measured
            else {"params": params}
        )

    def apply(params: Params, x: Array) -> PyTree:
        return module.apply(opened(params), x, **evaluating)

    def apply_train(params: Params, x: Array, key: Key) -> PyTree:
        if measured:
            return measure(params, x, jnp.ones(len(x), bool), key)[0]
        return module.apply({"params": params}, x, rngs={"dropout": key}, **training)

    def measure(params: Params, x: Array, inside: Array, key: Key) -> tuple[PyTree, Params]:
        with rows_inside(inside), nn.intercept_methods(_with_mask):
            outputs, after = module.apply(
                opened(params), x, rngs={"dropout": key}, mutable=[_MEASURED], **training
            )
        return outputs, joined(opened(params)["params"], after[_MEASURED])

    layers = set[tuple[str, ...]]()
    with module_code(type(module).__name__, like, _CALL), nn.intercept_methods(_paths_of_layers(layers)):
        collections = jax.eval_shape(variables, any_key())
    measured = collections.get(_MEASURED, {}) if keeps else {}
    for name in collections:
        if name != "params" and not (measured and name == _MEASURED):
            why = CHOICE if name == _MEASURED else f"{STATISTICS}."
            raise EvenhandError(f'{type(module).__name__} keeps a collection "{name}": {why}')
    _check_measured(type(module), measured, layers)
    functions = Functions(
        # Compiled as one program, which is cached between processes; else every small draw would compile its own.
        init=jax.jit(init),
        apply=apply,
        apply_train=apply_train if training or measured else None,
    )
    return functions._replace(measured=measured, measure=measure) if measured else functions


_known_functions = lru_cache(maxsize=64)(_functions_of)

_MEASURED = "batch_stats"
"""The collection that linen's BatchNorm keeps its statistics in."""


def _with_mask(call: Callable[..., Any], args: Any, options: Any, context: Any) -> Any:
    """Passes a BatchNorm the mask of the rows that count."""
    if isinstance(context.module, nn.BatchNorm) and context.method_name == "__call__":
        options = {**options, "mask": _both(mask_like(args[0]), options.get("mask"))}
    return call(*args, **options)


def _both(mask: Array | None, other: Array | None) -> Array | None:
    """What is in both masks; None is all."""
    return other if mask is None else mask if other is None else jnp.logical_and(mask, other)


def _paths_of_layers(layers: set[tuple[str, ...]]) -> Callable[..., Any]:
    """Adds the path of every BatchNorm that is called to ``layers``."""

    def note(call: Callable[..., Any], args: Any, options: Any, context: Any) -> Any:
        if isinstance(context.module, nn.BatchNorm):
            layers.add(context.module.path)
            if context.module.axis_name is not None:
                raise EvenhandError(
                    f"BatchNorm(axis_name={context.module.axis_name!r:.40}) averages over devices, and a client trains "
                    "on one: leave axis_name out."
                )
        return call(*args, **options)

    return note


def _check_measured(kind: type, measured: Mapping[str, Any], layers: set[tuple[str, ...]]) -> None:
    """Checks that every statistic is a BatchNorm's: only of those it is known how padding is left out."""
    for path, _ in jax.tree.leaves_with_path(measured):
        if tuple(key.key for key in path[:-1]) not in layers:
            raise EvenhandError(
                f"{kind.__name__} keeps {named_path(path)}, which is no statistic of a flax.linen.BatchNorm: only "
                "those can be trained, since batches have rows that others would count. Use a BatchNorm or GroupNorm."
            )


# --- nnx ----------------------------------------------------------------------------------------------------


def _nnx(source: Any, keeps: bool) -> Functions:
    """The functions of an nnx module, or of a function ``rngs -> nnx.Module``.

    Raises:
      EvenhandError: it is neither; or the module keeps state other than parameters and random numbers.
    """
    from flax import nnx  # takes a third of a second, and few processes need it

    if isinstance(source, nnx.Module):
        return _instance(source, keeps)
    if not callable(source):
        raise EvenhandError(
            "from_flax takes a linen module, an nnx module, or a function rngs -> nnx.Module such as lambda rngs: "
            f"Net(rngs=rngs), which draws new parameters from a key; but it got a {type(source).__name__}."
        )
    return _factory(source, keeps)


def _instance(module: Any, keeps: bool) -> Functions:
    """The module is split once; a trace puts it together again around the parameters, without running its code."""
    from flax import nnx

    _check_state(module, keeps)
    definition, start, statistics, randomness = nnx.split(module, nnx.Param, nnx.BatchStat, nnx.RngState)
    params = joined(nnx.to_pure_dict(start), nnx.to_pure_dict(statistics))
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(params)):
        raise EvenhandError(
            f"{type(module).__name__} holds shapes in place of arrays: give the module with its parameters, or a "
            "function rngs -> nnx.Module, which draws them."
        )
    # Shapes alone: the values that the caller's module holds later are of no concern, and init has those of today.
    states = jax.eval_shape(lambda: (start, statistics))
    randomness = jax.eval_shape(lambda: randomness)
    measured = nnx.to_pure_dict(states[1])

    def load(params: Params, key: Key) -> nnx.Module:
        # The trees are copied, since replacing what a variable holds would change them for the next trace.
        copies = jax.tree.map(lambda leaf: leaf, states)
        for state, values in zip(copies, parted(params, measured), strict=True):
            nnx.replace_by_pure_dict(state, values)
        return nnx.merge(definition, *copies, _reseeded(randomness, key))

    functions = _functions(type(module), constant_init(params), load, randomness, measured)
    return functions._replace(start=params)


def _reseeded(randomness: Any, key: Key) -> Any:
    """The state of the streams of random numbers at their beginning, each with a key of its own."""
    leaves, structure = jax.tree.flatten(randomness)

    def value(index: int, leaf: Any) -> Array:
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.zeros(leaf.shape, leaf.dtype)  # how many numbers were drawn
        own = jax.random.fold_in(key, index)
        return jax.random.split(own, leaf.shape) if leaf.shape else own

    return jax.tree.unflatten(structure, [value(index, leaf) for index, leaf in enumerate(leaves)])


def _factory(factory: Callable[[Any], Any], keeps: bool) -> Functions:
    """The module is rebuilt at every trace; once compiled, the values that ``update`` overwrites cost nothing."""
    from flax import nnx

    def make(key: Key) -> nnx.Module:
        module = factory(nnx.Rngs(key))
        if not isinstance(module, nnx.Module):
            where = " of equinox, which eh.models.from_equinox takes" if is_equinox(module) else ""
            raise EvenhandError(
                f"The function must return an nnx.Module, but it returned {type(module).__name__}{where}."
            )
        return module

    def states(module: nnx.Module) -> tuple[Any, Any]:
        return nnx.state(module, nnx.Param), nnx.state(module, nnx.BatchStat)

    def load(params: Params, key: Key) -> nnx.Module:
        module = make(key)
        for state, values in zip(states(module), parted(params, measured), strict=True):
            nnx.replace_by_pure_dict(state, values)
            nnx.update(module, state)
        return module

    def init(key: Key) -> Params:
        return joined(*map(nnx.to_pure_dict, states(make(key))))

    example = nnx.eval_shape(lambda: make(jax.random.key(0)))
    _check_state(example, keeps)
    measured = nnx.to_pure_dict(nnx.state(example, nnx.BatchStat))
    return _functions(type(example), init, load, nnx.state(example, nnx.RngState), measured)


def _functions(
    kind: type,
    init: Callable[[Key], Params],
    load: Callable[[Params, Key], Any],
    randomness: Any,
    measured: Mapping[Any, Any],
) -> Functions:
    """The functions of an nnx module that ``load`` makes of parameters and a key."""
    from flax import nnx

    evaluating, training = call_modes(kind)

    def apply(params: Params, x: Array) -> PyTree:
        module = load(params, jax.random.key(0))
        module.eval()
        return module(x, **evaluating)

    def apply_train(params: Params, x: Array, key: Key) -> PyTree:
        if measured:
            return measure(params, x, jnp.ones(len(x), bool), key)[0]
        module = load(params, key)
        module.train()
        return module(x, **training)

    def measure(params: Params, x: Array, inside: Array, key: Key) -> tuple[PyTree, Params]:
        module = load(params, key)
        module.train()
        with rows_inside(inside):
            outputs = _masked(module)(x, **training)
        return outputs, joined(
            parted(params, measured)[0], nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))
        )

    differs = bool(training or measured) or bool(jax.tree.leaves(randomness))
    functions = Functions(init, apply, apply_train if differs else None)
    return functions._replace(measured=measured, measure=measure) if measured else functions


@cache
def _masking() -> type:
    """nnx's BatchNorm, which measures the rows that are inside."""
    from flax import nnx

    class Masked(nnx.BatchNorm):
        def __call__(
            self, x: Any, use_running_average: bool | None = None, *, mask: Array | None = None
        ) -> Any:
            return super().__call__(x, use_running_average, mask=_both(mask_like(x), mask))

    return Masked


def _masked(module: Any) -> Any:
    """A module whose BatchNorm layers measure the rows that are inside; it is changed in place."""
    from flax import nnx

    for _, node in nnx.iter_graph(module):
        if type(node) is nnx.BatchNorm:
            # nnx has no hook before a call, as linen has; the module was made for this trace alone.
            object.__setattr__(node, "__class__", _masking())
    return module


def _check_state(module: Any, keeps: bool) -> None:
    """Checks that a module has nothing but parameters, random numbers, and statistics where it may keep them."""
    from flax import nnx

    layers = (
        {path for path, node in nnx.iter_graph(module) if type(node) is nnx.BatchNorm} if keeps else set()
    )
    _, _, others = nnx.state(module, nnx.Param, nnx.RngState, ...)
    for path, variable in nnx.to_flat_state(others):
        if issubclass(type(variable), nnx.BatchStat) and tuple(path[:-1]) in layers:
            continue
        name, has_choice = ".".join(map(str, path)), isinstance(variable, nnx.BatchStat) and not keeps
        if keeps and isinstance(variable, nnx.BatchStat):
            raise EvenhandError(
                f"{type(module).__name__} keeps a BatchStat in {name}, which is no statistic of an nnx.BatchNorm "
                "itself: only those can be trained, and not those of a class derived from it, since batches have rows "
                "that others would count."
            )
        raise EvenhandError(
            f"{type(module).__name__} keeps a {type(variable).__name__} in {name}: "
            f"{CHOICE if has_choice else STATISTICS + '.'}"
        )
