"""AdaDPS and AdaS against NumPy loops, their identities, and the scales that they can be given."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from private_oracle import (
    CLIP,
    COMMON,
    KEYS,
    MODEL,
    NOISE,
    PUBLIC,
    RATE,
    N,
    X,
    Y,
    begin,
    centred,
    client,
    descend,
    draws,
    examples,
    far,
    loop,
    mean_of,
    near,
    parabola,
    promised,
    public_batch_gradient,
    public_gradient,
    steps_from,
    trained,
    tree_map,
    zeros,
)

import evenhand as eh
from evenhand import local
from evenhand.errors import EvenhandError
from evenhand.privacy._preconditioners import Moment

LR, EPS, BETA = 0.2, 0.05, 0.9
A = jax.tree.map(jnp.asarray, {"w": jnp.linspace(0.2, 3.0, 12).reshape(4, 3), "b": jnp.ones(3)})
FIXED = tree_map(lambda leaf: np.asarray(leaf, np.float64), A)
SIDE = {"public": PUBLIC, "eps": EPS}


def adadps(**settings):
    return eh.privacy.adadps(MODEL, LR, **{"clip": CLIP, **COMMON, **settings})


# --- Algorithm 8 -----------------------------------------------------------------------------------------------------


def fixed(w, ask, at):
    return descend(w, ask(w, CLIP, FIXED), LR)


def follow(at, name, value):
    at.kept[name] = value
    return value


def second(at, g):
    old = at.kept.get("v", zeros())
    return follow(at, "v", tree_map(lambda v, g: BETA * v + (1 - BETA) * g * g, old, g))


def outside(v):
    return tree_map(lambda v: np.sqrt(v) + EPS, v)


def rmsprop(w, ask, at):
    return descend(w, ask(w, CLIP, outside(second(at, public_gradient(w)))), LR)


def rmsprop_of_batches(w, ask, at):
    v = second(at, public_batch_gradient(w, at.key, 4))
    return descend(w, ask(w, CLIP, outside(v)), LR)


def adagrad(w, ask, at):
    old, g = at.kept.get("v", zeros()), public_gradient(w)
    v = follow(at, "v", tree_map(lambda v, g: v + g * g, old, g))
    return descend(w, ask(w, CLIP, outside(v)), LR)


def with_momentum(w, ask, scales, momentum, beta=BETA):
    """``(beta g + (1 - beta) M) / A`` for each example, as it is printed."""

    def ask_mixed(w):
        shifted = tree_map(lambda m: (1 - beta) / beta * m, momentum)
        return ask(w, CLIP, tree_map(lambda a: a / beta, scales), shifted)

    return descend(w, ask_mixed(w), LR)


def adam(w, ask, at):
    g = public_gradient(w)
    v, old = second(at, g), at.kept.get("m", zeros())
    m = follow(at, "m", tree_map(lambda m, g: BETA * m + (1 - BETA) * g, old, g))
    return with_momentum(w, ask, outside(v), m)


def beta(t):
    return 1.0 - 0.5 / (t + 1)


def scheduled(w, ask, at):
    """With ``beta^t = 1 - gamma / t`` and ``eps^t`` in proportion to ``1 / sqrt(t)``, for ``gamma`` 1/2."""
    b, g, eps = beta(at.t), public_gradient(w), EPS / np.sqrt(at.t + 1)
    v = follow(at, "v", tree_map(lambda v, g: b * v + (1 - b) * g * g, at.kept.get("v", zeros()), g))
    return descend(w, ask(w, CLIP, tree_map(lambda v: np.sqrt(v) + eps, v)), LR)


def adam_scheduled(w, ask, at):
    b, g = beta(at.t), public_gradient(w)
    for name, power in (("m", g), ("v", tree_map(np.square, g))):
        follow(
            at, name, tree_map(lambda old, new: b * old + (1 - b) * new, at.kept.get(name, zeros()), power)
        )
    return with_momentum(w, ask, outside(at.kept["v"]), at.kept["m"], b)


def epoch_moments(w, at):
    """Of the authors' code: over mini-batches of 5 of 12 public examples, in the order in which they are drawn."""
    batch = local.batches(epochs=1, batch_size=5).draw(client(*PUBLIC), at.key)
    gradients = []
    for j in range(3):
        rows = np.array(batch(jnp.int32(j)).positions)[np.array(batch(jnp.int32(j)).inside)]
        gradients.append(mean_of(examples(w, PUBLIC[0][rows], PUBLIC[1][rows])))
    mean = tree_map(lambda *g: sum(g) / 3, *gradients)
    return mean, tree_map(lambda *g: sum(one * one for one in g) / 3, *gradients)


