"""Optimal personalization: closed forms, their limits, and simulations by the library's own Ditto."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand.theory import federated_regression, point_estimation, posterior_means, ridge

SETTINGS = {
    "clean": {"sigma": 0.8, "examples": 30, "tau": 0.1, "clients": 8},
    "half malicious": {
        "sigma": 0.8,
        "examples": 30,
        "tau": 0.1,
        "clients": 16,
        "malicious": 8,
        "malicious_tau": 0.5,
    },
    "few examples": {"sigma": 1.0, "examples": 20, "tau": 0.1, "clients": 20},
    "some malicious": {
        "sigma": 0.5,
        "examples": 10,
        "tau": 0.2,
        "clients": 10,
        "malicious": 3,
        "malicious_tau": 0.5,
    },
}
# lambda*, mse(lambda*), mse(0), mse(inf), pooled variance, variance within at lambda*, where the latter is least
VALUES = {
    "clean": (2.133333, 0.008624113, 0.02133333, 0.01141667, 1.487507e-4, 1.243881e-4, 2.133333),
    "half malicious": (1.185185, 0.010485876, 0.02133333, 0.01820833, 2.199072e-4, 1.758552e-4, 1.396),
    "few examples": (5.0, 0.010416667, 0.05, 0.012, 2.170139e-4, 1.979167e-4, 5.0),
    "some malicious": (0.531915, 0.0171875, 0.025, 0.0448, 5.908203e-4, 5.013929e-4, 0.5408),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_point_estimation_has_the_values_of_the_specification(name):
    problem, expected = point_estimation(**SETTINGS[name]), VALUES[name]
    best = problem.best_lambda
    found = (
        best,
        problem.error(best),
        problem.error(0.0),
        problem.error(math.inf),
        problem.pooled_variance(best),
        problem.variance_within(best),
    )
    np.testing.assert_allclose(found, expected[:6], rtol=1e-6)
    assert math.isclose(problem.least_error, problem.error(best), rel_tol=1e-12)
    grid = np.linspace(0.5 * best, 1.5 * best, 20001)
    least = grid[np.argmin([problem.variance_within(lam) for lam in grid])]
    assert abs(least - expected[6]) < 1e-3
    assert abs(grid[np.argmin([problem.error(lam) for lam in grid])] - best) < 1e-3 * best


def simulated(setting, lam, trials=20_000):
    """Benign clients' squared errors, ``(clients, trials)``, by FedAvg and Ditto: each coordinate is a federation."""
    rng = np.random.default_rng(0)
    k, n, bad = setting["clients"], setting["examples"], setting.get("malicious", 0)
    spreads = np.full((k, 1), setting["tau"])
    spreads[:bad] = setting.get("malicious_tau", 0.0)
    w = spreads * rng.standard_normal((k, trials))
    means = w + setting["sigma"] / math.sqrt(n) * rng.standard_normal((k, trials))  # all that n examples tell
    data = eh.data.from_arrays(
        means.astype(np.float32), np.zeros(k), np.arange(k), test_fraction=0.0, name="points"
    )
    model = eh.models.from_functions(
        init=lambda key: jnp.zeros(trials),
        apply=lambda params, x: x - params[None],
        losses=lambda outputs, y: 0.5 * jnp.sum(jnp.square(outputs), axis=-1) + 0.0 * y,
    )
    work = eh.local.sgd(model, 1.0, steps=1)  # a step to the minimiser
    own = eh.local.sgd(model, 1.0 / (1.0 + lam), steps=1)
    run = eh.simulate(eh.personalization.ditto(eh.algorithms.fedavg(work), own, lam=lam), data, rounds=2)
    models = np.stack([run.personal_params(i) for i in range(k)])
    problem = point_estimation(**setting)
    np.testing.assert_allclose(models, problem.minimisers(means, lam), atol=1e-5)
    return np.square(models - w)[bad:]


@pytest.mark.parametrize("name", ["clean", "half malicious", "some malicious"])
def test_the_librarys_ditto_has_the_error_of_the_closed_form(name):
    """A hundredth is three standard errors, or more, of 140,000 squared errors; other penalties are told apart."""
    setting, problem = SETTINGS[name], point_estimation(**SETTINGS[name])
    best = problem.best_lambda
    for lam in (best / 3, best, 3 * best):
        errors = simulated(setting, lam)
        assert abs(errors.mean() / problem.error(lam) - 1.0) < 0.015
        assert abs(errors.var() / problem.pooled_variance(lam) - 1.0) < 0.05
        assert abs(errors.var(axis=0).mean() / problem.variance_within(lam) - 1.0) < 0.05
    assert min(problem.error(best / 3), problem.error(3 * best)) > 1.05 * problem.error(best)


