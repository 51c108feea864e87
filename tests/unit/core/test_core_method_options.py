"""Every option of every method takes effect: one client and one round, by hand and without a run."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand import algorithms, local
from evenhand.aggregators import mean
from evenhand.types import Algorithm, ClientData, Cohort, Sampling

# F(w) = (w - mean x)^2 / 2 + half the variance of x: a gradient of w - 2 at any batch of all rows.
MODEL = eh.models.from_functions(
    init=lambda key: jnp.float32(0.0),
    apply=lambda w, x: w - x[:, 0],
    losses=lambda outputs, y: 0.5 * jnp.square(outputs),
)
X = jnp.array([[1.0], [2.0], [3.0], [9.0]])
ROWS = ClientData(X, jnp.zeros(4, jnp.int32), jnp.int32(0), jnp.int32(3), jnp.float32(1.0), 4)
REQUIRED: dict[str, dict[str, Any]] = {
    "delta_fl": {"theta": 0.5},
    "fedavg": {},
    "feddane": {"mu": 0.5},
    "fedmgda": {},
    "fedprox": {"mu": 0.5},
    "fedprox_adaptive": {"mu0": 0.5},
    "fedtilt": {},
    "qfedavg": {"q": 1.0, "lipschitz": 2.0},
    "qfedsgd": {"q": 1.0, "lipschitz": 2.0},
    "qmaml": {"q": 1.0, "step_size": 0.5},
    "scaffold": {},
    "term": {"t": 1.0},
}
WORK = local.sgd(MODEL, 0.1, steps=1)


def options(name: str) -> set[str]:
    return set(inspect.signature(getattr(algorithms, name)).parameters)


def having(*given: str) -> list[str]:
    """The methods that have these options."""
    return [name for name in REQUIRED if set(given) <= options(name)]


def make(name: str, work: local.Work = WORK, **changes: Any) -> Algorithm:
    first = work if "work" in options(name) else work.model
    return getattr(algorithms, name)(first, **(REQUIRED[name] | changes))


def one_step(params: Any, data: ClientData, key: jax.Array, correction: Any) -> tuple[Any, Any]:
    """A solver that moves by 1 and passes a gradient of 0 to the correction."""
    _, state = correction.update(jnp.float32(0.0), correction.init(params), params)
    return params + 1.0, state


ONE = local.Work(MODEL, one_step)


def after(method: Algorithm, rounds: int = 1) -> float:
    """The global model after rounds of one client, whose uploads are the directions."""
    state, client = method.init(jnp.float32(0.0), 1), method.init_client(jnp.float32(0.0))
    for _ in range(rounds):
        for phase in method.phases:
            message = phase.broadcast(state, jnp.int32(0))
            upload, client = phase.work(message, client, ROWS, jax.random.key(0))
            state, _ = phase.server(state, upload, jnp.int32(1), jax.random.key(1))
    return float(method.global_params(state))


OTHERS = {"afl", "averaged", "delta_fl_levels", "fedex_lora", "side_by_side"}


def test_no_method_of_the_tables_is_missing() -> None:
    assert set(REQUIRED) | OTHERS <= set(algorithms.__all__)
    assert {"work", "server_opt", "sampling", "keep_partial"} <= options("fedavg")
    assert set(REQUIRED) - set(having("work")) == {"qfedsgd", "qmaml"}


UNLISTED = [name for name in algorithms.__all__ if name not in REQUIRED and name not in OTHERS]


@pytest.mark.parametrize("name", [*UNLISTED, "fedprox"])  # at least one, so that the test itself is tested
def test_a_method_that_no_table_names_passes_its_options_on(name: str) -> None:
    """An option that is called like FedAvg's has its meaning; each number that the method needs is 0.5."""
    parameters = list(inspect.signature(getattr(algorithms, name)).parameters.values())
    numbers = {each.name: 0.5 for each in parameters[1:] if each.default is each.empty}
    given: dict[str, Any] = {
        "work": local.sgd(MODEL, 0.1, epochs=3, batch_size=2),
        "model": MODEL,
        "method": make("fedavg"),
    }

    def made(first: Any = given[parameters[0].name], **options_of_fedavg: Any) -> Algorithm:
        taken = {option: value for option, value in options_of_fedavg.items() if option in options(name)}
        return getattr(algorithms, name)(first, **numbers, **taken)

    sampling = Sampling(eh.sampling.uniform().draw, lambda size: 7.0 * size.astype(jnp.float32))
    aggregator = mean()._replace(needs_loss=True)
    method = made(sampling=sampling, aggregator=aggregator, keep_partial=True)
    assert method.sampling is sampling or "sampling" not in options(name)
    assert method.partial_work or "keep_partial" not in options(name)
    assert any(each.aggregator is aggregator for each in method.phases) or "aggregator" not in options(name)
    assert repr(method).startswith(f"<Algorithm {name}"), f"give the Algorithm name={name!r}, for messages"
    if "server_opt" in options(name):
        steps = [after(made(server_opt=optax.sgd(rate))) for rate in (1.0, 0.5)]
        assert steps[1] == pytest.approx(0.5 * steps[0]) and steps[0] != 0
    if "work" in options(name):
        effort = method.phases[-1].effort
        assert effort is not None and tuple(map(int, effort(ROWS))) == (6, 9), (
            "give the Phase effort=work.effort"
        )
    for wrong in (
        {"first": "nonsense"},
        *({option: "nonsense"} for option in options("fedavg") & options(name)),
    ):
        if not {"work", "keep_partial"} & set(wrong):
            with pytest.raises(eh.EvenhandError):
                made(**wrong)