def inside(v):
    return tree_map(lambda v: np.sqrt(v + EPS), v)


def by_epoch(w, ask, at):
    if at.t % 4 == 0:
        at.kept["v"] = epoch_moments(w, at)[1]
    return descend(w, ask(w, CLIP, inside(at.kept["v"])), LR)


def adam_by_epoch(w, ask, at):
    if at.t % 4 == 0:
        mean, at.kept["v"] = epoch_moments(w, at)
        at.kept["m"] = tree_map(lambda m, g: 0.9 * m + 0.1 * g, at.kept.get("m", zeros()), mean)
    return with_momentum(w, ask, inside(at.kept["v"]), at.kept["m"])


CASES = {
    "fixed": (adadps(divided_by=A), fixed),
    "rmsprop": (adadps(**SIDE), rmsprop),
    "rmsprop of batches": (adadps(**SIDE, public_batch_size=4), rmsprop_of_batches),
    "adagrad": (adadps(**SIDE, kind="adagrad"), adagrad),
    "adam": (adadps(**SIDE, kind="adam"), adam),
    "scheduled": (adadps(public=PUBLIC, decay=beta, eps=lambda t: EPS / jnp.sqrt(t + 1.0)), scheduled),
    "adam scheduled": (adadps(**SIDE, kind="adam", decay=beta), adam_scheduled),
    "by epoch": (adadps(**SIDE, refresh_every=4, public_batch_size=5), by_epoch),
    "adam by epoch": (adadps(**SIDE, kind="adam", refresh_every=4, public_batch_size=5), adam_by_epoch),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_loop_of_the_paper_or_of_its_code(name):
    params, _ = trained(CASES[name][0])
    near(params, loop(CASES[name][1]), 5e-5)
    for other, (_, rival) in CASES.items():
        if other != name:
            far(params, loop(rival), 3e-4)


def test_the_printed_adam_is_the_shifted_one():
    """``clip((beta g + (1 - beta) M) / A)``, without the rewriting that the library and the loop above share."""
    w = tree_map(lambda leaf: np.asarray(leaf, np.float64), begin())
    g, m, a = examples(w), public_gradient(w), FIXED
    printed = tree_map(lambda g, m, a: (BETA * g + (1 - BETA) * m) / a, g, m, a)
    shifted = tree_map(lambda g, m, a: (g + (1 - BETA) / BETA * m) / (a / BETA), g, m, a)
    for name in g:
        np.testing.assert_allclose(printed[name], shifted[name], rtol=1e-12)


def test_a_public_batch_has_the_mean_gradient_of_distinct_examples():
    whole = trained(adadps(**SIDE, public_batch_size=len(PUBLIC[1])))[0]
    near(whole, tree_map(np.asarray, trained(CASES["rmsprop"][0])[0]))


# --- identities ------------------------------------------------------------------------------------------------------


def test_adagrads_scales_only_grow_and_bound_the_squares_that_they_divide():
    """Equations 6.19 and 6.25 at gamma = a = 1, where ``t v^t`` is AdaGrad's sum; also for gradients that are rare."""
    rng, steps, eps = np.random.default_rng(6), 200, 1e-3
    moment = Moment("adagrad", decay=0.9, eps=eps)
    g = (
        rng.normal(size=(steps, 300))
        * np.exp(rng.normal(size=300))
        * (rng.random((steps, 300)) < rng.random(300))
    )

    def step(total, squared):
        total = moment.follow(total, squared)
        return total, moment.root(total)

    _, scales = jax.lax.scan(step, jnp.zeros(300), jnp.asarray(g**2, jnp.float32))
    scales = np.asarray(scales, np.float64)
    assert (np.diff(scales, axis=0) >= 0).all()
    sums = (g**2 / scales).sum(axis=0)
    assert (sums <= 2 * scales[-1]).all() and (sums > 1.5 * scales[-1]).any()


@pytest.mark.parametrize("gamma", [1.0, 0.4])
def test_with_the_schedules_of_theorem_16_scales_grow_as_its_proof_needs(gamma):
    """Equations 6.19 and 6.25 for ``a = 1``; with a constant decay the first is false."""
    rng, steps, eps = np.random.default_rng(7), 200, 1e-3
    g = rng.normal(size=(steps, 200)) * (rng.random((steps, 200)) < rng.random(200))

    def scales_of(moment):
        def step(v, at):
            v = moment.follow(v, at[1], at[0])
            return v, moment.root(v, at[0])

        path = jax.lax.scan(
            step, jnp.zeros(200), (jnp.arange(steps, dtype=jnp.float32), jnp.asarray(g**2, jnp.float32))
        )
        return np.sqrt(np.arange(1, steps + 1))[:, None] * np.asarray(path[1], np.float64)

    scheduled = Moment("rmsprop", lambda t: 1.0 - gamma / (t + 1.0), lambda t: eps / jnp.sqrt(t + 1.0))
    scales = scales_of(scheduled)
    assert (np.diff(scales, axis=0) >= -1e-5 * scales[1:]).all()
    assert ((g**2 / scales).sum(axis=0) <= 2 * (2 - gamma) / gamma * scales[-1]).all()
    constant = scales_of(scheduled._replace(decay=0.5))
    assert (np.diff(constant, axis=0) < -1e-2 * constant[1:]).any()


def test_on_a_parabola_the_loss_is_as_small_as_theorem_16_says():
    """``G / sqrt(T) sum(A^T) + alpha / sqrt(T) max |N|^2_A``, with ``G`` for ``a = gamma = 1``: .36; .004 found."""
    d, steps, alpha, clip, noise, eps = 5, 200, 0.5, 10.0, 0.4, 0.1
    bends, x = np.linspace(0.1, 1.0, d), np.zeros((4, d), np.float32)
    work = eh.privacy.adadps(
        parabola(bends),
        optax.sgd(lambda t: alpha / jnp.sqrt(t + 1.0)),
        public=(x, np.zeros(4)),
        decay=lambda t: 1.0 - 1.0 / (t + 1.0),
        eps=lambda t: eps / jnp.sqrt(t + 1.0),
        clip=clip,
        noise_multiplier=noise,
        rate=1.0,
        steps=1,
    )
    continued, data = work.continued, client(x, np.zeros(4, np.float32))
    assert continued is not None

    def step(carry, key):
        params, state = continued.solve(carry[0], carry[1], data, key)
        scales = jnp.sqrt(state[1].second) + eps / jnp.sqrt(state[1].step.astype(jnp.float32))
        return (params, state), (carry[0], scales)

    def run(key):
        start = jnp.ones(d)
        return jax.lax.scan(step, (start, continued.init(start)), jax.random.split(key, steps))[1]

    with jax.numpy_dtype_promotion("standard"):
        path, scales = map(np.asarray, jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 20)))
    losses = 0.5 * (bends * path**2).sum(axis=-1).mean(axis=0)
    farthest = np.square(path).sum(axis=-1).max()
    last, variance = scales[:, -1].sum(axis=-1).mean(), (noise * clip / 4) ** 2
    most = variance * scales.sum(axis=-1).mean(axis=0).max()
    bound = ((farthest / (2 * alpha) + alpha) * last + alpha * most) / np.sqrt(steps)
    assert 0.002 < losses.min() < bound and 0.35 < bound < 0.37 and losses[0] == pytest.approx(1.375)