def test_the_best_penalty_gives_the_posterior_mean():
    rng = np.random.default_rng(0)
    for setting in SETTINGS.values():
        problem = point_estimation(**setting)
        means = rng.normal(size=(setting["clients"], 50))
        best = problem.minimisers(means, problem.best_lambda)
        np.testing.assert_allclose(problem.posterior_means(means), best, atol=1e-12)
        assert np.abs(problem.minimisers(means, 2 * problem.best_lambda) - best).max() > 1e-2


def test_limits():
    def best(**changes):
        return point_estimation(
            **{"sigma": 1.0, "examples": 10, "tau": 0.3, "clients": 12, **changes}
        ).best_lambda

    assert best(examples=10**9) < 1e-6 and best(tau=1e4) < 1e-6
    assert best(tau=0.0) == math.inf
    assert best(sigma=10.0, tau=1e-8) == pytest.approx(10.0 / 1e-16)
    assert best(tau=0.0, malicious=2, malicious_tau=0.5) == pytest.approx(0.1 * 12 * 11 / (2 * 0.25))
    assert best(malicious=3) == pytest.approx(best()) == pytest.approx(1.0 / (10 * 0.09))
    rising = [best(malicious=count, malicious_tau=1.0) for count in range(12)]
    assert all(a > b for a, b in itertools.pairwise(rising))
    assert best(malicious=3, malicious_tau=1e6) < 1e-6
    equal = point_estimation(sigma=1.0, examples=1, tau=1.0, clients=9)
    assert equal.best_lambda == 1.0 and math.isclose(equal.error(0.0), equal.error(math.inf))


def regressions(rng, clients, n, d, tau, sigma, orthogonal):
    xs = [rng.normal(size=(n, d)) for _ in range(clients)]
    if orthogonal:
        xs = [math.sqrt(3.0) * np.linalg.qr(x)[0] for x in xs]  # X'X = 3 I
    models = tau * rng.normal(size=(clients, d))
    return xs, [x @ w + sigma * rng.normal(size=n) for x, w in zip(xs, models, strict=True)], models


def test_federated_regression_at_the_best_penalty_is_the_posterior_mean():
    rng = np.random.default_rng(1)
    problem = federated_regression(sigma=0.7, examples=9, tau=0.4, clients=6, features=4, beta=3.0)
    assert problem.best_lambda == pytest.approx(0.7**2 / (9 * 0.4**2))
    xs, ys, _ = regressions(rng, 6, 9, 4, 0.4, 0.7, orthogonal=True)
    best = posterior_means(xs, ys, sigma=0.7, tau=0.4)
    np.testing.assert_allclose(ridge(xs, ys, problem.best_lambda)[1], best, atol=1e-10)
    # With the loss that the paper prints, twice as large, the same penalty is half of what it should be.
    assert np.abs(ridge(xs, ys, problem.best_lambda / 2)[1] - best).max() > 1e-2
    xs, ys, _ = regressions(rng, 6, 9, 4, 0.4, 0.7, orthogonal=False)
    assert (
        np.abs(ridge(xs, ys, problem.best_lambda)[1] - posterior_means(xs, ys, sigma=0.7, tau=0.4)).max()
        > 1e-3
    )


def test_federated_regression_has_the_error_of_many_draws():
    rng = np.random.default_rng(2)
    setting = {"sigma": 0.7, "examples": 9, "tau": 0.4, "clients": 6, "features": 4, "beta": 3.0}
    for malicious in (0, 2):
        problem = federated_regression(**setting, malicious=malicious, malicious_tau=1.0)
        assert (problem.best_lambda < 0.99 * 0.7**2 / (9 * 0.4**2)) == (malicious > 0)
        for lam in (0.0, problem.best_lambda, 2.0, math.inf):
            errors = []
            for _ in range(1500):
                xs, ys, models = regressions(rng, 6, 9, 4, 0.4, 0.7, orthogonal=True)
                for k in range(malicious):
                    ys[k] = ys[k] + xs[k] @ (1.5 * models[k])  # a spread of 1
                found = ridge(xs, ys, lam)[1]
                errors.append(np.square(found - models).sum(axis=1)[malicious:])
            assert abs(np.mean(errors) / problem.error(lam) - 1.0) < 0.05
            assert abs(np.var(errors) / problem.pooled_variance(lam) - 1.0) < 0.15


