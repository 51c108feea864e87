"""Clients that factorise matrices on a CPU: a run ends, and stacks of matrices have the numbers of single ones."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import linalg

from nursery import Nursery

PROGRAM = """
import faulthandler
import jax, jax.numpy as jnp
import evenhand as eh

faulthandler.dump_traceback_later(120, exit=True)
method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, steps=1, batch_size=4))
(phase,) = method.phases

def work(message, state, data, key):
    delta, state = phase.work(message, state, data, key)
    several = jax.random.normal(key, (8, 40, 40))
    values = [jnp.linalg.eigh(a @ a.T)[0] for a in several]
    return jax.tree.map(lambda leaf: leaf + 1e-9 * sum(values)[0], delta), state

method = method._replace(phases=(phase._replace(work=work),))
run = eh.simulate(method, eh.testing.toy_data(), rounds=20, cohort=8, eval_every=20)
print(run.info["devices"], run.info["rounds"])
"""


def test_a_run_ends_whose_clients_factorise_matrices(nursery: Nursery, tmp_path: Path) -> None:
    """On two cores, it waited for itself in each of ten trials with JAX 0.10.2, before stacks came in pieces."""
    shown = tmp_path / "shown"
    assert nursery.start("program", source=PROGRAM, shown=shown).wait() == 0
    assert shown.read_text().split() == ["2", "20"]


FUNCTIONS: dict[str, Callable[[jax.Array], Any]] = {
    "cholesky": lambda a: jnp.linalg.cholesky(a + a.mT + 60 * jnp.eye(a.shape[-1])),
    "eigh": lambda a: jnp.linalg.eigh(a + a.mT),
    "qr": jnp.linalg.qr,
    "schur": linalg.schur,
    "solve": lambda a: jnp.linalg.solve(a + 9 * jnp.eye(a.shape[-1]), a[:, :2]),
    "svd": lambda a: jnp.linalg.svd(a[:, :20], full_matrices=False),
    "tridiagonal": lambda a: lax.linalg.tridiagonal_solve(a[0], a[0] + 9, a[0], a[:, :2]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_stack_has_the_numbers_of_its_matrices(name: str) -> None:
    """To the bits, in a stack of one axis or two that comes in pieces, the last of them shorter."""
    stack = jax.random.normal(jax.random.key(0), (3, 30, 30))
    function = jax.jit(FUNCTIONS[name])
    single = [function(a) for a in stack]
    together = jax.jit(jax.vmap(FUNCTIONS[name]))(stack)
    nested = jax.jit(jax.vmap(jax.vmap(FUNCTIONS[name])))(stack[None])
    for i, alone in enumerate(single):
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a, b[i]), alone, together)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a, b[0, i]), alone, nested)


@pytest.mark.skipif(
    not version("jaxlib").startswith(("0.10.", "0.11.0")), reason="later versions divide no stack"
)
def test_no_stack_that_jax_would_divide_comes_whole() -> None:
    """Small ones do, as does an empty one."""

    def sizes(*shape: int) -> list[int]:
        """How many matrices LAPACK gets in each of the calls."""
        lowered = jax.jit(jnp.linalg.cholesky).lower(jnp.zeros(shape)).as_text()
        calls = re.findall(r"@lapack_spotrf_ffi\(.*-> \(tensor<([0-9x]*)xf32>", lowered)
        return [math.prod(map(int, call.split("x")[:-2])) for call in calls]

    assert sizes(7, 30, 30) == sizes(2, 7, 30, 30) == sizes(30, 30) == sizes(1, 30, 30) == [1]
    assert sizes(100, 3, 3) == [100] and sizes(300, 3, 3) == [54, 246]
    assert sizes(0, 30, 30) == [0]


def test_stacks_without_numbers_have_empty_results() -> None:
    assert jnp.linalg.cholesky(jnp.zeros((9000, 0, 0))).shape == (9000, 0, 0)
    assert jnp.linalg.svd(jnp.zeros((9000, 3, 0)), full_matrices=False)[1].shape == (9000, 0)
    assert jnp.linalg.solve(jnp.ones((900, 1, 1)), jnp.zeros((900, 1, 0))).shape == (900, 1, 0)