# --- one step on a parabola, where its mean is known -----------------------------------------------------------------


def one_step(work, bends, x, w, state=None):
    """The mean loss after a step from ``w``, and its standard error."""
    continued = work.continued
    state = continued.init(w) if state is None else state
    losses = 0.5 * (bends * steps_from(work, w, state, x, 4000) ** 2).sum(axis=1)
    return losses.mean(), losses.std() / np.sqrt(len(losses))


@pytest.mark.parametrize("least", [0.5, 2.0])
def test_a_step_with_fixed_scales_gains_what_theorem_19_says(least):
    """``F - alpha/2 |g|^2_{1/A} + alpha^2 L / (2 eps) sum(t_j / (A_j b)) + alpha^2 L d z^2 C^2 / (2 b^2)``.

    Poisson batches vary in size, so ``t_j`` is the second moment of a coordinate and not its variance.
    """
    d, n, rate, clip, noise = 6, 20, 0.25, 20.0, 0.1
    bends, w, x = np.ones(d), jnp.linspace(0.5, 1.5, d), centred(n, d, 1.0)
    b, size, g = rate * n, least, np.asarray(w, np.float64)  # alpha = eps / L

    def measured(scales):
        common = {"clip": clip, "noise_multiplier": noise, "rate": rate, "steps": 1}
        model = parabola(bends)
        first = eh.privacy.adadps(model, size, divided_by=jnp.float32(scales), **common)
        divided = optax.stateless(lambda updates, params: updates / jnp.float32(scales))
        reverse = eh.privacy.dp_sgd(model, optax.chain(divided, optax.sgd(size)), **common)
        moments = ((g + x) ** 2).mean(axis=0)
        bound = 0.5 * (g**2).sum() - size / 2 * (g**2 / scales).sum()
        bound += size**2 / (2 * least) * (moments / (scales * b)).sum()
        bound += size**2 * d * (noise * clip / b) ** 2 / 2
        return one_step(first, bends, x, w), one_step(reverse, bends, x, w), bound

    (loss, error), (reverse, _), bound = measured(np.linspace(least, 3 * least, d))
    assert loss + 5 * error < bound
    # With equal scales and bends nothing is lost in the proof, except that a Poisson sample varies less by its rate.
    (loss, error), (reverse, _), bound = measured(np.full(d, least))
    lost = size**2 * rate / (2 * least) * (((g + x) ** 2).mean(axis=0) / (least * b)).sum()
    assert loss == pytest.approx(bound - lost, abs=5 * error)
    # Noise that is divided, too, would be shorter or longer than the theorem's.
    assert reverse > bound if least < 1.0 else reverse < bound - lost - 5 * error


