"""FedProx with the mu of its theorem: what it measures, in NumPy on parabolas, and what it then does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand.theory import fedprox_decrease, fedprox_mu
from evenhand.types import Model

MODEL = Model(
    init=lambda key: jnp.float32(3.0),
    apply=lambda w, x: x[:, 0] / 2 * (w - x[:, 1]) ** 2,
    losses=lambda outputs, y: outputs,
    metrics={},
)
A, C, STEP, STEPS, ROUNDS = np.linspace(0.5, 1.5, 60), np.linspace(-0.4, 0.4, 60), 0.02, 150, 4


def parabolas(a, c):
    """Client k has the loss ``a_k (w - c_k)^2 / 2``."""
    rows = np.stack([a, c], axis=1).astype(np.float32)
    train = eh.data.Split(rows, np.zeros(len(a), np.float32), np.arange(len(a) + 1))
    none = eh.data.Split(rows[:0], np.zeros(0, np.float32), np.zeros(len(a) + 1, int))
    return eh.data.FederatedDataset(train, none, none, tuple(map(str, range(len(a)))))


def loop(a, c):
    """The model, and B, gamma, L and mu of each round."""
    w, mu, told = 3.0, 0.0, []
    factor = a.mean()

    def trained(w, mu):
        best = (a * c + mu * w) / (a + mu)
        return best + (1 - STEP * (a + mu)) ** STEPS * (w - best)

    for _ in range(ROUNDS):
        ends, gradients = trained(w, mu), a * (w - c)
        B = np.sqrt(np.mean(gradients**2)) / abs(gradients.mean())
        gamma = np.mean(np.abs(a * (ends - c) + mu * (ends - w)) / np.abs(gradients))
        lipschitz = np.sqrt(np.mean(a**2))
        mu = min(fedprox_mu(B=B, gamma=min(gamma, 1), lipschitz=lipschitz, cohort=len(a)).best, 1 / STEP)
        told.append((B, gamma, lipschitz, mu))
        w = trained(w, mu).mean()
    return w, np.array(told), factor


def run(method, a=A, c=C, rounds=ROUNDS):
    return eh.simulate(method, parabolas(a, c), rounds=rounds, cohort=len(a), eval_every=rounds)


WORK = eh.local.sgd(MODEL, STEP, steps=STEPS)
BY_THEORY = eh.algorithms.fedprox(WORK, mu="theory")


def test_it_takes_the_best_mu_of_what_it_measures():
    w, told, _ = loop(A, C)
    found = run(BY_THEORY)
    for column, name in enumerate(("B", "gamma", "lipschitz", "mu")):
        np.testing.assert_allclose(found.per_round[name], told[:, column], rtol=2e-3, atol=1e-5, err_msg=name)
    assert float(found.params) == pytest.approx(w, rel=1e-3)
    assert (told[:, 3] > 1).all() and (told[:, 3] < 1 / STEP).all() and np.ptp(told[:, 1]) > 1e-3
    for B, gamma, lipschitz, mu, decrease in np.column_stack([told, found.per_round["decrease"]]):
        given = {"B": B, "gamma": gamma, "lipschitz": lipschitz, "cohort": len(A)}
        assert decrease == pytest.approx(fedprox_decrease(mu, **given), rel=5e-3)
        assert decrease > 0


def test_the_rehearsal_is_averaged_whatever_the_aggregator_is():
    method = eh.algorithms.fedprox(WORK, mu="theory", aggregator=eh.aggregators.coordinate_median())
    median, mean = run(method, rounds=1), run(BY_THEORY, rounds=1)
    for name in ("B", "gamma", "lipschitz", "mu"):
        np.testing.assert_array_equal(median.per_round[name], mean.per_round[name])
    assert float(median.params) != float(mean.params), "the updates are not"


def test_with_the_mu_found_fedprox_does_the_same():
    found = run(BY_THEORY, rounds=1)
    (mu,) = found.per_round["mu"]
    same = run(eh.algorithms.fedprox(WORK, mu=float(mu)), rounds=1)
    assert float(same.params) == pytest.approx(float(found.params), rel=1e-5)
    other = run(eh.algorithms.fedprox(WORK, mu=2 * float(mu)), rounds=1)
    assert abs(float(other.params) - float(found.params)) > 1e-2


def test_each_round_decreases_the_objective_by_what_is_promised():
    """All clients take part, so that no draw adds to what the theorem allows for."""
    watched = list(eh.simulation.iterate(BY_THEORY, parabolas(A, C), rounds=3, cohort=len(A), eval_every=1))
    path = [float(each.params) for each in watched]
    decreases = watched[-1].per_round["decrease"]
    for before, after, rho in zip(path, path[1:], decreases, strict=False):
        f, g = (lambda w: np.mean(A / 2 * (w - C) ** 2)), np.mean(A * (before - C))
        assert f(after) <= f(before) - rho * g**2 and rho > 0


def test_where_nothing_is_promised_it_takes_the_largest_mu_that_steps_bear():
    """Two clients that pull apart: B is above the square root of half of them."""
    found = run(BY_THEORY, np.ones(2), np.array([-9.0, 9.0]), rounds=2)
    assert (found.per_round["mu"] == np.float32(1 / STEP)).all()
    assert (found.per_round["decrease"] < 0).all() and (found.per_round["B"] > 1).all()


def test_clients_at_a_common_minimum_measure_zeros():
    found = run(BY_THEORY, np.ones(3), np.full(3, 3.0), rounds=2)
    assert float(found.params) == 3.0
    assert [found.per_round[name].tolist() for name in ("gamma", "lipschitz")] == [[0.0, 0.0]] * 2


def test_it_needs_plain_steps_and_other_words_are_refused():
    import optax

    momentum = eh.local.sgd(MODEL, optax.adam(0.1), steps=3)
    with pytest.raises(eh.EvenhandError, match="this work has none"):
        eh.algorithms.fedprox(momentum, mu="theory")
    with pytest.raises(eh.EvenhandError, match='or "theory"'):
        eh.algorithms.fedprox(WORK, mu="best")  # pyright: ignore[reportArgumentType]


def test_false_claims_of_a_client_keep_mu_within_its_range():
    """The root of a mean below 0 would be NaN, with which no honest client could ever train again."""
    lie = eh.types.Attack(clients=(0,), upload=lambda sent, key: jax.tree.map(lambda x: 0 * x - 1e6, sent))
    method = eh.algorithms.fedprox(WORK, mu="theory", aggregator=eh.aggregators.coordinate_median())
    attacked = eh.simulate(method, parabolas(A, C), rounds=3, attack=lie, eval_every=3)
    mu = attacked.per_round["mu"]
    assert ((mu >= 0) & (mu <= np.float32(1 / STEP))).all() and (attacked.per_round["reported"] == 60).all()
    assert float(attacked.params) < 3.0


def test_it_obeys_the_contract():
    work = eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4)
    eh.testing.check_algorithm(eh.algorithms.fedprox(work, mu="theory"), rounds=2)


def test_mu_is_at_most_one_over_the_step_of_the_round():
    """A schedule of 10 gives what ten times the step size gives; clients are so unlike that mu is the largest."""
    works = (
        eh.local.sgd(MODEL, 0.02, steps=15, schedule=lambda round: 10.0),
        eh.local.sgd(MODEL, 0.2, steps=15),
    )
    runs = [run(eh.algorithms.fedprox_measured(work), c=np.linspace(-3.0, 3.0, 60)) for work in works]
    for name in ("mu", "B", "gamma"):
        np.testing.assert_allclose(runs[0].per_round[name], runs[1].per_round[name], rtol=1e-3, atol=1e-5)
    assert runs[0].per_round["mu"].max() == pytest.approx(1 / 0.2)


def test_a_warm_up_that_begins_with_no_step_leads_somewhere():
    """In its first round, any mu is borne; it must not be that of the next one, whose steps would overshoot."""
    schedule = eh.local.warm_up(2)
    work = eh.local.sgd(MODEL, 0.2, steps=15, schedule=schedule)
    found = run(eh.algorithms.fedprox_measured(work), c=np.linspace(-3.0, 3.0, 60), rounds=6)
    assert (found.per_round["rejected"] == 0).all() and np.isfinite(found.history["train_loss"]).all()
    assert found.history["train_loss"][-1] < found.history["train_loss"][0]
    factors = np.array([float(schedule(jnp.int32(k))) for k in range(6)])
    assert factors[0] < 1 and (found.per_round["mu"] * 0.2 * factors <= 1 + 1e-5).all()


def test_rounds_without_uploads_count_for_the_schedule_of_mu():
    """The step of the fourth round is that of the fourth, also if nobody answered in some before it."""
    work = eh.local.sgd(MODEL, 0.2, steps=15, schedule=eh.local.steps(0.5, every=1))
    method = eh.algorithms.fedprox_measured(work)
    data = parabolas(A, np.linspace(-30.0, 30.0, 60))
    found = eh.simulate(method, data, rounds=6, cohort=1, systems=eh.systems.dropouts(0.5), eval_every=6)
    answered = found.per_round["reported"] > 0
    assert 0 < answered.sum() < 6
    assert (found.per_round["mu"][answered] <= 5.0 * 2.0 ** np.arange(6)[answered] * (1 + 1e-5)).all()
    assert found.per_round["mu"][answered] == pytest.approx(5.0 * 2.0 ** np.arange(6)[answered])


def test_a_round_without_uploads_leaves_mu_as_it_was():
    """With a schedule the server steps in such a round, too; the next rehearsal is at the last mu all the same."""

    def draw(key, cohort, keep_partial):
        return cohort._replace(present=cohort.present & (jax.random.bits(key, dtype=jnp.uint32) % 2 == 0))

    constant = eh.local.sgd(MODEL, STEP, steps=STEPS, schedule=lambda round: 1.0)
    plain, scheduled = (
        eh.simulate(method, parabolas(A, C), rounds=6, systems=eh.systems.Systems(draw), eval_every=6)
        for method in (BY_THEORY, eh.algorithms.fedprox_measured(constant))
    )
    answers = plain.per_round["reported"] > 0
    assert not answers[answers.argmax() : 6 - answers[::-1].argmax()].all()
    for name in ("gamma", "mu"):
        values, expected = (run.per_round[name][answers] for run in (scheduled, plain))
        np.testing.assert_allclose(values, expected, rtol=1e-4)
