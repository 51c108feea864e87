"""Every method of the command line is the library's method, with the hyper-parameters that were given."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand import algorithms, server_opt
from evenhand.aggregators import reduce_uploads
from evenhand.cli._local import LocalOptions
from evenhand.cli._main import parse
from evenhand.cli._methods import METHODS, Composed
from evenhand.cli._run import Run
from evenhand.local import Work
from evenhand.rounds import weighed
from evenhand.types import Algorithm, ClientData, Cohort, Key, Model, Params, Report, Upload

MODEL = eh.models.linear_regression(features=2)
# Rows with two labels of different loss, so that tilts over classes and over rows show.
LABELS = eh.models.from_functions(
    init=lambda key: jnp.zeros(2),
    apply=lambda params, x: x @ params,
    losses=lambda outputs, y: jnp.square(outputs - y.astype(jnp.float32)),
)
DATA = eh.data.from_arrays(np.zeros((6, 2), np.float32), np.arange(6), np.zeros(6, int), test_fraction=0.0)
ROWS = ClientData(
    jnp.array([[1.0, 2.0], [3.0, 4.0], [0.5, -1.0], [-1.0, 0.0]]),
    jnp.array([1.0, 5.0, 5.0, 1.0]),
    jnp.int32(0),
    jnp.int32(4),
    jnp.float32(1.0),
    4,
)


def two_steps(
    params: Params, data: ClientData, key: Key, correction: optax.GradientTransformation
) -> tuple[Params, optax.OptState]:
    """Two steps of size 1 along a constant gradient, so that a correction shows."""
    state = correction.init(params)
    anchor = params
    for _ in range(2):
        gradient = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.3), anchor)
        update, state = correction.update(gradient, state, params)
        params = jax.tree.map(jnp.subtract, params, update)
    return params, state


work = Work(MODEL, two_steps)


class Local(LocalOptions):
    """Local work that is always the solver above, with the loss of real work where a method changes that."""

    def work(self, model: Model) -> Work:
        return super().work(model) if model is LABELS else Work(model, two_steps, step_size=self.lr)


def two_rounds(algorithm: Algorithm) -> np.ndarray:
    """The global and a client's own parameters after two rounds with three clients, who send unlike things."""
    params = algorithm.model.init(jax.random.key(0))
    state, client = algorithm.init(params, 3), algorithm.init_client(params)
    memories: dict[int, object] = {}
    for loss in (1.0, 2.0):
        if algorithm.observe is not None:
            state = algorithm.observe(state, jnp.float32(loss))
        for index, phase in enumerate(algorithm.phases):
            message = phase.broadcast(state, jnp.int32(0))
            told = phase.report(message, client, ROWS)
            delta, client = phase.work(message, client, ROWS, jax.random.key(1))
            deltas = jax.tree.map(lambda d: jnp.stack([d, 0.5 * d + 0.1, 0.2 - d]), delta)
            losses = told.loss * jnp.array([1.0, 0.5, 0.1]) if phase.aggregator.needs_loss else jnp.ones(3)
            memory = memories.get(index, phase.aggregator.init(delta, 3))
            report = Report(jnp.full(3, told.weight), losses)
            cohort = Cohort.of(jnp.arange(3))
            weights, memory, _ = weighed(phase.aggregator, report, cohort, memory)
            uploads = Upload(deltas, weights, losses)
            keys = jax.random.key(3), jax.random.split(jax.random.key(4), 3)
            direction, memories[index] = reduce_uploads(
                phase.aggregator, uploads, cohort.present, memory, *keys
            )
            state, _ = phase.server(state, direction, jnp.int32(3), jax.random.key(2))
    served = algorithm.personal_params
    own = () if served is None else served(state, client)
    leaves = jax.tree.leaves((algorithm.global_params(state), own))
    return np.concatenate([np.ravel(leaf) for leaf in leaves])


def _fedtilt(
    lr: float = 0.1, steps: int | None = None, batch_size: int | None = 10, **more: float
) -> Algorithm:
    given = {"tilt_class": 1.0, "tilt_sample": 0.0, **more}
    epochs = 1 if steps is None else None
    work = eh.local.sgd(LABELS, lr, epochs=epochs, steps=steps, batch_size=batch_size)
    return algorithms.fedtilt(work, classes=6, **given)


