"""Private methods as loops in float64 NumPy, with the batches and the normal draws of the library.

Softmax regression on one toy client.  Of the library, the loops take which examples are in a batch and the standard
normal draws, both from the keys that the work was given; all of the mathematics is their own.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import evenhand as eh
from evenhand import local, sampling
from evenhand.privacy.gaussian import with_gaussian
from evenhand.streams import Purpose, stream
from evenhand.types import ClientData

MODEL = eh.testing.toy_model()
X, Y = eh.testing.toy_data().train.client(3)
PUBLIC: Any = eh.testing.toy_data().train.client(5)
N = len(Y)
CLIP, NOISE, RATE, STEPS, ROUNDS = 2.0, 0.6, 0.4, 5, 2
COMMON = {"noise_multiplier": NOISE, "rate": RATE, "steps": STEPS}
KEYS = jax.random.split(jax.random.key(5), ROUNDS)


def client(x, y):
    return ClientData(
        jnp.asarray(x), jnp.asarray(y), jnp.int32(0), jnp.int32(len(y)), jnp.float32(1.0), len(y)
    )


def tree_map(function, *trees):
    return {name: function(*(tree[name] for tree in trees)) for name in trees[0]}


def begin():
    return MODEL.init(jax.random.key(1))


def promised(work):
    """What the work says of privacy, which it must."""
    assert work.privacy is not None
    return work.privacy


def trained(work, keys: Any = KEYS, data=None):
    """The parameters and the state after a round of local work for each key, the state going on from round to round."""
    params, held = begin(), data or client(X, Y)
    state = work.continued.init(params)
    solve = jax.jit(lambda params, state, key: work.continued.solve(params, state, held, key))
    with jax.numpy_dtype_promotion("standard"):  # optax mixes types inside
        for key in keys:
            params, state = solve(params, state, key)
    return params, state


def examples(w, x=X, y=Y):
    """The gradient of each example, in float64: leaves with a leading axis."""
    x = x.astype(np.float64)
    logits = x @ w["w"] + w["b"]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return {"w": x[:, :, None] * p[:, None, :], "b": p}


def mean_of(gradients):
    return tree_map(lambda leaf: leaf.mean(axis=0), gradients)


def norms(gradients):
    return np.sqrt(sum((leaf.reshape(len(leaf), -1) ** 2).sum(axis=1) for leaf in gradients.values()))


def clipped_sum(gradients, clip):
    scale = np.minimum(1.0, clip / np.maximum(norms(gradients), 1e-30))
    return tree_map(lambda leaf: np.tensordot(scale, leaf, axes=1), gradients)


@cache
def draws(round_, i):
    """Of one step: the rows of its batch, its key, and the normal draws of its queries."""
    key = jax.random.fold_in(KEYS[round_], i)
    of = jax.random.fold_in(stream(KEYS[round_], Purpose.COHORT), i)
    positions, inside = sampling.included(of, RATE, N, N, sampling.slots_for(RATE, N))
    zeros = jax.tree.map(jnp.zeros_like, begin())
    normals = tuple(with_gaussian(stream(key, Purpose.NOISE, number), zeros, 1.0) for number in (0, 1))
    return np.array(positions)[np.array(inside)], key, normals


def loop(step, noise=NOISE):
    """Folds ``step(w, ask, at) -> w`` over all steps from the common start, with ``at.kept`` to keep things in."""
    w, kept = tree_map(lambda leaf: np.array(leaf, np.float64), begin()), {}
    for t in range(ROUNDS * STEPS):
        rows, key, noises = draws(t // STEPS, t % STEPS)

        def ask(w, clip, divided_by=None, plus=None, number=0, rows=rows, noises=noises):
            gradients = examples(w, X[rows], Y[rows])
            if plus is not None:
                gradients = tree_map(np.add, gradients, plus)
            if divided_by is not None:
                gradients = tree_map(np.divide, gradients, divided_by)
            total = clipped_sum(gradients, clip)
            drawn = tree_map(np.asarray, noises[number])
            return tree_map(lambda s, z: (s + noise * clip * z) / (RATE * N), total, drawn)

        at = SimpleNamespace(t=t, rows=rows, key=stream(key, Purpose.SERVER), step_key=key, kept=kept)
        w = step(w, ask, at)
    return w


def descend(w, direction, size):
    return tree_map(lambda a, b: a - size * b, w, direction)


def public_gradient(w):
    return mean_of(examples(w, *PUBLIC))


def public_batch_gradient(w, key, size):
    """On the public mini-batch that the library draws with this key."""
    order, _ = jax.random.split(key)
    batch = local.batches(epochs=1, batch_size=size).draw(client(*PUBLIC), order)(jnp.int32(0))
    rows = np.array(batch.positions)[np.array(batch.inside)]
    return mean_of(examples(w, PUBLIC[0][rows], PUBLIC[1][rows]))


def zeros():
    return tree_map(lambda leaf: np.zeros(leaf.shape), begin())


def near(params, expected, atol=2e-5):
    for name in expected:
        np.testing.assert_allclose(params[name], expected[name], atol=atol, rtol=1e-4)


def far(params, expected, least=1e-3):
    assert max(np.abs(np.asarray(params[name]) - expected[name]).max() for name in expected) > least


def same(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a)


def parabola(bends):
    """A model whose example ``x`` has the gradient ``bends * w + x``: its loss is ``sum(bends * w^2) / 2 + x w``."""
    bends = jnp.asarray(bends, jnp.float32)
    return eh.models.from_functions(
        init=lambda key: jnp.ones(len(bends)),
        apply=lambda w, x: x @ w + 0.5 * jnp.sum(bends * w**2),
        losses=lambda out, y: out,
    )


def centred(rows, d, spread, seed=0) -> Any:
    """Examples whose mean is 0, so that the loss is the parabola alone; the mean of their squared norms is given."""
    x = np.random.default_rng(seed).normal(size=(rows, d))
    x -= x.mean(axis=0)
    return np.float32(x * spread / np.sqrt(np.mean(np.sum(x**2, axis=1))))


def steps_from(work, w, state, x, count, seed=0):
    """Where each of ``count`` rounds of local work leads from ``w``, with batches and noise of its own."""
    data = client(x, np.zeros(len(x), np.float32))
    keys = jax.random.split(jax.random.key(seed), count)
    return np.asarray(
        jax.jit(jax.vmap(lambda key: work.continued.solve(w, state, data, key)[0]))(keys), np.float64
    )