def test_training_loss_rises_with_the_penalty_and_the_distance_falls():
    """Lemma 1, on random ridge problems."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        xs, ys, _ = regressions(rng, 4, 7, 3, 1.0, 0.5, orthogonal=False)
        grid = [0.0, *np.logspace(-3, 4, 30), math.inf]
        losses, distances = [], []
        for lam in grid:
            center, own = ridge(xs, ys, lam)
            losses.append([np.mean((x @ w - y) ** 2) / 2 for x, y, w in zip(xs, ys, own, strict=True)])
            distances.append(np.square(own - center).sum(axis=1))
        assert (np.diff(losses, axis=0) > -1e-10).all() and (np.diff(distances, axis=0) < 1e-10).all()
        fits = [np.linalg.lstsq(x, y)[0] for x, y in zip(xs, ys, strict=True)]
        np.testing.assert_allclose(ridge(xs, ys, 0.0)[1], fits, atol=1e-8)
        np.testing.assert_array_equal(distances[-1], 0.0)


def test_the_librarys_ditto_and_l2sgd_reach_the_same_ridge():
    rng = np.random.default_rng(4)
    xs, ys, _ = regressions(rng, 3, 12, 2, 1.0, 0.3, orthogonal=True)
    data = eh.data.from_arrays(
        np.concatenate(xs), np.concatenate(ys), np.repeat(range(3), 12), test_fraction=0.0
    )
    model = eh.models.from_functions(
        init=lambda key: jnp.zeros(2),
        apply=lambda params, x: x @ params,
        losses=lambda outputs, y: 0.5 * jnp.square(outputs - y),
    )
    work = eh.local.sgd(model, 0.5, steps=20)
    center, own = ridge(xs, ys, 0.3)
    ditto = eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=0.3)
    one = eh.local.sgd(model, 0.5, steps=1)
    # L2SGD's centre is the mean of the personal models; here that is the minimiser of the mean loss, too.
    for method in (ditto, eh.personalization.l2sgd(one, lam=0.3)):
        run = eh.simulate(method, data, rounds=300, eval_every=300)
        np.testing.assert_allclose(run.params, center, atol=1e-5)
        np.testing.assert_allclose([run.personal_params(k) for k in range(3)], own, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sigma": 0.0}, "sigma above 0"),
        ({"tau": -1.0}, "finite numbers"),
        ({"malicious_tau": math.inf}, "finite numbers"),
        ({"clients": 1}, "clients"),
        ({"malicious": 4}, "at least one must be benign"),
        ({"examples": 0}, "examples"),
        ({"beta": 0.0}, "above 0"),
        ({"features": 0}, "features"),
        ({"features": 2.5}, "features"),
        ({"examples": -1}, "examples"),
        ({"features": 6}, "orthogonal features need at least as many examples"),
        ({"sigma": 1e200}, "from 1e-50 to 1e50"),
        ({"sigma": "1"}, "sigma above 0"),
        ({"tau": 1e200}, "none above 1e50"),
        ({"beta": None}, "above 0"),
    ],
)
def test_what_cannot_be_is_refused(changes, sentence):
    usual = {"sigma": 1.0, "examples": 5, "tau": 0.1, "clients": 4, "features": 2, "beta": 1.0}
    with pytest.raises(eh.EvenhandError, match=sentence):
        federated_regression(**{**usual, **changes})


POINTS = point_estimation(sigma=1.0, examples=5, tau=0.1, clients=4)
LINES = federated_regression(sigma=1.0, examples=5, tau=0.1, clients=4, features=2, beta=1.0)
X, Y = [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0]]], [[1.0, 2.0], [3.0]]


@pytest.mark.parametrize("lam", [-0.5, -1.0, math.nan, "1", None, [1.0, 2.0]])
def test_a_penalty_that_is_none_is_refused(lam):
    for use in (
        *(POINTS.error, POINTS.pooled_variance, POINTS.variance_within, LINES.error, LINES.pooled_variance),
        *(lambda lam: POINTS.minimisers([0.0, 1.0, 2.0, 3.0], lam), lambda lam: ridge(X, Y, lam)),
    ):
        with pytest.raises(eh.EvenhandError, match=r"lam=.*: give a number of at least 0, or infinity"):
            use(lam)


def test_a_huge_penalty_is_as_an_infinite_one():
    for use in (POINTS.error, POINTS.variance_within, LINES.error):
        np.testing.assert_allclose(use(1e308), use(math.inf), rtol=1e-12)
    np.testing.assert_allclose(ridge(X, Y, 1e308)[1], ridge(X, Y, math.inf)[1], rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: POINTS.posterior_means([0.0, 1.0]), "a number for each of the 4 clients"),
        (lambda: POINTS.minimisers("abcd", 1.0), "a number for each of the 4 clients"),
        (lambda: point_estimation(sigma=1e-170, examples=1, tau=1.0, clients=3), "sigma from 1e-50"),
        (lambda: ridge([], [], 1.0), "for each client an array of features"),
        (lambda: ridge(X, Y[:1], 1.0), "for each client an array of features"),
        (lambda: ridge(X, [[1.0, 2.0], [3.0, 4.0]], 1.0), "for each client an array of features"),
        (lambda: ridge([[1.0, 2.0]], [[1.0, 2.0]], 1.0), "for each client an array of features"),
        (lambda: ridge([[["a"]]], [[1.0]], 1.0), "for each client an array of features"),
        (lambda: ridge([[[math.nan]]], [[1.0]], 1.0), "for each client an array of features"),
        (lambda: ridge(X[1:], Y[1:], 1.0), "all clients together do not determine a model of 2"),
        (lambda: ridge([[[1.0, 0.0]]], [[1.0]], 1.0), "all clients together do not determine a model of 2"),
        (lambda: ridge(X, Y, 0.0), "client 1 alone do not determine a model of 2"),
        (lambda: posterior_means(X, Y, sigma=1.0, tau=1.0), "client 1 alone do not determine"),
        (lambda: posterior_means(X[:1], Y[:1], sigma=1.0, tau=1.0), "one client: give at least two"),
        (lambda: posterior_means(X[:1] * 2, Y[:1] * 2, sigma=0.0, tau=1.0), "above 0"),
        (lambda: posterior_means(X[:1] * 2, Y[:1] * 2, sigma=1.0, tau=-1.0), "above 0"),
    ],
)
def test_data_without_an_answer_are_refused(call, sentence):
    with pytest.raises(eh.EvenhandError, match=sentence):
        call()


def test_features_may_have_units_far_apart():
    x = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 4.0]])
    plain, scaled = (
        ridge([x * unit], [[1.0, 2.0, 3.0]], 0.0)[0] * unit for unit in (1.0, np.array([1e-9, 1e9]))
    )
    np.testing.assert_allclose(scaled, plain, rtol=1e-9)


def test_personal_models_converge_as_fast_as_the_global_one():
    """Corollary 1: with steps of 2 / ((t + 1) (mu + lam) p_k) the error falls like 1 / t; a fixed step stops it."""
    clients, cohort, rows, lam = 20, 5, 40, 0.7
    rng, bends = np.random.default_rng(0), np.linspace(1.0, 3.0, 5)
    noise = rng.normal(size=(clients, rows, 5)) * 0.5 / bends
    x = (rng.normal(size=(clients, 1, 5)) + noise).astype(np.float32)
    data = eh.data.from_arrays(
        x.reshape(-1, 5), np.zeros(clients * rows), np.repeat(np.arange(clients), rows), test_fraction=0.0
    )
    model = eh.models.from_functions(
        init=lambda key: jnp.zeros(5),
        apply=lambda w, x: x - w[None],
        losses=lambda apart, y: 0.5 * apart**2 @ jnp.asarray(bends, jnp.float32),
    )

    def work(largest, convexity, chance):
        def step(t):
            return jnp.minimum(1.0 / largest, 2.0 / ((t + 1.0) * convexity * chance))

        return eh.local.sgd(model, 1.0, steps=1, batch_size=1, schedule=step)

    average = eh.algorithms.fedavg(work(3.0, 1.0, 1.0), sampling=eh.sampling.uniform(weighted=False))
    own = x.mean(axis=1, dtype=np.float64)
    best = (bends * own + lam * own.mean(axis=0)) / (bends + lam)

    def error(rounds, personal):
        method = eh.personalization.ditto(average, personal, lam=lam)
        run = eh.simulate(method, data, rounds=rounds, cohort=cohort, eval_every=rounds, seed=1)
        models = np.stack([run.personal_params(k) for k in range(clients)])
        return float(np.mean(np.sum((models - best) ** 2, axis=1)))

    falling = work(3.0 + lam, 1.0 + lam, cohort / clients)
    rounds = np.array([100, 400, 1600])
    errors = np.array([error(int(t), falling) for t in rounds])
    slope = np.polyfit(np.log(rounds), np.log(errors), 1)[0]
    assert -1.2 < slope < -0.8 and np.all((rounds * errors > 1.0) & (rounds * errors < 3.0))
    assert error(400, eh.local.sgd(model, 1.0 / (3.0 + lam), steps=1, batch_size=1)) > 5.0 * errors[1]