@pytest.mark.parametrize("full", [False, True])
def test_a_step_with_scales_of_public_gradients_gains_what_theorem_18_says(full):
    """One step of its proof, at the smallest and at the largest moments that gradients bounded by ``B`` can leave."""
    d, n, rate, clip, noise = 6, 20, 0.25, 20.0, 0.1
    beta, eps, most = 0.99, 0.5, 1.0
    bends, w, x = np.ones(d), jnp.linspace(-1.0, most, d), centred(n, d, 1.0)
    b, size, g = rate * n, eps / 2, np.asarray(w, np.float64)
    assert most * np.sqrt(1 - beta) <= eps / 4 and np.abs(g).max() <= most
    work = eh.privacy.adadps(
        parabola(bends),
        size,
        public=(x, np.zeros(n)),
        decay=beta,
        eps=eps,
        clip=clip,
        noise_multiplier=noise,
        rate=rate,
        steps=1,
    )
    assert work.continued is not None
    optimiser, moments = work.continued.init(w)
    moments = moments._replace(second=jnp.full(d, most**2 if full else 0.0))
    loss, error = one_step(work, bends, x, w, (optimiser, moments))
    spread = ((g + x) ** 2).mean(axis=0).sum() / b
    bound = 0.5 * (g**2).sum() - size / (2 * (np.sqrt(beta) * most + eps)) * (g**2).sum()
    bound += (size * most * np.sqrt(1 - beta) / eps**2 + size**2 / (2 * eps**2 * np.sqrt(beta))) * spread
    bound += size**2 * d * (noise * clip / b) ** 2 / 2
    assert loss + 5 * error < bound
    # By hand, for Poisson samples.
    scales = np.sqrt(beta * moments.second + (1 - beta) * g**2) + eps
    exact = 0.5 * ((g - size * g / scales) ** 2).sum()
    exact += 0.5 * size**2 * ((1 - rate) / b * ((g + x) ** 2).mean(axis=0) / scales**2).sum()
    exact += 0.5 * size**2 * d * (noise * clip / b) ** 2
    assert loss == pytest.approx(exact, abs=5 * error)


