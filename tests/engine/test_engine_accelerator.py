"""What the engine does on an accelerator, which a fixture plays: clients side by side, and batches copied once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand._jaxpr.programs import UnknownForm, footprint
from evenhand.local._batches import rows_at
from evenhand.simulation import Execution, Job, setup

CLIENTS, ROWS, FEATURES = 1_100, 8, 20


class Lanes(Protocol):
    def __call__(self, method: eh.Algorithm, cohort: int, limit: int = 2**34) -> int: ...


@pytest.fixture
def lanes() -> Lanes:
    """How many clients train side by side on a device with so many bytes of memory."""

    def chosen(method: eh.Algorithm, cohort: int, limit: int = 2**34) -> int:
        device = SimpleNamespace(memory_stats=lambda: {"bytes_limit": limit})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jax, "default_backend", lambda: "gpu")
            patch.setattr(jax, "local_devices", lambda: [device])
            job = Job(method, data(), rounds=1, cohort=cohort, execution=Execution(devices=1, stream=False))
            return setup.set_up(job).program.lanes

    return chosen


def data() -> eh.data.FederatedDataset:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((CLIENTS * ROWS, FEATURES), np.float32)
    return eh.data.from_arrays(x, rng.integers(0, 2, len(x)), np.arange(len(x)) // ROWS, test_fraction=0.0)


def method(hidden: tuple[int, ...] = (), batch: int = 4) -> eh.Algorithm:
    model = eh.models.mlp(FEATURES, classes=2, hidden=hidden)
    return eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1, batch_size=batch))


WIDE = (200, 200)
"""Hidden units of a model with 44,802 parameters."""


def test_small_models_train_by_the_thousand_and_large_ones_by_the_hundred(lanes: Lanes) -> None:
    assert lanes(method(), 1_100) == 1_024 and lanes(method(), 300) == 300
    assert lanes(method(WIDE), 1_100) == 128 and lanes(method(WIDE), 100) == 100


def needed(method: eh.Algorithm) -> int:
    """The bytes that the engine counts for a client."""
    job = Job(method, data(), rounds=1, cohort=1, execution=Execution(lanes=1, devices=1, stream=False))
    ready = setup.set_up(job)
    state = ready.state._replace(clients=jax.tree.map(lambda leaf: leaf[0], ready.state.clients))
    return setup._memory_of_work(ready.program, state, ready.rows, ready.keys)


@pytest.mark.parametrize("batch", [1, 8])
def test_the_work_of_all_lanes_fits_half_of_the_memory(lanes: Lanes, batch: int) -> None:
    size = needed(method(WIDE, batch))
    for count in (1, 7, 40):
        assert lanes(method(WIDE, batch), 100, limit=2 * count * size) == count
        assert lanes(method(WIDE, batch), 100, limit=2 * count * size - 2) == max(1, count - 1)


def test_what_a_client_needs_is_near_what_the_compiler_takes() -> None:
    """Oracle: XLA's own plan of the buffers of 64 gradients side by side, for batches that outweigh the parameters.

    The count runs operations one by one, and so exceeds the plan; parameters alone would be a tenth of it.
    """
    model = eh.models.mlp(FEATURES, classes=2, hidden=(50, 50))
    rows, lanes = 512, 64
    x, y = jnp.ones((lanes, rows, FEATURES)), jnp.zeros((lanes, rows), int)
    params = model.init(jax.random.key(0))
    many = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (lanes, *leaf.shape)), params)

    def step(params: eh.types.Params, x: jax.Array, y: jax.Array) -> eh.types.Params:
        return jax.grad(lambda p: model.losses(model.apply(p, x), y).mean())(params)

    plan = jax.jit(jax.vmap(step)).lower(many, x, y).compile().memory_analysis()
    assert plan is not None
    planned = plan.temp_size_in_bytes / lanes
    counted = footprint(jax.make_jaxpr(step)(params, x[0], y[0]))
    assert 0.7 * planned <= counted <= 3 * planned
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(params)) < 0.1 * planned


def test_a_program_of_an_unknown_form_counts_eight_models_a_client(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(program: object) -> int:
        raise UnknownForm("another JAX")

    monkeypatch.setattr(setup, "footprint", unknown)
    numbers = 20 * 200 + 200 + 200 * 200 + 200 + 200 * 2 + 2
    assert lanes(method(WIDE), 100, limit=2 * 5 * 8 * 4 * numbers) == 5


def test_the_largest_of_a_methods_phases_counts() -> None:
    """Ditto trains a second model beside the first; a second phase may need more than the first one."""
    work = eh.local.sgd(eh.models.mlp(FEATURES, classes=2, hidden=WIDE), 0.1, epochs=1, batch_size=4)
    plain = needed(eh.algorithms.fedavg(work))
    beside = needed(eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=0.1))
    assert 1.2 * plain < beside < 3 * plain


def test_a_batch_is_copied_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows behind a barrier are those at the positions; the barrier keeps the drawing of positions out of kernels.

    On an H200, a round of the CIFAR-10 CNN without it took 63 ms instead of 11.
    """
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    x, y = jnp.arange(20.0).reshape(10, 2), jnp.arange(10)
    client = eh.types.ClientData(x, y, jnp.int32(3), jnp.int32(5), jnp.float32(1), 5)
    positions = jnp.array([4, 0, 2])
    trace = jax.make_jaxpr(lambda at: rows_at(client, at))(positions)
    last = trace.jaxpr.eqns[-1]
    assert last.primitive.name == "optimization_barrier" and last.outvars == trace.jaxpr.outvars
    for rows, whole in zip(rows_at(client, positions), (x, y), strict=True):
        np.testing.assert_array_equal(rows, np.asarray(whole)[[7, 3, 5]])