@pytest.mark.parametrize("name", having("keep_partial"))
def test_partial_work_is_kept_or_dropped_as_asked(name: str) -> None:
    assert [make(name, keep_partial=keep).partial_work for keep in (True, False)] == [True, False]
    assert make(name).partial_work == (name in {"fedprox", "fedprox_adaptive", "feddane"})


@pytest.mark.parametrize("name", having("sampling"))
def test_the_sampling_draws_clients_and_sets_their_weights(name: str) -> None:
    scheme = Sampling(
        lambda key, sizes, m: Cohort.of(jnp.arange(m)), lambda size: 7.0 * size.astype(jnp.float32)
    )
    method = make(name, sampling=scheme)
    assert method.sampling is scheme
    state, client = method.init(jnp.float32(0.0), 1), method.init_client(jnp.float32(0.0))
    for phase in method.phases:
        report = phase.report(phase.broadcast(state, jnp.int32(0)), client, ROWS)
        assert float(report.weight) == 21.0
    fair = {"qfedavg", "qfedsgd", "qmaml"}
    assert make(name).sampling.repeats is False
    default = eh.sampling.proportional(replace=False) if name in fair else eh.sampling.uniform()
    assert make(name).sampling.draw == default.draw
    equal_weights = fair | {"scaffold"}
    assert float(make(name).sampling.weight(jnp.int32(3))) == (1.0 if name in equal_weights else 3.0)


# Tests of q-MAML, which has them but no work, are beside its loops in NumPy.
@pytest.mark.parametrize("name", having("aggregator", "work"))
def test_the_aggregator_is_that_of_every_phase(name: str) -> None:
    given = mean()._replace(needs_loss=True)
    method = make(name, aggregator=given)
    assert all(phase.aggregator is given for phase in method.phases)
    state, client = method.init(jnp.float32(0.0), 1), method.init_client(jnp.float32(0.0))
    for phase in method.phases:
        report = phase.report(phase.broadcast(state, jnp.int32(0)), client, ROWS)
        np.testing.assert_allclose(report.loss, 0.5 * (1 + 4 + 9) / 3, rtol=1e-6)


@pytest.mark.parametrize("name", having("server_opt", "work"))
def test_the_server_steps_by_its_optimiser_and_keeps_its_state(name: str) -> None:
    """Uploads of 1: momentum 1/2 and a step of 1/4 move by 1/4, then by 3/8; by default each moves by 1."""
    heavy = optax.sgd(0.25, momentum=0.5)
    assert after(make(name, ONE, server_opt=heavy), rounds=2) == pytest.approx(0.625)
    assert after(make(name, ONE), rounds=2) == pytest.approx(2.0)


@pytest.mark.parametrize("name", having("work"))
def test_the_work_is_what_clients_do(name: str) -> None:
    """Its effort is passed on too, so that clients of similar effort train side by side."""
    assert after(make(name, ONE)) == pytest.approx(1.0)
    work = local.sgd(MODEL, 0.1, epochs=3, batch_size=2)
    assert make(name, work).model is MODEL
    # FedDANE's correction takes one more gradient of the three rows, FedTilt trains two models.
    expected = {"feddane": (6, 12), "fedtilt": (12, 18)}.get(name, (6, 9))
    for effort in (phase.effort for phase in make(name, work).phases[-1:]):
        assert effort is not None and tuple(map(int, effort(ROWS))) == expected