@pytest.mark.parametrize("most", [0.9, 0.02])
def test_frequencies_bound_the_gradients_of_linear_models_as_theorem_17_needs(most):
    """``R = max E[g_j^2] / A_j^2`` with ``|c| <= 1``: at most 1 for the root of ``E[x^2]``, and 1 / p for ``E|x|``."""
    d, n, classes, eps = 8, 4000, 3, 1e-3
    rng = np.random.default_rng(3)
    x: Any = np.float32(rng.random((n, d)) < np.geomspace(0.02, most, d))
    y, p = rng.integers(0, classes, n), x.mean(axis=0)
    model = eh.models.softmax_regression(features=d, classes=classes)
    scales = eh.privacy.token_frequencies(model, x, most=1e9, unit=float(p.max()))
    first = np.asarray(scales["kernel"])[:, 0]
    np.testing.assert_allclose(first, p, rtol=0.01)

    def gradient(params, x, y):
        return jax.grad(lambda params: model.losses(model.apply(params, x[None]), y[None])[0])(params)

    worst = np.zeros(d)
    for length in (0.0, 1.0, 300.0):
        params = {
            "kernel": jnp.asarray(length * rng.normal(size=(d, classes)), jnp.float32),
            "bias": jnp.zeros(classes),
        }
        each = jax.jit(jax.vmap(gradient, (None, 0, 0)))(params, x, y)["kernel"]
        worst = np.maximum(worst, (np.asarray(each, np.float64) ** 2).mean(axis=0).max(axis=-1))
    assert (worst / (np.sqrt(p) + eps) ** 2).max() <= 1.0
    r = worst / (p + eps) ** 2
    assert (r <= p / (p**2 + eps**2)).all()
    # Models that are sure of wrong classes have the longest gradients.
    assert (r > 0.4 / p).all()
    if most == 0.02:  # equally rare features: R sum(A) is of the order of d, however rare they are
        assert 0.4 * d < r.max() * first.sum() < 1.3 * d


def test_without_side_information_it_is_dp_sgd():
    ones = jax.tree.map(jnp.ones_like, A)
    plain = trained(eh.privacy.dp_sgd(MODEL, LR, clip=CLIP, **COMMON))[0]
    # To rounding: norms of divided gradients are found by another product.
    near(trained(adadps(divided_by=ones))[0], tree_map(np.asarray, plain))
    far(trained(adadps(divided_by=A))[0], tree_map(np.asarray, plain))


def test_only_relative_scales_matter():
    c = 4.0
    scaled = eh.privacy.adadps(
        MODEL, c * LR, clip=CLIP / c, divided_by=jax.tree.map(lambda leaf: c * leaf, A), **COMMON
    )
    params = tree_map(np.asarray, trained(CASES["fixed"][0])[0])
    near(trained(scaled)[0], params)
    far(trained(adadps(divided_by=jax.tree.map(lambda leaf: c * leaf, A)))[0], params)


