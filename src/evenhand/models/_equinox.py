"""Models of equinox modules, and modules with the parameters of a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy.typing as npt

from evenhand._jaxpr.programs import used_inputs
from evenhand._paths import KeyPath, Patterns, leaf_at, named_path, nested
from evenhand._platform import check_process
from evenhand.errors import EvenhandError, ModelError
from evenhand.models._frozen import frozen_start
from evenhand.models._modules import (
    STATISTICS,
    Functions,
    Sample,
    check_trained,
    constant_init,
    is_equinox,
    module_code,
    sample_rows,
)
from evenhand.models.losses import LossLike, PerRow, default_metrics, resolve
from evenhand.types import Array, Key, Model, Params, PyTree

_Module: TypeAlias = Any
"""An ``equinox.Module``, or a function ``key -> equinox.Module``."""


def from_equinox(
    module: _Module,
    *,
    loss: LossLike,
    sample: npt.ArrayLike,
    metrics: Mapping[str, PerRow] | None = None,
    frozen: Patterns = (),
) -> Model:
    r"""A model made from an equinox module, which takes one example.

    With the module :math:`f_w`, whose arrays of floating-point numbers are :math:`w`, the outputs for the rows
    :math:`x_1, \dots, x_n` are

    .. math:: (f_w(x_1), \dots, f_w(x_n)), \qquad \text{in training} \quad (f_w(x_1; k_1), \dots, f_w(x_n; k_n))

    with a key :math:`k_i` for each row, drawn from the key of the training step, if ``__call__`` has an argument
    ``key``.  The flags ``inference`` of all layers are set in evaluation and cleared in training.

    The parameters are nested dicts of the names of the attributes, with positions in lists: the kernel of the first
    layer of a perceptron is ``params["layers"][0]["weight"]``, and its path ``"layers/0/weight"`` in patterns such as
    those of :func:`evenhand.personalization.fedalt`.  Everything else in the module stays as it is: functions, sizes,
    and arrays of integers or bools.

    Args:
      module: an ``equinox.Module``, whose arrays are the start; or a function ``key -> equinox.Module``, e.g. ``lambda
        key: eqx.nn.MLP(4, 3, 8, 1, key=key)``, so that the start is drawn from a key.
      loss: ``(outputs, y) -> (rows,)``; one of :mod:`evenhand.models.losses`, such as ``focal(gamma=2.0)``; or
        ``"cross_entropy"``, ``"squared_error"``, ``"hinge"``, ``"logistic"``.
      sample: inputs of the right shape and dtype, ``(rows, ...)``, e.g. ``x[:1]``; their values do not matter.  The
        module gets one row, ``(...)``.
      metrics: name -> ``(outputs, y) -> (rows,)``; None: those that go with the loss (accuracy, errors), if any.
      frozen: patterns of the parameters of a module that stay as they are, as of :func:`freeze`.

    Raises:
      EvenhandError: equinox is not installed; the loss has an unknown name; ``module`` is neither a module nor a
        function that makes one; it keeps state other than parameters (BatchNorm's running statistics); it needs a key
        in training, and its ``__call__`` takes none; it has no parameters; it fails on rows like those of
        the sample; or ``frozen`` is given for parameters that are drawn.

    Edge cases: in evaluation, a ``key`` is the same for all rows and at all times, so a module that draws there is
    evaluated with one draw.  Arrays of integers that a function draws are those of one key, whatever the key of
    ``model.init``.  Two modules with equal arrays give models that are not equal, so their runs may compile the same
    program twice.

    Example:
      >>> import equinox as eqx, jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> network = eqx.nn.MLP(4, 3, width_size=8, depth=1, key=jax.random.key(7))
      >>> model = models.from_equinox(network, loss="cross_entropy", sample=jnp.zeros((1, 4)))
      >>> params = model.init(jax.random.key(0))
      >>> params["layers"][0]["weight"].shape, model.apply(params, jnp.zeros((5, 4))).shape
      ((8, 4), (5, 3))
      >>> trained = models.to_equinox(network, params)
      >>> trained(jnp.zeros(4)).shape
      (3,)

    Source: Kidger and Garcia, *Equinox: neural networks in JAX via callable PyTrees and filtered
    transformations*, 2021.
    """
    check_process()
    row_loss, inputs = resolve(loss), sample_rows(sample)
    if any(base.__module__.startswith("flax.") for base in type(module).__mro__):
        raise EvenhandError(
            f"from_equinox got {type(module).__name__}, a module of flax: give it to eh.models.from_flax(module, "
            "loss=..., sample=...)."
        )
    parts = _parts(module)
    functions = _functions(parts, _init(module, parts), inputs)
    start = nested(parts.paths, parts.leaves) if is_equinox(module) and not isinstance(module, type) else None
    model = Model(
        init=functions.init,
        apply=functions.apply,
        losses=row_loss,
        metrics=dict(default_metrics(row_loss) if metrics is None else metrics),
        apply_train=functions.apply_train,
        name=parts.name,
    )
    return frozen_start(model, frozen, start, "from_equinox")


def to_equinox(module: _Module, params: Params) -> Any:
    """The equinox module with the parameters of a model of :func:`from_equinox`, to save it or to use it elsewhere.

    Args:
      module: what :func:`from_equinox` got: a module, which is not changed, or a function that makes one.
      params: the parameters, such as ``run.params``.

    Returns:
      An ``equinox.Module`` that takes one example, with the flags ``inference`` of ``module``.

    Raises:
      EvenhandError: as :func:`from_equinox`; or the parameters are not those of this module.

    Example:
      >>> import equinox as eqx, jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> network = eqx.nn.Linear(4, 3, key=jax.random.key(7))
      >>> trained = models.to_equinox(network, {"weight": jnp.zeros((3, 4)), "bias": jnp.ones(3)})
      >>> trained(jnp.ones(4))
      Array([1., 1., 1.], dtype=float32)
    """
    parts = _parts(module)
    names = {named_path(path) for path in parts.paths}
    for path, _ in jax.tree.leaves_with_path(params):
        if named_path(path) not in names:
            raise ModelError(
                f"to_equinox: {parts.name} has no array {named_path(path)}: give the module that the model was made "
                "from."
            )
    for path, shape in zip(parts.paths, parts.shapes, strict=True):
        leaf = leaf_at(params, path)
        if jnp.shape(leaf) != shape:
            raise ModelError(
                f"to_equinox: {named_path(path)} has shape {jnp.shape(leaf)}, and that of {parts.name} has {shape}: "
                "give the module that the model was made from."
            )
    return parts.loaded(jax.tree.map(jnp.asarray, params))


# --- a module in parts -------------------------------------------------------------------------------------------


class _Parts(NamedTuple):
    """A module apart from its parameters.

    Attributes:
      name: of its class.
      static: the module without its parameters.
      arrays: the module that was taken apart, with its parameters only.
      paths: of each of them.
    """

    name: str
    static: Any
    # Not its structure: a sentinel of equinox in it is another one in the process of a worker.
    arrays: Any
    paths: Sequence[KeyPath]

    @property
    def leaves(self) -> list[Array]:
        """The value of each parameter."""
        return jax.tree.leaves(self.arrays)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of each parameter."""
        return [leaf.shape for leaf in self.leaves]

    def loaded(self, params: Params) -> Any:
        """The module with these parameters."""
        structure = jax.tree.structure(self.arrays)
        arrays = jax.tree.unflatten(structure, [leaf_at(params, path) for path in self.paths])
        return _equinox().combine(arrays, self.static)


def _equinox() -> Any:
    try:
        return import_module("equinox")
    except ImportError:
        raise EvenhandError(
            "from_equinox needs the package equinox, which is not installed: pip install 'evenhand[equinox]'."
        ) from None


def _parts(module: _Module) -> _Parts:
    """The parts of a module, or of what a function makes.

    Raises:
      EvenhandError: it is neither, or the module keeps a state.
    """
    eqx = _equinox()
    if not isinstance(module, eqx.Module):
        if (is_equinox(module) and module.__module__.startswith("equinox.")) or not callable(module):
            whose = (
                f"the class {module.__name__} itself" if isinstance(module, type) else type(module).__name__
            )
            raise EvenhandError(
                f"from_equinox got {whose}: give an equinox module, or a function key -> equinox.Module such as lambda "
                "key: eqx.nn.MLP(4, 3, 8, 1, key=key)."
            )
        # As one program: else every small draw would compile its own.
        module = eqx.filter_jit(module)(jax.random.key(0))
    _check_stateless(module)
    if not isinstance(module, eqx.Module):
        raise EvenhandError(
            f"The function must return an equinox.Module, but it returned {type(module).__name__}."
        )
    arrays, static = eqx.partition(module, eqx.is_inexact_array)
    return _Parts(
        type(module).__name__, static, arrays, [path for path, _ in jax.tree.leaves_with_path(arrays)]
    )


def _check_stateless(module: Any) -> None:
    eqx = _equinox()
    kinds = (eqx.nn.State, eqx.nn.StateIndex)
    for path, leaf in jax.tree.leaves_with_path(module, is_leaf=lambda node: isinstance(node, kinds)):
        if isinstance(leaf, kinds):
            where = f" in {named_path(path)}" if path and isinstance(leaf, eqx.nn.StateIndex) else ""
            raise EvenhandError(
                f"from_equinox got a module that keeps a state{where}: {STATISTICS}. "
                "Models with BatchNorm can be trained through from_flax and from_torch."
            )


# --- its functions -------------------------------------------------------------------------------------------------


def _init(module: _Module, parts: _Parts) -> Callable[[Key], Params]:
    eqx = _equinox()
    if isinstance(module, eqx.Module):
        return constant_init(nested(parts.paths, parts.leaves))

    def init(key: Key) -> Params:
        arrays = eqx.filter(module(key), eqx.is_inexact_array)
        return nested(parts.paths, jax.tree.leaves(arrays))

    return jax.jit(init)


def _functions(parts: _Parts, init: Callable[[Key], Params], sample: Sample) -> Functions:
    """The module over rows; a pass of its own for training only where a key or a flag makes a difference."""
    eqx = _equinox()
    takes_key = "key" in inspect.signature(type(parts.static).__call__).parameters

    def over_rows(module: Any, x: Array, keys: Key, axis: int | None) -> PyTree:
        if takes_key:
            return jax.vmap(lambda row, key: module(row, key=key), (0, axis))(x, keys)
        return jax.vmap(module)(x)

    def apply(params: Params, x: Array) -> PyTree:
        module = eqx.nn.inference_mode(parts.loaded(params), value=True)
        # Modules that split their key would fail without one, though no layer uses it.
        return over_rows(module, x, jax.random.key(0), None)

    def apply_train(params: Params, x: Array, key: Key) -> PyTree:
        module = eqx.nn.inference_mode(parts.loaded(params), value=False)
        return over_rows(module, x, jax.random.split(key, x.shape[0]), 0)

    like = jax.eval_shape(init, jax.random.key(0))
    cure = "give from_equinox a sample of rows, each of which is what its __call__ takes."
    with module_code(parts.name, sample, cure):
        jax.eval_shape(apply, like, sample)
        try:
            program = jax.make_jaxpr(apply_train)(like, sample, jax.random.key(0))
        except RuntimeError as error:
            if takes_key or "key" not in str(error):
                raise
            raise EvenhandError(
                f"{parts.name} draws random numbers in training; give its __call__ an argument key, and pass it on to "
                "its Dropout layers."
            ) from error
    check_trained("from_equinox", parts.name, is_trained=bool(parts.leaves))
    differs = used_inputs(program)[-1] or _has_other_mode(parts.static)
    return Functions(init, apply, apply_train if differs else None)


def _has_other_mode(static: Any) -> bool:
    """Whether a layer has a flag that evaluation sets, other than dropout, which is found by its key."""
    eqx = _equinox()
    modules = jax.tree.leaves(static, is_leaf=lambda node: hasattr(node, "inference"))
    return any(hasattr(node, "inference") and not isinstance(node, eqx.nn.Dropout) for node in modules)
