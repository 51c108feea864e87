"""Models from PyTorch modules: their forward pass traced by JAX, their weights in and out.

`torchax <https://github.com/google/torchax>`_ runs the operations of a module on JAX arrays, so the whole of a module
is one JAX function of its weights: gradients, clipping per example and many clients side by side come from JAX as for
any other model.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand._jaxpr.layout import channels_last
from evenhand._paths import Patterns
from evenhand._platform import check_process
from evenhand.errors import EvenhandError
from evenhand.models._frozen import frozen_start
from evenhand.models._modules import (
    CHOICE,
    STATISTICS,
    Functions,
    Sharing,
    State,
    batch_norm_layer,
    check_kind,
    check_rows_first,
    copy_layer,
    is_traced,
    part_types,
    rows_inside,
    tensor_members,
    with_gradient_of,
)
from evenhand.models._recurrence import (
    average_pool_layer,
    drawing_layer,
    draws,
    group_norm_layer,
    gru_layer,
    householder_layer,
    lstm_layer,
    truncated_layer,
)
from evenhand.models.losses import LossLike, PerRow, default_metrics, resolve
from evenhand.types import Array, Key, Model, Params, PyTree

if TYPE_CHECKING:
    import torch  # pyright: ignore[reportMissingImports]  (an extra)

_Factory: TypeAlias = "Callable[[], torch.nn.Module]"


def from_torch(
    module: torch.nn.Module | _Factory,
    *,
    loss: LossLike,
    sample: npt.ArrayLike,
    metrics: Mapping[str, PerRow] | None = None,
    frozen: Patterns = (),
    state: State = "refuse",
) -> Model:
    r"""A model made from a PyTorch module, which JAX trains.

    The parameters are the module's, as nested dicts along the dots of their names: ``"conv1.weight"`` is
    ``params["conv1"]["weight"]``, and its path for methods that divide a model, such as
    ``fedalt(personal="head")``, is ``"conv1/weight"``.  Tied weights are one parameter, under their first name.
    Buffers that the forward pass only reads, such as masks and positional encodings, are constants, and so are
    parameters without ``requires_grad``: they are neither trained nor sent.  Training is ``module.train()`` and
    evaluation ``module.eval()``; dropout draws from the key of the training step.  The module itself is neither
    trained nor changed: :func:`to_torch` writes trained parameters into it.

    Args:
      module: a module, whose weights are the start of every run, whatever its seed; or a function without arguments
        that makes one, such as the class, whose weights are then drawn from the key.
      loss: ``(outputs, y) -> (rows,)``; one of :mod:`evenhand.models.losses`, such as ``focal(gamma=2.0)``; or
        ``"cross_entropy"``, ``"squared_error"``, ``"hinge"``, ``"logistic"``.
      sample: inputs of the right shape and dtype, ``(rows, ...)``, e.g. ``x[:1]``; their values do not matter.  An
        array of NumPy or JAX, or a tensor.
      metrics: name -> ``(outputs, y) -> (rows,)``; None: those that go with the loss (accuracy, errors), if any.
      frozen: patterns of the parameters of a module that stay as they are, as of :func:`freeze`: ``"backbone"``.
      state: what becomes of running statistics of BatchNorm layers, but for those that the module's own ``train()``
        keeps in evaluation, whose statistics are constants.  ``"average"``: they are sent and averaged like parameters;
        ``"local"``: each client keeps its own, and they are never sent (SiloBN; with the layers' weights and biases:
        :func:`evenhand.personalization.fedbn`); ``"refuse"``: a module that has them is refused.  They are in the
        parameters under the names of their buffers, ``"running_mean"`` and ``"running_var"``, and are measured in
        training, on the examples of a batch and not on the rows that pad it.

    Raises:
      EvenhandError: PyTorch or torchax is missing, or they are of versions that do not fit; the module changes a buffer
        in training that is no BatchNorm's, or ``state`` is ``"refuse"``; it has no parameters to train; its outputs do
        not have rows first; it uses an operation that torchax lacks; or ``frozen`` is given for parameters that are
        drawn.

    Edge cases: LSTM and GRU are loops over time here, and compile once whatever the length.  Sequences packed by
    ``pack_padded_sequence`` are refused: pad them.  Models of one module share compiled programs only if they are one
    value: make the model once.

    Example:
      >>> import torch  # doctest: +SKIP
      >>> from evenhand import models
      >>> net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))  # doctest: +SKIP
      >>> model = models.from_torch(net, loss="cross_entropy", sample=torch.zeros(1, 64))  # doctest: +SKIP

    Source: torchax, https://github.com/google/torchax.
    """
    check_process()
    check_kind("from_torch", state)
    _environment()  # before anything else, for its errors
    _check_loss(loss)
    row_loss = resolve(loss)
    inputs = _as_array(sample)
    if inputs.ndim == 0:
        raise EvenhandError("sample must have rows first, e.g. x[:1], but it is a single number.")
    example, draw = _opened(module)
    _check_module(example)
    _check_initialised(example)
    start = _values(_trained(example))
    name = type(example).__name__
    if not start:
        raise EvenhandError(
            f"from_torch got {name}, which has no parameters that require gradients: there is nothing to train."
        )
    measured = _values(_statistics(example)) if state != "refuse" else {}
    forward = _Forward(example, measured)
    _check_state(forward, start, inputs, example)
    start |= measured

    def init(key: Key) -> Params:
        drawn = jax.tree.map(jnp.array, start) if draw is None else {**start, **_drawn(draw, key)}
        return _nested({path: drawn[path] for path in start})

    @channels_last
    def apply(params: Params, x: Array) -> PyTree:
        return forward(_sound(_flat(params)), x, jax.random.key(0), training=False)[0]

    @channels_last
    def apply_train(params: Params, x: Array, key: Key) -> PyTree:
        return forward(_flat(params), x, key, training=True)[0]

    functions = Functions(init, apply, None)
    if measured:
        shapes = jax.eval_shape(lambda: _nested(measured))
        functions = functions._replace(measured=shapes, measure=channels_last(forward.measure))
    check_rows_first(functions, inputs)
    model = Model(
        init=init,
        apply=apply,
        losses=row_loss,
        metrics=dict(default_metrics(row_loss) if metrics is None else metrics),
        apply_train=apply_train if _differ(forward, start, inputs, name) else None,
        name=name,
        statistics=functions.statistics(state),
    )
    return frozen_start(model, frozen, _nested(start) if draw is None else None, "from_torch")


def to_torch(module: torch.nn.Module, params: Params) -> torch.nn.Module:
    r"""Writes the parameters of a model of :func:`from_torch` into a module of the same architecture, and returns it.

    Args:
      module: the module that the model was made from, or another of its kind; its parameters without
        ``requires_grad`` stay, and so do its buffers, but for the running statistics among ``params``.
      params: trained parameters, such as ``run.params`` or ``run.personal_params(k)``; of a model with ``frozen=``,
        what :func:`thaw` makes of them.

    Raises:
      EvenhandError: the names or shapes of the parameters are not those of the module.

    Example:
      >>> net = models.to_torch(net, run.params)  # doctest: +SKIP
      >>> torch.save(net.state_dict(), "net.pt")  # doctest: +SKIP
    """
    torch = _pytorch()
    if not isinstance(module, torch.nn.Module) or not isinstance(params, Mapping):
        raise EvenhandError(
            "to_torch takes a torch.nn.Module and parameters such as run.params, in this order, not "
            f"{type(module).__name__} and {type(params).__name__}."
        )
    own, given = _trained(module), _flat(params)
    own |= {name: value for name, value in _statistics(module).items() if name in given}
    kind = type(module).__name__
    if missing := sorted(own.keys() ^ given.keys()):
        place = "the module" if missing[0] in own else "params"
        raise EvenhandError(
            f"to_torch got parameters that are not those of {kind}: only {place} has {missing[0]}. Give the module "
            "that the model was made from, or one of the same architecture; of a model with frozen parameters, give "
            "eh.models.thaw(model, run.params)."
        )
    for name, value in given.items():
        if tuple(own[name].shape) != tuple(value.shape):
            raise EvenhandError(
                f"to_torch: {name} has shape {tuple(own[name].shape)} in {kind} and {tuple(value.shape)} in params. "
                "Give a module of the same sizes."
            )
    with torch.no_grad():
        for name, value in given.items():
            # By way of float32, since NumPy has no bfloat16 that PyTorch reads.
            own[name].copy_(torch.from_numpy(np.array(value, np.float32)))
    return module


# --- the forward pass ---------------------------------------------------------------------------------------------

_LOCK = threading.RLock()
"""Held while a module is traced: its modules are shared by the threads that compile."""


class _Forward:
    """The forward pass of a module as a function of its weights.

    Args:
      module: is copied, without its weights.
      measured: the running statistics that are parameters; other buffers are constants.
    """

    def __init__(self, module: torch.nn.Module, measured: Mapping[str, Array]) -> None:
        self.measured = measured
        fixed = [(path, value) for path, value in module.named_parameters() if not value.requires_grad]
        buffers = [(path, value) for path, value in module.named_buffers() if path not in measured]
        self.constants = _values([*buffers, *fixed])
        hollow = _without_weights(module)
        # Two, so that no thread changes the mode that another traces in.
        self.modes = {True: copy.deepcopy(hollow).train(), False: hollow.eval()}

    def __call__(
        self, params: Mapping[str, Array], x: Array, key: Key, *, training: bool
    ) -> tuple[PyTree, Mapping[str, Array]]:
        """The outputs, and the parameters, constants and running statistics after the pass."""
        environment = _environment()  # none of its own: it cannot be sent to another process
        with _LOCK, _traced(environment, key):
            tensors = environment.j2t_iso({**params, **self.constants})
            outputs = _pytorch().func.functional_call(
                self.modes[training], tensors, (environment.j2t_iso(x),)
            )
            after = {name: environment.t2j_iso(tensor) for name, tensor in tensors.items()}
            return _as_arrays(environment, outputs), after

    def measure(self, params: Params, x: Array, inside: Array, key: Key) -> tuple[PyTree, Params]:
        """The outputs, and the parameters with the running statistics after the pass."""
        flat = _flat(params)
        with rows_inside(inside):
            outputs, after = self(flat, x, key, training=True)
        return outputs, _nested(flat | {name: after[name] for name in self.measured})


def _traced(environment: Any, key: Key) -> ExitStack:
    """Inside, the operations of PyTorch are those of JAX, and draw from ``key``."""
    torch = _pytorch()
    stack = ExitStack()
    # torchax adds numbers of unlike types and ranks, which strict settings of JAX forbid.
    stack.enter_context(jax.numpy_dtype_promotion("standard"))
    stack.enter_context(jax.numpy_rank_promotion("allow"))
    stack.enter_context(torch.enable_grad())  # so that the module's own no_grad() shows, see _environment()
    stack.enter_context(_gradients_of_jax())
    stack.enter_context(environment)
    stack.enter_context(environment.override_property(prng=key))
    return stack


@contextmanager
def _gradients_of_jax() -> Generator[None]:
    """Inside, PyTorch refuses gradients of a module's own; by one thread at a time, which holds the lock."""
    from torchax.tensor import Tensor  # pyright: ignore[reportMissingImports]
    from torchax.view import View  # pyright: ignore[reportMissingImports]

    # Not Function.apply: modules often keep that of their function under another name.
    functions, tensors = _pytorch().autograd.function._SingleLevelFunction, _pytorch().Tensor
    initialisers = _pytorch().nn.init
    truncated = initialisers._no_grad_trunc_normal_
    members = tensor_members(Tensor.__setitem__)
    with ExitStack() as stack:
        stack.enter_context(patch.object(functions, "apply", classmethod(_apply)))
        stack.enter_context(patch.object(tensors, "register_hook", _refuse_hook))
        stack.enter_context(patch.object(initialisers, "_no_grad_trunc_normal_", truncated_layer(truncated)))
        stack.enter_context(patch.multiple(Tensor, **members))
        stack.enter_context(patch.multiple(View, **members))
        yield


