"""What loops of personal methods in NumPy share: steps of gradient descent on the toy clients, in float64."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from softmax_oracle import MODEL, SIZES, average, combine, gradient

import evenhand as eh
from evenhand.rounds import cohort
from evenhand.streams import Purpose, keys_of, stream

ROUNDS, STEPS, LR, COUNT = 10, 3, 0.2, 3
WORK = eh.local.sgd(MODEL, LR, epochs=STEPS)
GLOBAL = eh.algorithms.fedavg(WORK)


def begin():
    params = MODEL.init(stream(jax.random.key(0), Purpose.INIT))
    return {name: np.asarray(leaf, np.float64) for name, leaf in params.items()}


def mix(share, one, other):
    return combine(lambda a, b: share * a + (1 - share) * b, one, other)


def steps(v, slope, lr=LR, count=STEPS):
    for _ in range(count):
        v = combine(lambda p, g: p - lr * g, v, slope(v))
    return v


def plus(g, *terms):
    return combine(lambda *leaves: sum(leaves), g, *terms)


def pull(v, anchor, lam):
    return combine(lambda a, b: lam * (a - b), v, anchor)


def only(name, g):
    return {each: leaf if each == name else np.zeros_like(leaf) for each, leaf in g.items()}


def inner(a, b):
    return sum(np.sum(a[name] * b[name]) for name in a)


def local(w, k):
    return steps(w, lambda v: gradient(v, k))


def scaled(share, g):
    return {name: share * leaf for name, leaf in g.items()}


def averaged(w, clients):
    return average([local(w, k) for k in clients], SIZES[clients])


@cache
def drawn():
    sizes, keys = jnp.asarray(SIZES, jnp.int32), keys_of(0)
    return [np.array(cohort(GLOBAL, None, sizes, COUNT, keys, number, 0).ids) for number in range(ROUNDS)]


def distance(run, expected):
    """The largest difference from ``(w, served)``, the global model and those that clients are served."""
    w, served = expected
    pairs = [(run.params, w), *((run.personal_params(k), each) for k, each in enumerate(served))]
    return max(np.abs(np.array(a[leaf]) - b[leaf]).max() for a, b in pairs for leaf in ("w", "b"))
