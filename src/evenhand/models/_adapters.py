"""Models from the user's functions, from a flax module, and from another model: with another loss, or other targets."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, cast, get_args

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy.typing as npt

from evenhand._platform import check_process
from evenhand.errors import Argument, EvenhandError, ModelError, expect
from evenhand.models.losses import Loss, LossLike, LossName, PerRow, default_metrics, resolve
from evenhand.types import Array, Key, Model, Params, PyTree

# --- functions and flax modules -----------------------------------------------------------------------------


_Factory: TypeAlias = Callable[[Any], Any]
"""``nnx.Rngs -> nnx.Module``."""

STATISTICS = (
    "the running statistics of heterogeneous clients cannot be averaged meaningfully; use a layer without them, "
    "e.g. GroupNorm or LayerNorm instead of BatchNorm."
)


def from_functions(
    init: Callable[[Key], Params],
    apply: Callable[[Params, Array], PyTree],
    losses: PerRow | Loss,
    metrics: Mapping[str, PerRow] | None = None,
    apply_train: Callable[[Params, Array, Key], PyTree] | None = None,
) -> Model:
    r"""A model made of pure functions, which are used as they are.

    Args:
      init: ``key -> params``, a pytree of float arrays.
      apply: ``(params, x) -> outputs``; ``x`` and outputs have rows first.
      losses: ``(outputs, y) -> (rows,)``, one loss per example, not their mean; or a loss such as ``huber(1.0)``.
      metrics: name -> ``(outputs, y) -> (rows,)``; None: those of a loss such as ``huber(1.0)``, none of a function.
      apply_train: ``(params, x, key) -> outputs`` in training; None: ``apply``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.from_functions(
      ...     init=lambda key: jnp.zeros(2),
      ...     apply=lambda params, x: x @ params,
      ...     losses=lambda outputs, y: (outputs - y) ** 2,
      ... )
      >>> model.losses(model.apply(model.init(jax.random.key(0)), jnp.eye(2)), jnp.array([1.0, 2.0]))
      Array([1., 4.], dtype=float32)
    """
    if metrics is None:
        metrics = losses.metrics if isinstance(losses, Loss) else {}
    return Model(init, apply, losses, dict(metrics), apply_train)


def from_flax(
    module: nn.Module | _Factory,
    *,
    loss: LossLike,
    sample: npt.ArrayLike,
    metrics: Mapping[str, PerRow] | None = None,
) -> Model:
    r"""A model made from a flax module, linen or nnx.

    The parameters are linen's ``"params"`` collection, or nnx's ``Param`` variables as nested dicts.
    Training differs from evaluation where ``__call__`` has a boolean argument ``train``, ``training`` or
    ``deterministic``, which is then passed, and where an nnx module draws random numbers (``module.train()``
    and ``module.eval()``). Dropout draws from the key of the training step. Equal linen modules give equal models,
    whose runs share compiled programs.

    Args:
      module: a linen module; or a function ``rngs -> nnx.Module``, e.g. ``lambda rngs: Net(rngs=rngs)``,
        since an nnx module already holds its parameters.
      loss: ``(outputs, y) -> (rows,)``; one of :mod:`evenhand.models.losses`, such as ``focal(gamma=2.0)``; or
        ``"cross_entropy"``, ``"squared_error"``, ``"hinge"``, ``"logistic"``.
      sample: inputs of the right shape and dtype, ``(rows, ...)``, e.g. ``x[:1]``; their values do not
        matter.
      metrics: name -> ``(outputs, y) -> (rows,)``; None: those that go with the loss (accuracy, errors), if
        any.

    Raises:
      EvenhandError: the loss has an unknown name; the module keeps state other than parameters (BatchNorm's
        running statistics); its outputs do not have rows first; it draws random numbers in evaluation; it is
        an nnx module rather than a function that makes one.

    Example:
      >>> import flax.linen as nn, jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.from_flax(nn.Dense(3), loss="cross_entropy", sample=jnp.zeros((1, 4)))
      >>> params = model.init(jax.random.key(0))
      >>> model.losses(model.apply(params, jnp.zeros((2, 4))), jnp.array([0, 2])).shape
      (2,)
    """
    check_process()
    if isinstance(module, type) and issubclass(module, nn.Module):
        raise EvenhandError(
            f"from_flax got the class {module.__name__} itself: give it an instance, {module.__name__}(...)."
        )
    row_loss = resolve(loss)
    inputs = jnp.asarray(sample)
    if inputs.ndim == 0:
        raise EvenhandError("sample must have rows first, e.g. x[:1], but it is a single number.")
    functions = _linen(module, inputs[:1]) if isinstance(module, nn.Module) else _nnx(module)
    try:
        check_rows_first(functions, inputs)
    except flax.errors.InvalidRngError as error:
        raise EvenhandError(
            f"{type(module).__name__} draws random numbers in evaluation; give its __call__ a boolean "
            "argument train and pass deterministic=not train to its Dropout layers."
        ) from error
    chosen = default_metrics(row_loss) if metrics is None else metrics
    name = type(module).__name__ if isinstance(module, nn.Module) else ""
    return Model(
        init=functions.init,
        apply=functions.apply,
        losses=row_loss,
        metrics=dict(chosen),
        apply_train=functions.apply_train,
        name=name,
    )


class Functions(NamedTuple):
    """What a module of any library is made of, as pure functions; the fields are those of a model."""

    init: Callable[[Key], Params]
    apply: Callable[[Params, Array], PyTree]
    apply_train: Callable[[Params, Array, Key], PyTree] | None


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
    evaluating, training = _modes(type(module))

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


def _nnx(factory: _Factory) -> Functions:
    """The module is rebuilt at every trace; once compiled, the values that ``update`` overwrites cost nothing."""
    from flax import nnx  # takes a third of a second, and few processes need it

    def make(key: Key) -> nnx.Module:
        module = factory(nnx.Rngs(key))
        if not isinstance(module, nnx.Module):
            raise EvenhandError(
                f"The function must return an nnx.Module, but it returned {type(module).__name__}."
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

    def apply(params: Params, x: Array) -> PyTree:
        module = load(params, jax.random.key(0))
        module.eval()
        return module(x, **evaluating)

    def apply_train(params: Params, x: Array, key: Key) -> PyTree:
        module = load(params, key)
        module.train()
        return module(x, **training)

    if isinstance(factory, nnx.Module) or not callable(factory):
        raise EvenhandError(
            "from_flax takes a linen module or a function rngs -> nnx.Module, but got a "
            f"{type(factory).__name__}; for an nnx module give e.g. lambda rngs: Net(rngs=rngs), so that "
            "parameters can be drawn from a key."
        )
    example = nnx.eval_shape(lambda: make(jax.random.key(0)))
    _, randomness, others = nnx.state(example, nnx.Param, nnx.RngState, ...)
    for path, variable in nnx.to_flat_state(others):
        name = ".".join(map(str, path))
        raise EvenhandError(
            f"{type(example).__name__} keeps a {type(variable).__name__} in {name}: {STATISTICS}"
        )
    evaluating, training = _modes(type(example))
    differs = bool(training) or bool(jax.tree.leaves(randomness))
    return Functions(init, apply, apply_train if differs else None)


def _modes(module: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of the module's ``__call__`` that say that it evaluates, and that it trains."""
    arguments = inspect.signature(module.__call__).parameters
    flags = {"train": True, "training": True, "deterministic": False}
    training = {name: value for name, value in flags.items() if name in arguments}
    return {name: not value for name, value in training.items()}, training