def _apply(function: Any, *arguments: Any) -> Any:
    """``torch.autograd.Function.apply`` of PyTorch's own, such as checkpoints; those of users are refused."""
    if function.__module__.startswith("torch."):
        return super(_pytorch().autograd.function._SingleLevelFunction, function).apply(*arguments)
    raise EvenhandError(
        f"from_torch: the module uses the torch.autograd.Function {function.__name__}, whose backward() JAX would not "
        "call: write its forward pass with operations of PyTorch. y + (x - y).detach() has the value of x and the "
        "gradient of y."
    )


def _refuse_hook(tensor: Any, hook: Any) -> Any:
    raise EvenhandError(
        "from_torch: the module registers a hook on a gradient, which JAX would not call: change the forward pass."
    )


def _as_arrays(environment: Any, outputs: Any) -> PyTree:
    """Outputs as JAX arrays; what a library such as transformers wraps them in becomes a dictionary."""
    if isinstance(outputs, Mapping):
        outputs = {name: value for name, value in outputs.items() if value is not None}
    return environment.t2j_iso(outputs)


def _differ(forward: _Forward, start: Mapping[str, Array], sample: Array, name: str) -> bool:
    """Whether training is another program than evaluation, as with dropout; refuses an evaluation that draws."""
    rows = jnp.repeat(sample[:1], 2, axis=0)  # PyTorch normalises no batch of one row
    evaluated, trained = (
        jax.make_jaxpr(lambda params, x, key, mode=mode: forward(params, x, key, training=mode)[0])(
            start, rows, jax.random.key(0)
        )
        for mode in (False, True)
    )
    key = evaluated.jaxpr.invars[-1]
    if any(operand is key for equation in evaluated.jaxpr.eqns for operand in equation.invars):
        raise EvenhandError(
            f"{name} draws random numbers in evaluation: give training=self.training to dropout in its forward(), and "
            "draw where self.training is true only."
        )
    return str(evaluated) != str(trained)


