"""Models of flax modules: linen ones, nnx ones, which hold their parameters, and functions that make nnx ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy.typing as npt

from evenhand._paths import Patterns
from evenhand._platform import check_process
from evenhand.errors import EvenhandError
from evenhand.models._frozen import frozen_start
from evenhand.models._modules import (
    STATISTICS,
    Functions,
    call_modes,
    check_rows_first,
    constant_init,
    is_equinox,
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

    Raises:
      EvenhandError: the loss has an unknown name; the module keeps state other than parameters (BatchNorm's
        running statistics); its outputs do not have rows first; it draws random numbers in evaluation; it is
        neither a module nor a function that makes one; or ``frozen`` is given for parameters that are drawn.

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
    functions = _linen(module, inputs) if isinstance(module, nn.Module) else _nnx(module)
    try:
        check_rows_first(functions, inputs)
    except flax.errors.InvalidRngError as error:
        raise EvenhandError(
            f"{type(module).__name__} draws random numbers in evaluation; give its __call__ a boolean "
            "argument train and pass deterministic=not train to its Dropout layers."
        ) from error
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
    )
    return frozen_start(model, frozen, functions.start, "from_flax")


# --- linen --------------------------------------------------------------------------------------------------


def _linen(module: nn.Module, sample: Array) -> Functions:
    """Equal modules give the same functions, so that runs with them share compiled programs."""
    like = jax.ShapeDtypeStruct(sample.shape, sample.dtype)
    try:
        hash(module)
    except TypeError:  # it has a list, a dict or an array
        return _functions_of(module, "", like)
    return _known_functions(module, repr(module), like)


def _functions_of(module: nn.Module, text: str, like: jax.ShapeDtypeStruct) -> Functions:
    """The functions of a module; ``text`` tells 1 from 1.0, which are equal."""
    sample = jnp.zeros(like.shape, like.dtype)
    evaluating, training = call_modes(type(module))

    def variables(key: Key) -> Mapping[str, Any]:
        return module.init({"params": key}, sample, **evaluating)

    def init(key: Key) -> Params:
        return variables(key).get("params", {})

    def apply(params: Params, x: Array) -> PyTree:
        return module.apply({"params": params}, x, **evaluating)

    def apply_train(params: Params, x: Array, key: Key) -> PyTree:
        return module.apply({"params": params}, x, rngs={"dropout": key}, **training)

    for name in jax.eval_shape(variables, jax.random.key(0)):
        if name != "params":
            raise EvenhandError(f'{type(module).__name__} keeps a collection "{name}": {STATISTICS}')
    # Compiled as one program, which is cached between processes; else every small draw would compile its own.
    return Functions(jax.jit(init), apply, apply_train if training else None)


_known_functions = lru_cache(maxsize=64)(_functions_of)


# --- nnx ----------------------------------------------------------------------------------------------------


def _nnx(source: Any) -> Functions:
    """The functions of an nnx module, or of a function ``rngs -> nnx.Module``.

    Raises:
      EvenhandError: it is neither; or the module keeps state other than parameters and random numbers.
    """
    from flax import nnx  # takes a third of a second, and few processes need it

    if isinstance(source, nnx.Module):
        return _instance(source)
    if not callable(source):
        raise EvenhandError(
            "from_flax takes a linen module, an nnx module, or a function rngs -> nnx.Module such as lambda rngs: "
            f"Net(rngs=rngs), which draws new parameters from a key; but it got a {type(source).__name__}."
        )
    return _factory(source)


def _instance(module: Any) -> Functions:
    """The module is split once; a trace puts it together again around the parameters, without running its code."""
    from flax import nnx

    _check_state(module)
    definition, start, randomness = nnx.split(module, nnx.Param, nnx.RngState)
    params = nnx.to_pure_dict(start)
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(params)):
        raise EvenhandError(
            f"{type(module).__name__} holds shapes in place of arrays: give the module with its parameters, or a "
            "function rngs -> nnx.Module, which draws them."
        )
    # Shapes alone: the values that the caller's module holds later are of no concern, and init has those of today.
    start, randomness = jax.eval_shape(lambda: (start, randomness))

    def load(params: Params, key: Key) -> nnx.Module:
        # The trees are copied, since replacing what a variable holds would change them for the next trace.
        state = jax.tree.map(lambda leaf: leaf, start)
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(definition, state, _reseeded(randomness, key))

    return _functions(type(module), constant_init(params), load, randomness)._replace(start=params)


def _reseeded(randomness: Any, key: Key) -> Any:
    """The state of the streams of random numbers at their beginning, each with a key of its own."""
    leaves, structure = jax.tree.flatten(randomness)

    def value(index: int, leaf: Any) -> Array:
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.zeros(leaf.shape, leaf.dtype)  # how many numbers were drawn
        own = jax.random.fold_in(key, index)
        return jax.random.split(own, leaf.shape) if leaf.shape else own

    return jax.tree.unflatten(structure, [value(index, leaf) for index, leaf in enumerate(leaves)])


def _factory(factory: Callable[[Any], Any]) -> Functions:
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

    def load(params: Params, key: Key) -> nnx.Module:
        module = make(key)
        state = nnx.state(module, nnx.Param)
        nnx.replace_by_pure_dict(state, params)
        nnx.update(module, state)
        return module

    def init(key: Key) -> Params:
        return nnx.to_pure_dict(nnx.state(make(key), nnx.Param))

    example = nnx.eval_shape(lambda: make(jax.random.key(0)))
    _check_state(example)
    return _functions(type(example), init, load, nnx.state(example, nnx.RngState))


def _functions(
    kind: type, init: Callable[[Key], Params], load: Callable[[Params, Key], Any], randomness: Any
) -> Functions:
    """The functions of an nnx module that ``load`` makes of parameters and a key."""
    evaluating, training = call_modes(kind)

    def apply(params: Params, x: Array) -> PyTree:
        module = load(params, jax.random.key(0))
        module.eval()
        return module(x, **evaluating)

    def apply_train(params: Params, x: Array, key: Key) -> PyTree:
        module = load(params, key)
        module.train()
        return module(x, **training)

    differs = bool(training) or bool(jax.tree.leaves(randomness))
    return Functions(init, apply, apply_train if differs else None)


def _check_state(module: Any) -> None:
    """Checks that a module has nothing but parameters and random numbers."""
    from flax import nnx

    _, _, others = nnx.state(module, nnx.Param, nnx.RngState, ...)
    for path, variable in nnx.to_flat_state(others):
        name = ".".join(map(str, path))
        raise EvenhandError(
            f"{type(module).__name__} keeps a {type(variable).__name__} in {name}: {STATISTICS}"
        )