def test_unclipped_it_is_noise_of_another_shape_on_plain_gradients():
    """``(g + A N) / A = g / A + N``."""
    w = tree_map(lambda leaf: np.asarray(leaf, np.float64), begin())
    key, huge = KEYS[:1], 1e4
    common = {"noise_multiplier": 1e-4, "rate": RATE, "steps": 1}
    rows, _, normals = draws(0, 0)
    noise = tree_map(lambda z: 1e-4 * huge * np.asarray(z), normals[0])
    shaped = tree_map(
        lambda g, a, z: (g.sum(axis=0) + a * z) / a / (RATE * N), examples(w, X[rows], Y[rows]), FIXED, noise
    )
    near(
        trained(eh.privacy.adadps(MODEL, LR, clip=huge, divided_by=A, **common), key)[0],
        descend(w, shaped, LR),
    )


def test_the_noise_of_a_step_does_not_depend_on_the_scales_and_that_of_the_reverse_order_does():
    """With a clip that leaves nothing of the gradients: the step is noise alone."""
    common = {"clip": 1e-6, "noise_multiplier": 1e6, "rate": RATE, "steps": 1}
    w = begin()
    before = trained(eh.privacy.adadps(MODEL, 1.0, divided_by=A, **common), KEYS[:1])[0]
    after = trained(eh.privacy.dp_r_pub(MODEL, 1.0, **SIDE, **common), KEYS[:1])[0]
    plain = trained(eh.privacy.dp_sgd(MODEL, 1.0, **common), KEYS[:1])[0]
    near(before, tree_map(np.asarray, plain))
    scales = outside(tree_map(lambda g: (1 - BETA) * g * g, public_gradient(tree_map(np.asarray, w))))
    near(
        after,
        tree_map(
            lambda w, p, d: w + (p - w) / d, tree_map(np.asarray, w), tree_map(np.asarray, plain), scales
        ),
    )


MASKED = jax.tree.map(lambda leaf: np.ma.array(np.asarray(leaf), mask=True), A)


@pytest.mark.parametrize(
    "scales", [{"w": "a"}, {"w": None}, "a", jax.tree.map(lambda leaf: leaf[:1], A), MASKED]
)
def test_scales_that_are_no_tree_of_numbers_are_refused(scales):
    with pytest.raises(EvenhandError, match=r"adadps\(divided_by=...\): give a tree like the parameters"):
        adadps(divided_by=scales)


def test_any_optimiser_takes_the_steps():
    slowed = adadps(divided_by=A)
    momentum = eh.privacy.adadps(MODEL, optax.sgd(LR, momentum=0.5), clip=CLIP, divided_by=A, **COMMON)
    far(trained(momentum)[0], tree_map(np.asarray, trained(slowed)[0]))


# --- AdaS ------------------------------------------------------------------------------------------------------------


def batches_of(i, key, size):
    batch = local.batches(steps=5, batch_size=size).draw(client(X, Y), key)(jnp.int32(i))
    return np.array(batch.positions)[np.array(batch.inside)]


def test_adas_is_the_loop_without_clip_and_noise():
    work = eh.privacy.adas(MODEL, LR, **SIDE, steps=5, batch_size=4)
    w, v = tree_map(lambda leaf: np.asarray(leaf, np.float64), begin()), zeros()
    for key in KEYS:
        for i in range(5):
            v = tree_map(lambda v, g: BETA * v + (1 - BETA) * g * g, v, public_gradient(w))
            rows = batches_of(i, key, 4)
            g = mean_of(examples(w, X[rows], Y[rows]))
            w = descend(w, tree_map(np.divide, g, outside(v)), LR)
    near(trained(work)[0], w)
    assert work.privacy is None


def test_adas_with_momentum_adds_that_of_public_gradients():
    work = eh.privacy.adas(MODEL, LR, **SIDE, kind="adam", steps=5, batch_size=4)
    w, m, v = tree_map(lambda leaf: np.asarray(leaf, np.float64), begin()), zeros(), zeros()
    for i in range(5):
        public = public_gradient(w)
        m = tree_map(lambda m, g: BETA * m + (1 - BETA) * g, m, public)
        v = tree_map(lambda v, g: BETA * v + (1 - BETA) * g * g, v, public)
        rows = batches_of(i, KEYS[0], 4)
        g = mean_of(examples(w, X[rows], Y[rows]))
        mixed = tree_map(lambda g, m: BETA * g + (1 - BETA) * m, g, m)
        w = descend(w, tree_map(np.divide, mixed, outside(v)), LR)
    near(trained(work, KEYS[:1])[0], w)