def test_qfedavg_knows_the_step_of_plain_descent() -> None:
    """With any other optimiser it asks for ``lipschitz=``."""
    algorithms_of = [algorithms.qfedavg(WORK, q=1.0, lipschitz=bound) for bound in (None, 10.0, 5.0)]
    uploads = jnp.array([-0.2, 0.3])
    steps = [
        float(eh.aggregators.aggregate(each.phases[0].aggregator, uploads, losses=jnp.array([2.0, 0.5])))
        for each in algorithms_of
    ]
    assert steps[0] == steps[1] != steps[2]
    with pytest.raises(eh.EvenhandError, match="needs lipschitz="):
        algorithms.qfedavg(local.sgd(MODEL, optax.sgd(0.1), steps=1), q=1.0)


# --- FedTilt ---------------------------------------------------------------------------------------------------------


def tilted_work(**changes: Any) -> tuple[float, float]:
    """What one client sends, and its personal model or 1 if it has none, from a global model of 0 and its own of 1."""
    method = make("fedtilt", **changes)
    (phase,) = method.phases
    message = phase.broadcast(method.init(jnp.float32(0.0), 1), jnp.int32(0))
    sent, kept = phase.work(message, method.init_client(jnp.float32(1.0)), ROWS, jax.random.key(0))
    personal = method.personal_params
    return float(sent), 1.0 if personal is None else float(personal(None, kept))


def test_fedtilts_personal_optimiser_trains_the_personal_model_or_the_tied_one() -> None:
    """Two steps by hand: the gradient is w - 2 + mu (w - w^t), with w^t = 0; the sent one has no pull."""
    slow, fast = (local.sgd(MODEL, step, steps=2) for step in (0.1, 0.3))

    def two(w: float, step: float, mu: float) -> float:
        for _ in range(2):
            w -= step * (w - 2.0 + mu * w)
        return w

    both: dict[str, Any] = {"work": slow, "personal": fast, "prox_mu": 0.5}
    assert tilted_work(**both) == pytest.approx((two(0, 0.1, 0), two(1, 0.3, 0.5)), rel=1e-5)
    assert tilted_work(tied=True, **both) == pytest.approx((two(0, 0.3, 0.5), 1.0), rel=1e-5)
    both["personal"] = None
    assert tilted_work(**both) == pytest.approx((two(0, 0.1, 0), two(1, 0.1, 0.5)), rel=1e-5)
    assert tilted_work(tied=True, **both) == pytest.approx((two(0, 0.1, 0.5), 1.0), rel=1e-5)


def test_fedtilt_tilts_the_personal_work_too() -> None:
    """One step of 0.3 by hand: rows of loss (w - x)^2 / 2 weighted by its exponential, from v = 1."""
    x = np.array([1.0, 2.0, 3.0])
    share = np.exp(0.5 * np.square(1.0 - x))
    slope = np.sum(share / share.sum() * (1.0 - x))
    steps = {"work": local.sgd(MODEL, 0.1, steps=1), "personal": local.sgd(MODEL, 0.3, steps=1)}
    _, kept = tilted_work(**steps, tilt_class=1.0, tilt_sample=1.0, prox_mu=0.0)
    assert kept == pytest.approx(1.0 - 0.3 * slope, rel=1e-5)
    assert abs(0.3 * (slope - np.mean(1.0 - x))) > 1e-2


def test_the_effort_of_methods_of_one_gradient_is_the_number_of_rows() -> None:
    for effort in (
        make("qfedsgd").phases[0].effort,
        algorithms.afl(MODEL, gamma_w=0.1, gamma_lambda=0.1).phases[0].effort,
    ):
        assert effort is not None and tuple(map(int, effort(ROWS))) == (3, 3)


def test_fedtilt_ties_one_model_per_client() -> None:
    """All clients are then served the global model, and otherwise their personal ones."""
    assert make("fedtilt", tied=True).personal_params is None
    method = make("fedtilt")
    personal = method.personal_params
    assert personal is not None and float(personal(None, method.init_client(jnp.float32(5.0)))) == 5.0
    assert make("fedtilt", prox_mu=np.inf).personal_params is None
    for tied, mu in ((True, 0.5), (False, 0.5), (False, np.inf)):
        dropping = not make("fedtilt", tied=tied, prox_mu=mu).partial_work
        assert dropping, "stragglers are dropped, unlike by FedProx"