def check_rows_first(functions: Functions, sample: Array) -> None:
    """Refuses functions whose outputs do not have rows first."""
    params = jax.eval_shape(functions.init, jax.random.key(0))
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


# --- another loss -------------------------------------------------------------------------------------------


def with_loss(model: Model, loss: LossLike) -> Model:
    r"""``model`` with another loss: the same parameters and outputs, trained and judged by ``loss``.

    Its metrics stay; where it has none, it gets those of the loss, if any.

    Args:
      model: its outputs are one array.
      loss: one of :mod:`evenhand.models.losses`, such as ``focal(gamma=2.0)``; ``(outputs, y) -> (rows,)``; or
        ``"cross_entropy"``, ``"squared_error"``, ``"hinge"``, ``"logistic"``.

    Raises:
      EvenhandError: the loss has an unknown name; the metrics say that the model is for classes and the loss for real
        targets, or the reverse; or the outputs are no array, as those of :func:`svm`, which hold a penalty beside the
        score.

    Edge cases: a model of :func:`standardized` is trained by the loss in standard units, and reports what it did
    before.

    Example:
      >>> from evenhand import models
      >>> models.with_loss(models.softmax_regression(features=64, classes=10), models.losses.focal(gamma=2.0))
      <Model softmax_regression(features=64, classes=10, loss=focal(gamma=2))>
    """
    expect("model", model, Model, "eh.models.softmax_regression(features=64, classes=10)")
    row_loss = resolve(loss)
    name = loss if isinstance(loss, str) else _name_of(row_loss)
    given, whose = Argument("loss", name), model.name or "this model"
    if not callable(row_loss):
        raise EvenhandError(
            given, ": give a function (outputs, y) -> (rows,), or a loss such as focal(gamma=2.0)."
        )
    if model.name.startswith("svm("):
        raise ModelError(
            given,
            f" does not fit {whose}, whose outputs are a score and a penalty: give a model of one array.",
        )
    own = default_metrics(row_loss)
    for_model, for_loss = _labels_of(model.metrics), _labels_of(own)
    if for_model and for_loss and for_model != for_loss:
        raise ModelError(
            given, f" is for {for_loss}, and {whose} for {for_model}: give a loss of {for_model}."
        )
    before = model.losses
    return model._replace(
        losses=before._replace(function=row_loss) if isinstance(before, _Trained) else row_loss,
        metrics=dict(model.metrics or own),
        name=_name_with(model.name, name),
    )