def _check_state(
    forward: _Forward, start: Mapping[str, Array], sample: Array, module: torch.nn.Module
) -> None:
    """Refuses a module that changes another buffer in training than may change, and one that torchax cannot run."""
    from torchax.tensor import OperatorNotFound  # pyright: ignore[reportMissingImports]

    changed, name = list[str](), type(module).__name__

    def train(params: Mapping[str, Array], x: Array, key: Key) -> None:
        _, after = forward(params, x, key, training=True)
        if renewed := [path for path in start if after[path] is not params[path]]:
            raise EvenhandError(
                f"{name} changes its parameter {renewed[0]} in forward(), which would not last here: compute with a "
                "changed copy, such as weight.clamp(-1, 1), or give the layer a torch.nn.utils.parametrize."
            )
        changed.extend(
            buffer
            for buffer, value in forward.constants.items()
            if after[buffer] is not value and buffer not in counts
        )

    for path, layer in _batch_norms(module):
        if not forward.measured:
            raise EvenhandError(f"{name} keeps running statistics in {path or 'running_mean'}: {CHOICE}")
        if layer.momentum is None:
            raise EvenhandError(
                f"{name}: {path or 'the BatchNorm'} has momentum=None, which averages over all batches since its "
                "making: give a number, such as 0.1, so that statistics follow the model."
            )
    # How many batches a BatchNorm has seen matters only where it has no momentum.
    counts = {f"{path}.num_batches_tracked".lstrip(".") for path, _ in _batch_norms(module)}
    # Two rows, since a normalisation over one is an error in PyTorch.
    rows = jax.ShapeDtypeStruct((2, *sample.shape[1:]), sample.dtype)
    try:
        jax.eval_shape(train, {**start, **forward.measured}, rows, jax.random.key(0))
    except OperatorNotFound as error:
        raise EvenhandError(
            f"{name} uses an operation that torchax lacks: {error}. Replace this layer."
        ) from error
    except EvenhandError:
        raise
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        raise EvenhandError(
            f"{name} asks for the values of its inputs in forward(), as .item(), .numpy(), an if, x[x > 0] and "
            "EmbeddingBag do, but JAX compiles one program for all values: compute with tensors only, e.g. torch.where."
        ) from error
    except Exception as error:  # whatever the module's own code raises
        reason = str(error).strip().partition("\n")[0]
        raise EvenhandError(
            f"{name} fails on inputs {rows.dtype}{list(rows.shape)}, two rows like the sample ({reason}): give "
            "from_torch a sample of what forward() takes, which is one array and nothing else."
        ) from error
    # torchax itself does not update those of other normalisation layers, all of which have this buffer.
    still = {f"{path}.running_mean".lstrip(".") for path, layer in _normalising(module) if not layer.training}
    named = [buffer for buffer in forward.constants if buffer.rpartition(".")[2] == "running_mean"]
    changed += [buffer for buffer in named if buffer not in still]
    if changed:
        layer = changed[0].rpartition(".")[0] or changed[0]
        raise EvenhandError(f"{name} keeps running statistics in {layer}: {STATISTICS}.")