@pytest.mark.parametrize("q", [0.4, -0.4])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_fedtilts_server_takes_as_many_steps_as_asked(q: float, count: int) -> None:
    """Formulas 10 and 11 in NumPy: one step goes to the weighted mean, more of them descend by 1 / (2 + q D^2)."""
    deltas = np.array([0.0, 0.3, 1.7])
    rate = 0.5 if count == 1 or q < 0 else 1 / (2 + q * 1.7**2)
    points = [0.0]
    for _ in range(4):
        share = np.exp(q * np.square(deltas - points[-1]))
        points.append(points[-1] + 2 * rate * (share @ deltas / share.sum() - points[-1]))
    (phase,) = make("fedtilt", tilt_server=q, server_steps=count).phases
    found = float(eh.aggregators.aggregate(phase.aggregator, jnp.asarray(deltas, jnp.float32)))
    assert found == pytest.approx(points[count], rel=1e-5)
    assert abs(points[count] - points[count + 1]) > 1e-4 < abs(points[count] - points[count - 1])


# --- q-MAML, q-FedSGD, TERM ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("support", "known"), [(0.5, 1), (0.75, 2), (0.01, 1), (0.99, 2)])
def test_qmaml_splits_a_clients_rows(support: float, known: int) -> None:
    """Three rows, 1, 2 and 3: a step of 1/2 on the mean of the first ones; loss and gradient on the others."""
    start = 0.5 * np.mean([1.0, 2.0, 3.0][:known])
    query = np.array([1.0, 2.0, 3.0][known:])
    for adapt, lipschitz in ((True, None), (True, 4.0), (False, None)):
        method = make("qmaml", support=support, adapt=adapt, lipschitz=lipschitz)
        (phase,) = method.phases
        message = phase.broadcast(method.init(jnp.float32(0.0), 1), jnp.int32(0))
        sent, _ = phase.work(message, (), ROWS, jax.random.key(0))
        point = start if adapt else 0.0
        assert float(sent) == pytest.approx(-(point - query.mean()) / (lipschitz or 2.0), rel=1e-6)
        report = phase.report(message, (), ROWS)
        assert float(report.loss) == pytest.approx(0.5 * np.mean(np.square(point - query)), rel=1e-6)


def test_qmaml_finetunes_by_as_many_steps_as_asked() -> None:
    """Each halves the way to the one support row, 1."""
    for steps in (1, 3):
        adapt = make("qmaml", finetune_steps=steps).adapt
        assert adapt is not None
        assert float(adapt(jnp.float32(0.0), ROWS, jax.random.key(0))) == pytest.approx(1 - 0.5**steps)
    assert make("qmaml", finetune_steps=0).adapt is None
    five = make("qmaml").adapt
    assert five is not None
    assert float(five(jnp.float32(0.0), ROWS, jax.random.key(0))) == pytest.approx(1 - 0.5**5)


@pytest.mark.parametrize(
    ("given", "step"), [({}, 0.5), ({"lipschitz": 4.0}, 0.25), ({"lipschitz": None, "step_size": 0.1}, 0.1)]
)
def test_clients_of_qfedsgd_send_one_gradient_step(given: dict[str, Any], step: float) -> None:
    assert after(make("qfedsgd", **given)) == pytest.approx(2.0 * step)


@pytest.mark.parametrize("name", ["term", "qfedavg"])
def test_losses_are_summed_over_rows_where_asked(name: str) -> None:
    whole = 0.5 * (1 + 4 + 9)
    for summed, loss in ((True, whole), (False, whole / 3)):
        method = make(name, summed=summed)
        (phase,) = method.phases
        message = phase.broadcast(method.init(jnp.float32(0.0), 1), jnp.int32(0))
        assert float(phase.report(message, (), ROWS).loss) == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("lipschitz", [0.0, -1.0, np.nan, np.inf])
def test_a_curvature_is_a_finite_number_above_0(lipschitz: float) -> None:
    with pytest.raises(eh.EvenhandError, match=r"qmaml\(lipschitz=.*\): give a finite number above 0"):
        algorithms.qmaml(MODEL, step_size=0.5, lipschitz=lipschitz, aggregator=mean())