def test_adas_without_side_information_is_sgd_and_takes_what_methods_add():
    ones = jax.tree.map(jnp.ones_like, A)
    work = eh.privacy.adas(MODEL, LR, divided_by=ones, steps=5, batch_size=4)
    sgd = eh.local.sgd(MODEL, LR, steps=5, batch_size=4)
    near(trained(work)[0], tree_map(np.asarray, trained(sgd)[0]))

    def corrected(work):
        pull = local.proximal(0.5, jax.tree.map(jnp.zeros_like, begin()))
        return jax.jit(lambda key: work.solve(begin(), client(X, Y), key, pull)[0])(KEYS[0])

    near(corrected(work), tree_map(np.asarray, corrected(sgd)))
    far(corrected(work), tree_map(np.asarray, trained(sgd, KEYS[:1])[0]))


# --- the promise -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_the_promise_is_that_of_dp_sgd(name):
    plain = promised(eh.privacy.dp_sgd(MODEL, LR, clip=CLIP, **COMMON))
    promise = promised(CASES[name][0])
    assert promise.releases(7) == plain.releases(7) == (eh.types.Release(NOISE, RATE, times=35),)
    assert promise._replace(releases=None) == plain._replace(releases=None)


def test_the_state_follows_from_public_examples_alone():
    _, one = trained(CASES["adam"][0], KEYS[:1])
    other = eh.privacy.adadps(MODEL, 0.0, clip=CLIP, **COMMON, **SIDE, kind="adam")
    # With steps of 0 the model says nothing of the private examples, and neither may the moments.
    first = trained(other, KEYS[:1])[1]
    second = trained(other, KEYS[:1], client(X + 1.0, (Y + 1) % 3))[1]
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), first, second))
    assert not jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), one, first))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({}, "exactly one"),
        ({**SIDE, "divided_by": A}, "exactly one"),
        ({**SIDE, "kind": "yogi"}, "kind"),
        ({**SIDE, "decay": 1.0}, "decay"),
        ({**SIDE, "decay": 0.0, "kind": "adam"}, "nothing"),
        ({"divided_by": {**A, "b": jnp.zeros(3)}}, "above 0"),
        ({"divided_by": {**A, "b": jnp.full(3, jnp.inf)}}, "finite numbers above 0"),
        ({"divided_by": {**A, "b": jnp.ones(4)}}, "like the parameters"),
        ({"divided_by": {"w": A["w"]}}, "like the parameters"),
        ({**SIDE, "eps": 0.0}, "eps"),
        ({**SIDE, "refresh_every": 0}, "refresh_every"),
        ({**SIDE, "decay": beta, "refresh_every": 4}, "decay and eps of scales"),
        ({**SIDE, "decay": lambda t: 1.0}, "decay"),
        ({**SIDE, "decay": lambda t: 0.0, "kind": "adam"}, "nothing"),
        ({**SIDE, "decay": lambda t: 0.9 + t}, r"decay=1.9, eps=.*\) at step 1: give a decay"),
        ({**SIDE, "decay": lambda t: 0.9, "eps": lambda t: 2.0 - t}, r"eps=0.0\) at step 2"),
        ({**SIDE, "decay": lambda t: 0.5 - t / 4, "kind": "adam"}, r"decay=0\) at step 2: nothing"),
        ({**SIDE, "decay": lambda t: 0.5 if t < 9 else 0.9}, "decay=.: the schedule fails at step 0"),
        ({**SIDE, "kind": "adagrad", "refresh_every": 3}, "never starts over"),
        ({"public": (PUBLIC[0], PUBLIC[1][:-1])}, "as many inputs"),
        ({"public": (PUBLIC[0], None)}, "as many inputs"),
        ({"public": ([[1.0, 2.0], [3.0]], [0, 1])}, "as many inputs"),
        ({"public": (PUBLIC[0], ["a"] * len(PUBLIC[1]))}, "labels are not numbers"),
        ({"public": (np.full_like(PUBLIC[0], np.nan), PUBLIC[1])}, "inputs are not all finite"),
        ({"public": (PUBLIC[0], np.full(len(PUBLIC[1]), np.inf))}, "labels are not all finite"),
        ({**SIDE, "public_batch_size": 0}, "batch_size"),
        ({**SIDE, "clip": 0.0}, "clip"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, match):
    with pytest.raises(EvenhandError, match=match):
        adadps(**settings)