# --- weights ------------------------------------------------------------------------------------------------------


def _opened(module: Any) -> tuple[torch.nn.Module, _Factory | None]:
    """A module, and the function that draws others like it, if one was given."""
    torch = _pytorch()
    if isinstance(module, torch.nn.Module):
        return module, None
    if not callable(module):
        raise EvenhandError(
            f"from_torch takes a torch.nn.Module or a function that makes one, not {module!r:.60}."
        )
    try:
        made = module()
    except TypeError as error:
        raise EvenhandError(
            f"from_torch calls the function that makes the module without arguments, and that failed: {error}. Give "
            "e.g. lambda: Net(10), or an instance, whose weights are then the start."
        ) from error
    if not isinstance(made, torch.nn.Module):
        raise EvenhandError(
            f"The function must return a torch.nn.Module, but it returned {type(made).__name__}."
        )
    return made, module


def _check_loss(loss: Any) -> None:
    if type(loss).__module__.startswith("torch.") or getattr(loss, "__module__", "").startswith("torch."):
        raise EvenhandError(
            f"from_torch(loss={loss!r:.60}): a loss of PyTorch does not know JAX's arrays: name it, such as "
            'loss="cross_entropy", or give a function (outputs, y) -> (rows,) of JAX.'
        )


def _check_module(module: torch.nn.Module) -> None:
    """Refuses wrappers of modules, and gradients that JAX would not see."""
    torch = _pytorch()
    if isinstance(module, torch.nn.DataParallel | torch.nn.parallel.DistributedDataParallel):
        raise EvenhandError(
            f"from_torch got {type(module).__name__}, which spreads a module over devices: give the module inside it, "
            "model.module. Evenhand spreads clients over devices itself."
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise EvenhandError("from_torch got a module of torch.jit: give the one that it was compiled from.")
    for path, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            raise EvenhandError(
                f"from_torch got {type(module).__name__}, whose part {path or 'itself'} has backward hooks, which JAX "
                "would not call: remove them, and change the forward pass instead."
            )
        if isinstance(part, torch.nn.Embedding) and part.scale_grad_by_freq:
            raise EvenhandError(
                f"from_torch got {type(module).__name__}, whose embedding {path or 'itself'} has "
                "scale_grad_by_freq=True, a gradient of PyTorch's own, which JAX does not compute: leave it False."
            )


def _check_initialised(module: torch.nn.Module) -> None:
    """Checks that no layer is lazy, whose weights have no shape before its first call."""
    lazy = _pytorch().nn.parameter.is_lazy
    for path, value in [*module.named_parameters(), *module.named_buffers()]:
        if lazy(value):
            raise EvenhandError(
                f"{type(module).__name__} has a lazy layer, whose {path} has no shape yet: call the module once on an "
                "example before it is given to from_torch."
            )


def _drawn(draw: _Factory, key: Key) -> dict[str, Array]:
    """The weights of a new module, whose initialisers draw from the key."""
    from torchax.tensor import OperatorNotFound, Tensor  # pyright: ignore[reportMissingImports]

    torch, environment = _pytorch(), _environment()

    # A Parameter must have the type of the tensor that it is made from.
    def detached(tensor: Any) -> Any:
        return environment.detached(tensor) if tensor.requires_grad else tensor

    with (
        warnings.catch_warnings(),
        _LOCK,
        _traced(environment, key),
        patch.object(Tensor, "detach", detached),
        torch.device("jax"),
    ):
        # Buffers of 64 bits, such as the number of batches that a BatchNorm has seen, are not drawn.
        warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
        try:
            return {name: environment.t2j_iso(value) for name, value in draw().named_parameters()}
        except OperatorNotFound as error:
            raise EvenhandError(
                f"The weights are drawn by an operation that torchax lacks: {error}. Give from_torch an instance, "
                "whose weights are then the start."
            ) from error


def _without_weights(module: torch.nn.Module) -> torch.nn.Module:
    """A copy whose parameters are shapes only: the forward pass gets its weights with each call."""
    torch = _pytorch()
    # A copy of a parameter is taken from here, so that the weights are never doubled.
    hollow = {
        id(value): torch.nn.Parameter(value.detach().to("meta"), False) for value in module.parameters()
    }
    try:
        return copy.deepcopy(module, hollow)
    except RuntimeError as error:  # of PyTorch, which copies no tensor that was computed with gradients
        raise EvenhandError(
            f"from_torch cannot copy {type(module).__name__}, which keeps a tensor that was computed: compute it in "
            "forward(). The old torch.nn.utils.weight_norm keeps one: take torch.nn.utils.parametrizations.weight_norm."
        ) from error


def _trained(module: torch.nn.Module) -> dict[str, Any]:
    return {path: value for path, value in module.named_parameters() if value.requires_grad}


def _normalising(module: torch.nn.Module) -> list[tuple[str, Any]]:
    """The BatchNorm layers that keep statistics, by path, as they are when the module trains."""
    kind: Any = _pytorch().nn.modules.batchnorm._BatchNorm
    # A copy: a module may have a train() of its own that keeps some layers in evaluation.
    named = _without_weights(module).train().named_modules()
    return [(path, layer) for path, layer in named if isinstance(layer, kind) and layer.track_running_stats]


def _batch_norms(module: torch.nn.Module) -> list[tuple[str, Any]]:
    """Those that measure: others are in evaluation in training, too, and their statistics are constants."""
    return [(path, layer) for path, layer in _normalising(module) if layer.training]


def _statistics(module: torch.nn.Module) -> dict[str, Any]:
    """The running statistics of BatchNorm layers, by name."""
    buffers = dict(module.named_buffers())
    names = [
        f"{path}.{name}".lstrip(".")
        for path, _ in _batch_norms(module)
        for name in ("running_mean", "running_var")
    ]
    # A layer that is used in two places is named twice, and its buffers once.
    return {name: buffers[name] for name in names if name in buffers}


def _sound(flat: Mapping[str, Array]) -> dict[str, Array]:
    """Parameters whose variances have a square root: a lie, or a rule that overshoots, may give a negative one."""
    return {
        name: jnp.maximum(leaf, 0.0) if name.endswith("running_var") else leaf for name, leaf in flat.items()
    }


def _values(named: Any) -> dict[str, Array]:
    """Tensors by name as JAX arrays, each once."""
    return {name: _as_array(value) for name, value in dict(named).items()}


def _as_array(value: Any) -> Array:
    torch = _pytorch()
    if isinstance(value, str):
        raise EvenhandError(f"from_torch(sample={value!r:.60}): give an array of inputs, such as x[:1].")
    if not isinstance(value, torch.Tensor):
        return jnp.asarray(value)
    tensor = value.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # which NumPy lacks
        return jnp.asarray(tensor.float().numpy(), jnp.bfloat16)
    # A copy: PyTorch may write into the memory of its own later.
    return jnp.array(tensor.numpy())


def _nested(flat: Mapping[str, Array]) -> dict[str, Any]:
    """``"a.b"`` as ``{"a": {"b": ...}}``."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return nested


def _flat(params: Params, prefix: str = "") -> dict[str, Array]:
    flat: dict[str, Array] = {}
    for name, value in params.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


# --- torchax, and layers that it would unroll ---------------------------------------------------------------------


@cache
def _pytorch() -> Any:
    """PyTorch, which takes a second to import."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise EvenhandError(
            f"Modules of PyTorch need PyTorch and torchax, and {error.name} is missing: pip install 'evenhand[torch]'."
        ) from error
    return torch


