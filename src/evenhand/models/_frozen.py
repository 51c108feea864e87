"""Models of which some parameters are frozen: constants that are not trained, not sent and not kept per client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from evenhand._low_rank import LowRank
from evenhand._paths import KeyPath, Patterns, chosen_by, leaf_at, named_path, nested
from evenhand.errors import EvenhandError, ModelError, expect
from evenhand.types import Array, Key, Model, Params, PyTree


def freeze(model: Model, params: Params, frozen: Patterns) -> Model:
    r"""``model`` with some of its parameters frozen: they keep their values, and the others are all that is trained.

    With the frozen parameters :math:`w_F` and the others :math:`w_T`, the new model trains

    .. math:: \min_{w_T} F(w_T, w_F) \qquad \text{with} \quad w_F = (\mathtt{params})_F \quad \text{constant.}

    Its parameters are :math:`w_T` alone, so a run neither sends nor averages :math:`w_F`, keeps no copy at clients that
    have models of their own, and does not count it as traffic.  Steps of descent are those of the whole model with the
    gradient of :math:`w_F` replaced by zeros.  What depends on the number or the norm of all parameters sees fewer: a
    clip of gradients, as in :func:`evenhand.privacy.dp_sgd`, or of updates then bounds the norm of :math:`w_T` alone
    and cuts less, and noise is added to :math:`w_T` alone, with the same promise.  A robust aggregator judges distances
    between uploads of :math:`w_T`.

    The new parameters are nested dicts, without those that are frozen; :func:`thaw` puts both together.  They start as
    ``model.init`` draws them.  To start all at ``params``, freeze ``model._replace(init=lambda key: params)``, or give
    a run ``start=``.

    Args:
      model: any model.
      params: all its parameters, such as those of a run that pre-trained it: ``run.params``.  The frozen ones are
        copied, once for all clients and rounds.
      frozen: patterns of paths, as ``personal=`` of :func:`evenhand.personalization.fedalt`: ``"dense_0"``,
        ``("conv_*", "dense/bias")``.  A pattern takes all parameters below a path that it matches.  ``()`` freezes
        nothing: the model is returned as it is.

    Raises:
      EvenhandError: ``model`` is no model, or ``frozen`` is no pattern of paths.
      ModelError: a pattern takes no parameter; the patterns take all, so nothing is left to train; or ``params`` are
        not like the parameters of ``model``.

    Edge cases: running statistics are measured in frozen layers, too.  A model that is frozen can be frozen further,
    with the paths of what is left.  Two frozen models are equal only if they are the same object, but the rounds of
    models whose large frozen arrays differ in their values only are one compiled program.

    Example:
      >>> import jax
      >>> from evenhand import models
      >>> model = models.mlp(4, classes=3, hidden=(8,))
      >>> pretrained = model.init(jax.random.key(7))
      >>> head = models.freeze(model, pretrained, "dense_0")
      >>> params = head.init(jax.random.key(0))
      >>> jax.tree.map(lambda leaf: leaf.shape, params)
      {'output': {'bias': (3,), 'kernel': (8, 3)}}
      >>> sorted(models.thaw(head, params))
      ['dense_0', 'output']
    """
    expect("model", model, Model, "eh.models.softmax_regression(features=64, classes=10)")
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    pairs, structure = jax.tree.flatten_with_path(shapes)
    paths = [path for path, _ in pairs]
    chosen = chosen_by(frozen, [named_path(path) for path in paths], "frozen")
    _check_like(params, shapes)
    statistics = model.statistics
    measured = [statistics is not None and named_path(path) in statistics.paths for path in paths]
    # Statistics are still measured, as PyTorch does in a layer without gradients.
    chosen = [frozen and not apart for frozen, apart in zip(chosen, measured, strict=True)]
    if not any(chosen):
        return model
    if all(frozen or apart for frozen, apart in zip(chosen, measured, strict=True)):
        raise ModelError(
            f"frozen={frozen!r}: that is all parameters of {model.name or 'the model'}, so nothing is left to train: "
            "leave those out that are to be trained."
        )
    leaves = zip(paths, chosen, pairs, jax.tree.leaves(params), strict=True)
    kept = {
        # A copy: a run gives the memory of its parameters away, and arrays of NumPy can be written to.
        named_path(path): jnp.array(leaf, like.dtype)
        for path, is_frozen, (_, like), leaf in leaves
        if is_frozen
    }
    trained = [path for path, is_frozen in zip(paths, chosen, strict=True) if not is_frozen]

    def init(key: Key) -> Params:
        leaves = jax.tree.leaves(model.init(key))
        return nested(
            trained, [leaf for leaf, is_frozen in zip(leaves, chosen, strict=True) if not is_frozen]
        )

    train, apply = model.apply_train, _Completed(model.apply, structure, paths, kept)

    def measure(params: Params, x: Array, inside: Array, key: Key) -> tuple[PyTree, Params]:
        assert statistics is not None
        outputs, after = statistics.forward(apply.whole(params), x, inside, key)
        leaves = zip(jax.tree.leaves(after), chosen, strict=True)
        return outputs, nested(trained, [leaf for leaf, is_frozen in leaves if not is_frozen])

    return model._replace(
        init=init,
        apply=apply,
        apply_train=None if train is None else _Completed(train, structure, paths, kept),
        statistics=statistics and statistics._replace(forward=measure),
        name=f"freeze({model.name}, frozen={frozen!r})" if model.name else "",
    )


def thaw(model: Model, params: Params) -> Params:
    """All parameters of the model that was frozen: the trained ones, and the frozen ones, as its ``apply`` takes them.

    The factors of :func:`lora` are merged into the weights.

    Args:
      model: what :func:`freeze` or :func:`lora` returned, or the same with another loss or in standard units.
      params: its parameters, such as ``run.params``, or those of one client.

    Returns:
      A tree like the parameters of the model that was given to :func:`freeze` or :func:`lora`: for another run, for the
      export, or for :func:`to_equinox`.  Of a model that was frozen more than once, those of the first one.

    Raises:
      EvenhandError: no parameter of the model is frozen.
      ModelError: these are not its parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.softmax_regression(2, classes=2)
      >>> frozen = models.freeze(model, {"kernel": jnp.eye(2), "bias": jnp.zeros(2)}, "kernel")
      >>> models.thaw(frozen, {"bias": jnp.ones(2)})["kernel"].tolist()
      [[1.0, 0.0], [0.0, 1.0]]
    """
    expect("model", model, Model, "eh.models.freeze(model, params, 'dense_0')")
    function: Any = model.apply
    shapes, was_frozen = jax.eval_shape(model.init, jax.random.key(0)), False
    while function is not None:
        if isinstance(function, _Completed | LowRank):
            if not was_frozen:
                _check_shapes(model, params, shapes)
            params, was_frozen = function.whole(params), True
        # Other models around it, such as one in standard units, have the same parameters.
        function = getattr(function, "function", None)
    if not was_frozen:
        raise EvenhandError(
            f"thaw: no parameter of {model.name or 'this model'} is frozen: give the model that eh.models.freeze, "
            "eh.models.lora or frozen= made."
        )
    return params


def frozen_start(model: Model, frozen: Patterns, start: Params | None, adapter: str) -> Model:
    """``model`` with some of the parameters frozen that its module holds.

    Args:
      model: what an adapter made.
      frozen: as of :func:`freeze`.
      start: the parameters of the module; None: they are drawn from a key.
      adapter: the name of the adapter, for sentences.

    Raises:
      EvenhandError: as :func:`freeze`; or something is to be frozen that is drawn.
    """
    if frozen in ((), []):
        return model
    if start is None:
        raise EvenhandError(
            f"{adapter}(frozen={frozen!r}): the parameters are drawn from a key, so there are no values to keep: make "
            "the model without frozen=, and give it and the values to eh.models.freeze(model, params, frozen)."
        )
    return freeze(model, start, frozen)


class _Completed:
    """A function of all parameters as one of those that are trained; models that hold it compare by identity.

    Attributes:
      function: ``(params, x, *key) -> outputs``.
    """

    def __init__(
        self, function: Any, structure: Any, paths: Sequence[KeyPath], frozen: Mapping[str, Array]
    ) -> None:
        self.function, self._structure = function, structure
        self._paths, self._frozen = paths, frozen

    def whole(self, params: Params) -> Params:
        """The trained parameters and the frozen ones."""
        leaves = [
            self._frozen[name] if (name := named_path(path)) in self._frozen else leaf_at(params, path)
            for path in self._paths
        ]
        return jax.tree.unflatten(self._structure, leaves)

    def __call__(self, params: Params, x: Array, *key: Key) -> PyTree:
        return self.function(self.whole(params), x, *key)


def _check_shapes(model: Model, params: Params, shapes: Params) -> None:
    """Checks that the trained parameters have the shapes of those of a frozen model."""
    for path, like in jax.tree.leaves_with_path(shapes):
        if (shape := jnp.shape(leaf_at(params, path))) != like.shape:
            raise ModelError(
                f"thaw: params has shape {shape} at {named_path(path)}, and {model.name or 'the model'} has "
                f"{like.shape}: give parameters of this model, such as run.params."
            )


def _check_like(params: Params, shapes: Params) -> None:
    """Checks that the parameters are those of a model."""
    paths, structure = jax.tree.flatten_with_path(shapes)
    if jax.tree.structure(params) != structure:
        names = [named_path(path) for path, _ in jax.tree.leaves_with_path(params)]
        raise ModelError(
            f"freeze: params has {', '.join(names)[:200] or 'no arrays'}, and the model has "
            f"{', '.join(named_path(path) for path, _ in paths)[:200]}: give all parameters of this model, as "
            "model.init and run.params give them."
        )
    for (path, like), leaf in zip(paths, jax.tree.leaves(params), strict=True):
        if jnp.shape(leaf) != like.shape:
            raise ModelError(
                f"freeze: params has shape {jnp.shape(leaf)} at {named_path(path)}, and the model has {like.shape}: "
                "give all parameters of this model."
            )