@pytest.mark.parametrize("scale", [1e-8, 1e5])
def test_scales_that_are_lost_in_the_type_of_the_parameters_are_refused(scale):
    half = MODEL._replace(init=lambda key: tree_map(lambda leaf: leaf.astype(jnp.float16), MODEL.init(key)))
    scales = tree_map(lambda leaf: np.full(leaf.shape, scale), A)
    work = eh.local.sgd(half, 0.1, epochs=1)
    for make in (
        lambda: eh.privacy.adadps(
            half, 0.1, divided_by=scales, clip=1.0, noise_multiplier=1.0, rate=0.1, steps=1
        ),
        lambda: eh.privacy.adadps_fl(work, divided_by=scales, clip=1.0, noise_multiplier=1.0),
    ):
        with pytest.raises(EvenhandError, match="rounded to float16"):
            make()


# --- scales ----------------------------------------------------------------------------------------------------------

BAG: Any = np.array([[8, 0, 1, 0], [8, 2, 0, 0], [9, 0, 0, 0]])


def test_token_frequencies_are_those_of_the_code():
    f = (BAG.sum(axis=0) + 0.1) / 3 + 1e-10
    factor = np.minimum(50.0, f.max() / f) / 100
    scales = eh.privacy.token_frequencies(MODEL, BAG, most=50.0)
    np.testing.assert_allclose(scales["w"], np.repeat(1 / factor, 3).reshape(4, 3), rtol=1e-6)
    np.testing.assert_array_equal(scales["b"], 1.0)
    assert float(scales["w"][3, 0]) == pytest.approx(2.0)  # the cap
    free = eh.privacy.token_frequencies(MODEL, BAG)
    assert float(free["w"][3, 0]) == pytest.approx(100 / (25.1 / 0.1), rel=1e-5)


def test_tfidf_scales_are_those_of_the_code():
    x = BAG * np.array([0.0, 1.0, 0.5, 0.25])
    factor = 10 * (x.sum(axis=0) + 1e-10)
    factor[0] = 0.01
    scales = eh.privacy.tfidf_scales(MODEL, x, special=(0,))
    np.testing.assert_allclose(scales["w"], np.repeat(1 / factor, 3).reshape(4, 3), rtol=1e-6)
    np.testing.assert_array_equal(scales["b"], 1.0)
    assert eh.privacy.tfidf_scales(MODEL, x)["w"][:3].tolist() == [[100.0] * 3] * 3


def test_scales_are_for_weights_even_where_biases_are_as_many():
    model = MODEL._replace(init=lambda key: {"w": jnp.zeros((4, 4)), "b": jnp.zeros(4)})
    assert eh.privacy.token_frequencies(model, BAG)["b"].tolist() == [1.0] * 4


@pytest.mark.parametrize("make", [eh.privacy.token_frequencies, eh.privacy.tfidf_scales])
def test_scales_of_no_matrix_or_of_other_tokens_are_refused(make):
    for x in (BAG[0], -BAG, BAG[:0], BAG * np.nan):
        with pytest.raises(EvenhandError, match="one row"):
            make(MODEL, x)
    with pytest.raises(EvenhandError, match="no weights for 3 tokens"):
        make(MODEL, BAG[:, :3])
    with pytest.raises(EvenhandError, match="special"):
        eh.privacy.tfidf_scales(MODEL, BAG, special=(4,))
    with pytest.raises(EvenhandError, match="most"):
        eh.privacy.token_frequencies(MODEL, BAG, most=0.5)