@cache
def _environment() -> Any:
    """An environment of torchax that is this package's alone.

    Raises:
      EvenhandError: PyTorch or torchax is missing, or their versions do not fit.
    """
    try:
        torch, environment = _pytorch(), _mixed()
    except ModuleNotFoundError as error:
        raise EvenhandError(
            f"from_torch needs PyTorch and torchax, and {error.name} is missing: pip install 'evenhand[torch]'."
        ) from error
    except (AttributeError, RuntimeError, ImportError) as error:
        # The second import after one that failed complains of duplicate registrations instead.
        raise EvenhandError(
            f"torchax {version('torchax')} does not work with PyTorch {version('torch')} ({error}). Install versions "
            "that go together, such as pip install 'torch<2.13' 'torchax==0.0.13', and start Python again."
        ) from error
    layers = {
        torch.lstm: lstm_layer,
        torch.gru: gru_layer,
        torch.nn.functional.batch_norm: batch_norm_layer,
        torch.nn.functional.group_norm: group_norm_layer,
        torch.ops.aten.linalg_householder_product: householder_layer,
        torch.ops.aten.copy_: copy_layer,
    }
    for operation, layer in layers.items():
        environment.override_op_definition(operation, layer(environment))
    for operation in (torch.ops.aten.avg_pool1d, torch.ops.aten.avg_pool2d, torch.ops.aten.avg_pool3d):
        plain = environment._get_op_or_decomp(operation).func
        environment.override_op_definition(operation, average_pool_layer(environment, plain))
    for operation, draw in draws().items():
        environment.override_op_definition(operation, drawing_layer(environment, draw))
    del environment._ops[torch.tensor_split]  # which copies
    return environment


