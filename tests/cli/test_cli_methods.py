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
from evenhand.cli._main import parse
from evenhand.cli._methods import METHODS
from evenhand.cli._run import Run
from evenhand.types import Algorithm, ClientData, Key, Params

MODEL = eh.models.linear_regression(features=2)
ROWS = ClientData(
    jnp.array([[1.0, 2.0], [3.0, 4.0]]),
    jnp.array([1.0, 5.0]),
    jnp.int32(0),
    jnp.int32(2),
    jnp.float32(1.0),
    2,
)


def solver(
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


def two_rounds(algorithm: Algorithm) -> np.ndarray:
    """The global parameters after two rounds with one client."""
    params = algorithm.model.init(jax.random.key(0))
    state, client = algorithm.init(params, 3), algorithm.init_client(params)
    for loss in (1.0, 2.0):
        if algorithm.observe is not None:
            state = algorithm.observe(state, jnp.float32(loss))
        for phase in algorithm.phases:
            message = phase.broadcast(state, jnp.int32(0))
            direction, client = phase.work(message, client, ROWS, jax.random.key(1))
            state, _ = phase.server(state, direction, jnp.int32(1), jax.random.key(2))
    leaves = jax.tree.leaves(algorithm.global_params(state))
    return np.concatenate([np.ravel(leaf) for leaf in leaves])


GIVEN = {
    "fedavg --server-lr 0.7": algorithms.fedavg(MODEL, solver=solver, server_opt=optax.sgd(0.7)),
    "fedprox --mu 0.4": algorithms.fedprox(MODEL, mu=0.4, solver=solver),
    "fedprox --server-lr 0.7": algorithms.fedprox(MODEL, mu=1.0, solver=solver, server_opt=optax.sgd(0.7)),
    "fedprox-adaptive --mu0 0.3": algorithms.fedprox_adaptive(MODEL, mu0=0.3, solver=solver),
    "feddane --mu 0.4": algorithms.feddane(MODEL, mu=0.4, solver=solver),
    "scaffold --server-lr 0.7": algorithms.scaffold(MODEL, solver=solver, server_opt=optax.sgd(0.7)),
    "fedadam --server-lr 0.2 --b1 0.5 --b2 0.6 --tau 0.3": algorithms.fedavg(
        MODEL, solver=solver, server_opt=server_opt.fedadam(0.2, b1=0.5, b2=0.6, tau=0.3)
    ),
    "fedyogi --server-lr 0.2 --b1 0.5 --b2 0.6 --tau 0.3": algorithms.fedavg(
        MODEL, solver=solver, server_opt=server_opt.fedyogi(0.2, b1=0.5, b2=0.6, tau=0.3)
    ),
    "fedadagrad --server-lr 0.2 --b1 0.5 --tau 0.3": algorithms.fedavg(
        MODEL, solver=solver, server_opt=server_opt.fedadagrad(0.2, b1=0.5, tau=0.3)
    ),
    "fedavgm --server-lr 0.2 --momentum 0.5": algorithms.fedavg(
        MODEL, solver=solver, server_opt=server_opt.fedavgm(0.2, momentum=0.5)
    ),
}


def built(words: str) -> Algorithm:
    """The method that ``evenhand run`` makes of these words."""
    command = parse(["run", *words.split()])
    assert isinstance(command, Run)
    assert command.method.name == words.split()[0]
    return command.method.build(MODEL, solver)


@pytest.mark.parametrize("words", GIVEN)
def test_hyper_parameters_arrive(words: str) -> None:
    result = two_rounds(built(words))
    np.testing.assert_array_equal(result, two_rounds(GIVEN[words]))
    assert not np.array_equal(result, two_rounds(built(words.split()[0])))


def test_none_is_missing() -> None:
    assert {words.split()[0] for words in GIVEN} == {method.name for method in METHODS}
    # Each default is the library's where the library has one.
    for name, factory in (("fedadam", server_opt.fedadam), ("fedavgm", server_opt.fedavgm)):
        method = parse(["run", name]).method
        for parameter in inspect.signature(factory).parameters.values():
            if parameter.default is not inspect.Parameter.empty and parameter.name != "learning_rate":
                assert vars(method)[parameter.name] == parameter.default