GIVEN = {
    "fedavg --server-lr 0.7": algorithms.fedavg(work, server_opt=optax.sgd(0.7)),
    "fedprox --mu 0.4": algorithms.fedprox(work, mu=0.4),
    "fedprox --server-lr 0.7": algorithms.fedprox(work, mu=1.0, server_opt=optax.sgd(0.7)),
    "fedprox-adaptive --mu0 0.3": algorithms.fedprox_adaptive(work, mu0=0.3),
    "feddane --mu 0.4": algorithms.feddane(work, mu=0.4),
    "scaffold --server-lr 0.7": algorithms.scaffold(work, server_opt=optax.sgd(0.7)),
    "fedadam --server-lr 0.2 --b1 0.5 --b2 0.6 --tau 0.3": algorithms.fedavg(
        work, server_opt=server_opt.fedadam(0.2, b1=0.5, b2=0.6, tau=0.3)
    ),
    "fedyogi --server-lr 0.2 --b1 0.5 --b2 0.6 --tau 0.3": algorithms.fedavg(
        work, server_opt=server_opt.fedyogi(0.2, b1=0.5, b2=0.6, tau=0.3)
    ),
    "fedadagrad --server-lr 0.2 --b1 0.5 --tau 0.3": algorithms.fedavg(
        work, server_opt=server_opt.fedadagrad(0.2, b1=0.5, tau=0.3)
    ),
    "fedavgm --server-lr 0.2 --momentum 0.5": algorithms.fedavg(
        work, server_opt=server_opt.fedavgm(0.2, momentum=0.5)
    ),
    "qfedavg --q 0.5": algorithms.qfedavg(work, q=0.5, lipschitz=10.0),
    "qfedavg --lr 0.2": algorithms.qfedavg(work, q=1.0, lipschitz=5.0),
    "qfedsgd --q 0.5 --lr 0.2": algorithms.qfedsgd(MODEL, q=0.5, lipschitz=5.0),
    "afl --gamma-lambda 0.3 --lr 0.2": algorithms.afl(MODEL, gamma_w=0.2, gamma_lambda=0.3),
    "term --t 0.5": algorithms.term(work, t=0.5),
    "term --t -2": algorithms.term(work, t=-2.0),
    "term --running 0.5": algorithms.term(work, t=1.0, running=0.5),
    "delta-fl --theta 0.8": algorithms.delta_fl(work, theta=0.8),
    "delta-fl --nu 0.5": algorithms.delta_fl(work, theta=0.5, nu=0.5),
    "delta-fl --filtered": algorithms.delta_fl(work, theta=0.5, filtered=True),
    "delta-fl --filtered --no-strict": algorithms.delta_fl(work, theta=0.5, filtered=True, strict=False),
    "fedmgda --epsilon 0.5": algorithms.fedmgda(work, epsilon=0.5),
    "fedmgda --server-lr 0.5": algorithms.fedmgda(work, epsilon=0.1, server_opt=optax.sgd(0.5)),
    "qmaml --q 2 --lr 0.2 --finetune-steps 2": algorithms.qmaml(
        MODEL, q=2.0, step_size=0.2, finetune_steps=2
    ),
    "fedtilt --tilt-class 2 --tilt-sample -1 --lr 0.2": _fedtilt(tilt_class=2.0, tilt_sample=-1.0, lr=0.2),
    "fedtilt --tilt-server 0.5": _fedtilt(tilt_server=0.5),
    "fedtilt --prox-mu 2 --steps 3 --batch-size all": _fedtilt(prox_mu=2.0, steps=3, batch_size=None),
    "fedtilt --prox-mu inf": _fedtilt(prox_mu=float("inf")),
}


def built(words: str) -> Algorithm:
    """The method that ``evenhand run`` makes of these words."""
    command = parse(["run", *words.split()])
    assert isinstance(command, Run)
    assert command.method.name == words.split()[0]
    model = LABELS if words.startswith("fedtilt") else MODEL
    return command.method.build(model, Local(**vars(command.local)), DATA)


@pytest.mark.parametrize("words", GIVEN)
def test_hyper_parameters_arrive(words: str) -> None:
    result = two_rounds(built(words))
    np.testing.assert_array_equal(result, two_rounds(GIVEN[words]))
    assert not np.array_equal(result, two_rounds(built(words.split()[0])))


@pytest.mark.parametrize("words", ["afl --epochs 7", "qfedsgd --steps 3", "qmaml --batch-size 4"])
def test_local_work_that_a_method_would_ignore_is_refused(words: str) -> None:
    with pytest.raises(eh.EvenhandError, match=f"leave {words.split()[1]} out"):
        built(words)
    built(words.split()[0])


def test_none_is_missing() -> None:
    """Expressions have a file of tests."""
    assert {words.split()[0] for words in GIVEN} == {method.name for method in METHODS} - {Composed.name}
    # Each default is the library's where the library has one.
    for name, factory in (("fedadam", server_opt.fedadam), ("fedavgm", server_opt.fedavgm)):
        method = parse(["run", name]).method
        for parameter in inspect.signature(factory).parameters.values():
            if parameter.default is not inspect.Parameter.empty and parameter.name != "learning_rate":
                assert vars(method)[parameter.name] == parameter.default