def _mixed() -> Any:
    """An environment without the changes of single layers, in which views and ``no_grad()`` are those of PyTorch."""
    torch = _pytorch()
    from torch.utils._pytree import tree_map_only  # pyright: ignore[reportMissingImports]
    from torchax.tensor import Environment  # pyright: ignore[reportMissingImports]

    part, stop = part_types()[0], jax.lax.stop_gradient

    class Mixed(Sharing, Environment):  # pyright: ignore[reportUntypedBaseClass]
        """Tensors that PyTorch computed, such as masks, become constants where they meet those of JAX."""

        def t2j_iso(self, torchtensors: Any) -> Any:
            def converted(value: torch.Tensor) -> Any:
                # Those of one number stay numbers, whose type gives way to that of an array.
                is_kept = is_traced(value) or value.ndim == 0
                return value if is_kept else self.j2t_iso(_as_array(value))

            return super().t2j_iso(tree_map_only(torch.Tensor, converted, torchtensors))

        def detached(self, tensor: Any) -> Any:
            return part(tensor, stop(tensor.jax()), stop, with_gradient_of)

        def dispatch(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
            results = super().dispatch(func, types, args, kwargs)
            if torch.is_grad_enabled():
                return results
            # Under the module's own no_grad(); what changes a tensor in place stays that tensor.
            inputs = {id(x) for x in (*args, *(kwargs or {}).values())}

            def stopped(x: Any) -> Any:
                if id(x) in inputs or not is_traced(x):
                    return x
                return self.detached(x) if isinstance(x, part) else self.j2t_iso(stop(x.jax()))

            return tree_map_only(torch.Tensor, stopped, results)

    return Mixed()
