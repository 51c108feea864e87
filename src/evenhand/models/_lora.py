"""LoRA: weights that stay as they are plus a product of two small factors, which is all that is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, Literal

import jax
import jax.numpy as jnp

from evenhand._low_rank import A, B, LowRank, Matrix
from evenhand._paths import KeyPath, Named, Patterns, chosen_by, named_path, nested
from evenhand.errors import EvenhandError, ModelError, expect, real_number, whole_number
from evenhand.types import Array, Key, Model, Params, PyTree, RunningStatistics

_ATTENTION = ("attention", "attn")
"""What the names of attention layers have in them, in any case."""


def lora(
    model: Model,
    params: Params,
    *,
    rank: int = 8,
    on: Patterns = "attention",
    alpha: float | None = None,
    train: Literal["both", "b"] = "both",
    also: Patterns = (),
    seed: int = 0,
) -> Model:
    r"""LoRA (low-rank adaptation): ``model`` with frozen weights, to some of which a product of small factors is added.

    A matrix :math:`W` with ``i`` inputs and ``o`` outputs gets factors :math:`A` and :math:`B` of rank ``r``:

    .. math::
        W_{\mathrm{eff}} = W + \frac{\alpha}{r} B A, \qquad
        A \in \mathbb R^{r \times i}, \; A_{jk} \sim \mathcal N(0, 1 / i), \qquad
        B \in \mathbb R^{o \times r}, \; B = 0 \text{ at first.}

    The first model is therefore the pretrained one.  All parameters without factors keep their values in ``params``,
    like those of :func:`freeze`.  A run sends, averages and keeps :math:`A` and :math:`B` only: :math:`r (i + o)`
    numbers per matrix in place of :math:`i o`.

    The mean of the clients' factors is not that of their products:
    :math:`\overline B \, \overline A \ne \overline{B A}`.  There are three ways to aggregate:

    ========================================  ===================  =============================================
    method                                    average of products  what a client receives and sends per matrix
    ========================================  ===================  =============================================
    :func:`~evenhand.algorithms.fedavg`       approximate          :math:`r (i + o)` and :math:`r (i + o)`
    ``fedavg`` with ``train="b"`` (FFA-LoRA)  exact                :math:`r o` and :math:`r o`
    :func:`~evenhand.algorithms.fedex_lora`   exact                :math:`i o + r (i + o)` and :math:`r (i + o)`
    ========================================  ===================  =============================================

    With ``train="b"``, all clients draw the same :math:`A` from ``seed``, so it is never sent.  The product is linear
    in :math:`B`, so means, secure sums and noise on :math:`B` are means, sums and noise on the product.

    The parameters of the new model are nested dicts, with the factors at ``"a"`` and ``"b"`` below the path of the
    matrix.  :func:`thaw` merges them: it gives all parameters of ``model``, for an export or another run.

    Args:
      model: any model.
      params: all its parameters, such as those of a pretrained model: ``model.init(key)`` of a module that holds its
        parameters, or ``run.params``.
      rank: :math:`r`, at most the smaller side of each matrix.
      on: patterns of paths that get factors, like those of :func:`freeze`: ``"*query"``, ``("block_*", "output")``.
        The pattern ``"attention"`` takes every parameter below a name that contains ``attention`` or ``attn``, in upper
        or lower case: ``block_0/attention/query/kernel`` of flax, ``layers/0/self_attn/in_proj_weight`` of PyTorch.
        ``"*"`` takes all.  Parameters that are no matrices, such as biases and scales, get no factors and stay frozen.
      alpha: :math:`\alpha`; None: :math:`r`, so the product is added as it is.
      train: ``"both"`` factors, or ``"b"`` only (FFA-LoRA).
      also: patterns of parameters that are trained in full, from their values in ``params``: a new output layer, or
        biases.  They get no factors, whatever ``on`` says.
      seed: from which ``A`` is drawn if ``train="b"``.  Otherwise the key of the run draws it.

    Which parameters are matrices, and which axes are inputs:

    * An array whose name contains ``bias`` or ``scale``, or with fewer than two axes, is no matrix.
    * ``weight`` (PyTorch, equinox): the first axis is the outputs, and all others are the inputs.  That holds for
      convolutions, too.  The fused ``in_proj_weight`` of queries, keys and values is one matrix.
    * ``kernel`` (flax): the last axis is the outputs, and all others are the inputs, as in the output projection of
      attention, ``(heads, head_dim, d)``, and in convolutions.  The first axis alone is the inputs in the kernels
      ``(d, heads, head_dim)`` of queries, keys and values.  They are recognised by a bias with several axes, by the
      layers' names ``query``, ``key`` and ``value``, or by ``d = heads * head_dim``.
    * Any other name: an array with two axes is a matrix ``(inputs, outputs)``.

    Raises:
      EvenhandError: an argument of the wrong kind, or a number out of range.
      ModelError: a pattern takes no parameter, or those of ``on`` take no matrix; a matrix is smaller than ``rank``; or
        ``params`` are not like the parameters of ``model``.

    Edge cases: stacks of layers, as ``nn.scan`` makes them, are refused where their biases show them.  Factors have 32
    bits if the weights have 16.  Running statistics of BatchNorm are trained as without
    factors.  :func:`freeze` can be put around a model with factors, and this around a frozen model.  A PyTorch layer
    that holds its weight as ``(inputs, outputs)``, such as GPT-2's ``Conv1D``, has the two factors in each other's
    place.

    Differs from the paper: the standard deviation of :math:`A`, which the paper leaves open.  FFA-LoRA draws :math:`A`
    once for a pretrained model; here ``seed`` does.

    Cost: the weights :math:`W + \frac{\alpha}{r} B A` are formed for each client that trains at the same time, so the
    memory of a step is that of full training.  :func:`evenhand.privacy.dp_sgd` forms the gradient of each matrix for
    each example of a batch.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.mlp(64, classes=10, hidden=(32,))
      >>> pretrained = model.init(jax.random.key(7))
      >>> small = models.lora(model, pretrained, rank=2, on="dense_0", also="output")
      >>> params = small.init(jax.random.key(0))
      >>> jax.tree.map(lambda leaf: leaf.shape, params)["dense_0"]
      {'kernel': {'a': (2, 64), 'b': (32, 2)}}
      >>> x = jnp.ones((5, 64))
      >>> bool((small.apply(params, x) == model.apply(pretrained, x)).all())
      True
      >>> models.thaw(small, params)["dense_0"]["kernel"].shape
      (64, 32)

    Source: Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, ICLR 2022, section 4; FFA-LoRA: Sun et
    al., *Improving LoRA in Privacy-preserving Federated Learning*, ICLR 2024.
    """
    expect("model", model, Model, "eh.models.softmax_regression(features=64, classes=10)")
    rank = whole_number("lora(rank=)", rank, 1)
    seed = whole_number("lora(seed=)", seed, 0)
    if train not in ("both", "b"):
        raise EvenhandError(f"lora(train={train!r:.40}): give 'both', or 'b' to train the factors B only.")
    scale = _scale(alpha, rank)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    pairs, structure = jax.tree.flatten_with_path(shapes)
    paths, names = [path for path, _ in pairs], [named_path(path) for path, _ in pairs]
    _check_like(params, shapes)
    trained = {name for name, is_taken in zip(names, chosen_by(also, names, "also"), strict=True) if is_taken}
    statistics = model.statistics
    trained |= set(() if statistics is None else statistics.paths)
    taken = [
        path
        for path, name, is_taken in zip(paths, names, _chosen(on, names), strict=True)
        if is_taken and name not in trained
    ]
    matrices = _matrices(taken, dict(zip(names, jax.tree.leaves(shapes), strict=True)), on, rank)
    values = {
        # A copy: a run gives the memory of its parameters away, and arrays of NumPy can be written to.
        name: jnp.array(leaf, like.dtype)
        for name, leaf, (_, like) in zip(names, jax.tree.leaves(params), pairs, strict=True)
    }
    # Clients must draw the same factors, whatever the default generator of their machines is.
    fixed = _drawn_a(matrices, rank, jax.random.key(seed, impl="threefry2x32")) if train == "b" else None
    begin = [(path, values[name]) for path, name in zip(paths, names, strict=True) if name in trained]

    @jax.jit  # one program, else every small draw would compile its own
    def init(key: Key) -> Params:
        drawn = {} if fixed is not None else _drawn_a(matrices, rank, key)
        return nested(*zip(*begin, *_factors(matrices, rank, drawn), strict=True))

    apply = LowRank(
        model.apply,
        structure=structure,
        paths=paths,
        constants={name: leaf for name, leaf in values.items() if name not in trained},
        matrices=matrices,
        scale=scale,
        fixed=fixed,
    )
    return model._replace(
        init=init,
        apply=apply,
        apply_train=None if model.apply_train is None else apply.of(model.apply_train),
        statistics=statistics and statistics._replace(forward=_measuring(apply, statistics)),
        name=f"lora({model.name}, rank={rank}, on={on!r})" if model.name else "",
    )


def _measuring(apply: LowRank, statistics: RunningStatistics) -> Callable[..., tuple[PyTree, Params]]:
    """``forward`` of the running statistics, of the factors."""

    def measure(params: Params, x: Array, inside: Array, key: Key) -> tuple[PyTree, Params]:
        outputs, after = statistics.forward(apply.whole(params), x, inside, key)
        measured = {named_path(path): leaf for path, leaf in jax.tree.leaves_with_path(after)}
        own = {path: measured[path] for path in statistics.paths}
        return outputs, jax.tree.map_with_path(lambda path, leaf: own.get(named_path(path), leaf), params)

    return measure


def _scale(alpha: float | None, rank: int) -> float:
    if alpha is None:
        return 1.0
    expect("alpha", alpha, Real, "16.0")
    if not 0.0 < real_number(alpha) < math.inf:
        raise EvenhandError(f"lora(alpha={alpha}): give a finite number above 0, such as alpha={rank}.")
    return float(alpha) / rank


def _drawn_a(matrices: Mapping[str, Matrix], rank: int, key: Key) -> dict[str, Array]:
    """The factors ``a``, by path."""

    def draw(matrix: Matrix, key: Key) -> Array:
        inputs = matrix.sizes[0]
        return jax.random.normal(key, (rank, inputs), matrix.factor_dtype) / math.sqrt(inputs)

    keys = jax.random.split(key, len(matrices))
    return {name: draw(matrix, own) for (name, matrix), own in zip(matrices.items(), keys, strict=True)}


def _factors(matrices: Mapping[str, Matrix], rank: int, a: Named) -> Iterator[tuple[KeyPath, Array]]:
    """The path and the first value of each factor that is trained."""
    for name, matrix in matrices.items():
        if name in a:
            yield (*matrix.path, jax.tree_util.DictKey(A)), a[name]
        zeros = jnp.zeros((matrix.sizes[1], rank), matrix.factor_dtype)
        yield (*matrix.path, jax.tree_util.DictKey(B)), zeros


# --- which parameters have factors -------------------------------------------------------------------------------


def _chosen(on: Patterns, names: Sequence[str]) -> list[bool]:
    """Which paths the patterns take.

    Raises:
      ModelError: a pattern takes no parameter.
      EvenhandError: these are no patterns.
    """
    given: Any = (on,) if isinstance(on, str) else on
    if not isinstance(given, tuple | list) or "attention" not in given:
        return chosen_by(on, names, "on")
    chosen = chosen_by([pattern for pattern in given if pattern != "attention"], names, "on")
    inside = [any(word in name.lower() for word in _ATTENTION) for name in names]
    if not any(inside):
        layers = dict.fromkeys(name.rpartition("/")[0] or name for name in names)
        raise ModelError(
            "on='attention': no parameter is below a name that contains attention or attn; the model has "
            f"{', '.join(layers)[:200]}: give the paths of its layers, or '*' for all."
        )
    return [a or b for a, b in zip(chosen, inside, strict=True)]


def _matrices(
    taken: Sequence[KeyPath], shapes: Mapping[str, jax.ShapeDtypeStruct], on: Patterns, rank: int
) -> dict[str, Matrix]:
    """The parameters among those that were taken that are matrices.

    Raises:
      ModelError: there is none, or one that is too small.
    """
    matrices = {
        named_path(path): matrix for path in taken if (matrix := _as_matrix(path, shapes)) is not None
    }
    if not matrices:
        others = ", ".join(map(named_path, taken))[:200] or "nothing that is not in also="
        raise ModelError(
            f"on={on!r}: these patterns take no matrix, only {others}: give paths of weights or kernels."
        )
    for name, matrix in matrices.items():
        if rank > min(matrix.sizes):
            inputs, outputs = matrix.sizes
            raise ModelError(
                f"lora(rank={rank}): {name} has {inputs} inputs and {outputs} outputs, so its rank is at most "
                f"{min(matrix.sizes)}: give a smaller rank, or train it in full by also={name!r}."
            )
    return matrices


def _as_matrix(path: KeyPath, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> Matrix | None:
    """How a parameter is a matrix; None: it is none."""
    name = named_path(path)
    layer, _, last = name.rpartition("/")
    like = shapes[name]
    axes, shape = len(like.shape), like.shape
    if axes < 2 or "bias" in last or "scale" in last or not jnp.issubdtype(like.dtype, jnp.floating):
        return None
    bias = shapes.get(f"{layer}/bias".lstrip("/"))
    _check_no_stack(name, shape, None if bias is None else bias.shape, is_kernel=last == "kernel")
    if last.endswith("weight"):
        return Matrix(path, shape, like.dtype, 1, inputs_first=False)
    if axes == 2:
        return Matrix(path, shape, like.dtype, 1, inputs_first=True)
    if last != "kernel":
        return None
    if bias is not None:
        is_spread = len(bias.shape) > 1
    else:
        is_spread = layer.rpartition("/")[2] in ("query", "key", "value") or shape[0] == math.prod(shape[1:])
    return Matrix(path, shape, like.dtype, 1 if is_spread else axes - 1, inputs_first=True)


def _check_no_stack(
    name: str, shape: tuple[int, ...], bias: tuple[int, ...] | None, *, is_kernel: bool
) -> None:
    """Checks that this is one layer, and not many whose weights lie along the first axis (``nn.scan``, ``vmap``).

    Raises:
      ModelError: its bias has the axis of the stack, too.
    """
    if bias is None or len(bias) < 2 or bias[0] != shape[0]:
        return
    of_one = bias == shape[1:] if is_kernel else len(bias) != 2 or bias[1:] != shape[1:2]
    if not of_one:
        raise ModelError(
            f"lora: {name} has shape {shape} and its bias {bias}: that is a stack of {shape[0]} layers, as nn.scan or "
            "vmap makes them, and not one matrix: make the module with one layer after the other."
        )


def _check_like(params: Params, shapes: Params) -> None:
    """Checks that the parameters are those of the model."""
    given = {named_path(path): jnp.shape(leaf) for path, leaf in jax.tree.leaves_with_path(params)}
    own = {named_path(path): leaf.shape for path, leaf in jax.tree.leaves_with_path(shapes)}
    for name in (*own, *given):
        if given.get(name) != own.get(name):
            there, here = (f"shape {x[name]}" if name in x else "no array" for x in (given, own))
            raise ModelError(
                f"lora: params has {there} at {name}, and the model has {here}: give all parameters of this model, as "
                "model.init and run.params give them."
            )