def _labels_of(metrics: Mapping[str, PerRow]) -> str:
    """The labels that these metrics are for; empty if they do not say."""
    if "accuracy" in metrics:
        return "classes"
    return "real targets" if "squared_error" in metrics else ""


def _name_of(loss: PerRow) -> str:
    """What a loss is called; a user's function never has the name of another one of the library."""
    # A partial function, or an object that can be called, has no name.
    name = loss.name if isinstance(loss, Loss) else getattr(loss, "__name__", "<lambda>")
    is_another = name in get_args(LossName) and resolve(cast(LossName, name)) is not loss
    return type(loss).__name__ if name == "<lambda>" or is_another else name


def _name_with(model: str, loss: str) -> str:
    """A model's name with ``loss`` as its last argument, in the place of an earlier one; that of no name is none."""
    if not model:
        return ""
    try:
        call, value = (ast.parse(text, mode="eval").body for text in (model, loss))
    except SyntaxError:  # the user's own names
        return f"{model} with {loss}"
    if not isinstance(call, ast.Call):
        call = ast.Call(call, [], [])
    kept = [word for word in call.keywords if word.arg != "loss"]
    return ast.unparse(ast.Call(call.func, call.args, [*kept, ast.keyword("loss", value)]))


# --- real targets in standard units -------------------------------------------------------------------------


def standardized(model: Model, *, mean: float, deviation: float) -> Model:
    r"""``model`` for targets of any size: trained on ``(y - mean) / deviation``, reported in the units of ``y``.

    With the outputs :math:`f(w; x)` and the losses :math:`\ell(\text{outputs}, y)` of ``model``, and ``mean``
    :math:`\mu` and ``deviation`` :math:`\sigma`, the new model

    * predicts :math:`\mu + \sigma f(w; x)`;
    * is trained by :math:`\ell(f(w; x), (y - \mu) / \sigma)`, so the usual step sizes, tilts and clips apply;
    * reports :math:`\ell(\mu + \sigma f(w; x), y)` as its loss, through ``metrics["loss"]``, and its other metrics
      likewise.  A squared error is :math:`\sigma^2` times the one that it is trained by.

    Parameters are those of ``model``: its first prediction, where its outputs begin at 0, is the mean.

    Args:
      model: its outputs are predictions of real targets, one array.
      mean: of the training targets, as in :class:`evenhand.data.Target`.
      deviation: their standard deviation, > 0.

    Raises:
      EvenhandError: a number is not finite, or ``deviation`` is not positive.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.standardized(models.linear_regression(2), mean=100.0, deviation=10.0)
      >>> outputs, y = model.apply(model.init(jax.random.key(0)), jnp.eye(2)), jnp.array([90.0, 130.0])
      >>> outputs[:, 0].tolist(), model.losses(outputs, y).tolist(), model.metrics["loss"](outputs, y).tolist()
      ([100.0, 100.0], [1.0, 9.0], [100.0, 900.0])
    """
    if not (math.isfinite(mean) and math.isfinite(deviation) and deviation > 0):
        raise EvenhandError(
            f"standardized(mean={mean}, deviation={deviation}): give finite numbers, and a deviation above 0."
        )
    scale = (float(mean), float(deviation))
    return model._replace(
        apply=_Predict(model.apply, *scale),
        losses=_Trained(model.losses, *scale),
        metrics={"loss": model.losses, **model.metrics},
        apply_train=None if model.apply_train is None else _Predict(model.apply_train, *scale),
        name=f"standardized({model.name}, mean={scale[0]}, deviation={scale[1]})",
    )


# Values rather than closures: equal models then share compiled programs.
class _Predict(NamedTuple):
    """Outputs in own units, in evaluation and in training."""

    function: Any
    mean: float
    deviation: float

    def __call__(self, params: Params, x: Array, *key: Key) -> Array:
        return self.mean + self.deviation * self.function(params, x, *key)


class _Trained(NamedTuple):
    """Losses in standard units."""

    function: PerRow
    mean: float
    deviation: float

    def __call__(self, outputs: Array, y: Array) -> Array:
        return self.function((outputs - self.mean) / self.deviation, (y - self.mean) / self.deviation)
