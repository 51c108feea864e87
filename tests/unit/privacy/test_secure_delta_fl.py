"""Delta-FL by secure sums: a round is the paper's in NumPy, and the server gets no client's loss and no update."""

from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand import local, rounds, tree
from evenhand.aggregators import reduce_uploads
from evenhand.privacy import dp_delta_fl, histogram, secure_delta_fl
from evenhand.secure import _fixed_point
from evenhand.simulation import Execution, Job, twin
from evenhand.simulation.setup import set_up
from evenhand.streams import Purpose, stream
from evenhand.types import Upload

pytestmark = pytest.mark.filterwarnings("ignore:No client has validation examples to choose a level on")

MODEL, DATA = eh.testing.toy_model(), eh.testing.toy_data()
RATE, LARGEST = 0.5, 4.0
WORK = eh.local.sgd(MODEL, RATE, epochs=1)
SIZES = np.asarray(DATA.train.sizes)
N = DATA.num_clients
BY_SIZE = eh.sampling.uniform()


def method(theta: Any = 0.5, bins: int = 4096, **how: Any) -> Any:
    return secure_delta_fl(WORK, theta=theta, largest_loss=LARGEST, bins=bins, **how)


def run(algorithm: Any, count: int = 1, masks: bool = False) -> eh.Run:
    return eh.simulate(algorithm, DATA, rounds=count, eval_every=count, masks=masks)


def flat(params: Any) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(params)])


START = flat(MODEL.init(stream(jax.random.key(0), Purpose.INIT)))
"""The parameters of all runs before the first round."""


# --- Algorithm 1 in NumPy ----------------------------------------------------------------------------------------


class Local(NamedTuple):
    """A client's loss, and what one full step changes in its model."""

    loss: float
    bias: np.ndarray
    kernel: np.ndarray

    @property
    def step(self) -> np.ndarray:
        return np.concatenate([self.bias, self.kernel.ravel()])


def local_step(params: np.ndarray, k: int) -> Local:
    """Softmax regression, written down."""
    rows = slice(*DATA.train.offsets[k : k + 2])
    x, y = np.asarray(DATA.train.x[rows], np.float64), np.asarray(DATA.train.y[rows])
    bias, kernel = params[:3], params[3:].reshape(4, 3)
    scores = x @ kernel + bias
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    loss = -np.log(p[np.arange(len(y)), y]).mean()
    gradient = (p - np.eye(3)[y]) / len(y)
    return Local(loss, -RATE * gradient.sum(axis=0), -RATE * x.T @ gradient)


def edge_of(losses: np.ndarray, theta: float, bins: int) -> float:
    """Algorithm 2 without noise: the first edge below which the count is nearest to the target; 0 for everybody."""
    if theta == 1.0:
        return 0.0
    edges = np.linspace(0.0, LARGEST, bins + 1)[1:]
    clipped = np.clip(losses, 0.0, LARGEST)
    below = np.array([(clipped < edge).sum() for edge in edges])
    below[-1] = len(losses)
    return float(edges[np.argmin(np.round(np.abs(below - (1 - theta) * len(losses)), 9))])


def rounds_of(
    thetas: tuple[float, ...], count: int, bins: int, weights: np.ndarray, shared: bool = True
) -> tuple[list[np.ndarray], list[list[float]]]:
    """``(models, edges of the last round)`` by the paper's loop; ``shared``: one histogram for all levels."""
    models, edges = [START] * len(thetas), list[list[float]]()
    for _ in range(count):
        done = [[local_step(params, k) for k in range(N)] for params in models]
        losses = np.array([[client.loss for client in level] for level in done])
        scores = np.repeat(losses.mean(axis=0)[None], len(thetas), axis=0) if shared else losses
        found = [edge_of(score, theta, bins) for score, theta in zip(scores, thetas, strict=True)]
        for j, (score, edge) in enumerate(zip(scores, found, strict=True)):
            kept = weights * (score >= edge)
            steps = np.array([client.step for client in done[j]])
            models[j] = models[j] + kept @ steps / kept.sum()
        edges.append(found)
    return models, edges


@cache
def alone(theta: Any, bins: int, **how: Any) -> eh.Run:
    return run(method(theta, bins, **how), 3)


@pytest.mark.parametrize(
    ("theta", "bins", "sampling"),
    [(0.5, 4096, None), ((1 / 3,), 4096, BY_SIZE), (0.5, 8, BY_SIZE)],
    ids=["equal weights", "a tuple of one", "coarse bins"],
)
def test_rounds_are_those_of_algorithm_1(theta, bins, sampling):
    """By default all clients count equally, as in the paper."""
    weights = np.ones(N) if sampling is None else SIZES
    found = alone(theta, bins, **({} if sampling is None else {"sampling": sampling}))
    fractions = theta if isinstance(theta, tuple) else (theta,)
    (expected,), edges = rounds_of(fractions, 3, bins, weights)
    np.testing.assert_allclose(flat(found.params), expected, atol=5e-6)
    name = f"quantile (theta={fractions[0]:g})" if isinstance(theta, tuple) else "quantile"
    np.testing.assert_allclose(found.per_round[name], np.ravel(edges), rtol=1e-6)
    (everybody,), _ = rounds_of((1.0,), 3, bins, weights)
    assert np.abs(flat(found.params) - everybody).max() > 1e-2


def test_with_fine_bins_it_is_the_filter_that_shows_its_losses():
    """The quantile is at most a bin above the last loss that is left out, and half of the clients count."""
    found = alone(0.5, 4096)
    equal = eh.sampling.uniform(weighted=False)
    filtered = run(eh.algorithms.delta_fl(WORK, theta=0.5, filtered=True, sampling=equal), 3)
    np.testing.assert_allclose(flat(found.params), flat(filtered.params), atol=5e-6)
    assert found.per_round["tail_weight"].tolist() == [3.0] * 3
    losses = np.sort([local_step(START, k).loss for k in range(N)])
    assert 0 < found.per_round["quantile"][0] - losses[2] <= LARGEST / 4096
    coarse = alone(0.5, 8)
    assert set(coarse.per_round["tail_weight"].tolist()) - {3.0}


def test_theta_of_one_is_fedavg_in_one_secure_sum():
    found = run(method(1.0, sampling=BY_SIZE), 3, masks=True)
    plain = run(eh.algorithms.fedavg(WORK), 3)
    np.testing.assert_allclose(flat(found.params), flat(plain.params), atol=5e-6)
    assert np.abs(flat(alone(0.5, 8).params) - flat(plain.params)).max() > 1e-2
    assert (found.info["secure_sums"], alone(0.5, 8).info["secure_sums"]) == (3, 6)
    # 15 + 1 numbers of 64 bits; 2 b - 2 counts; and how many clients there are, in either sum.
    assert found.info["floats"]["up"] == 2 * (15 + 1 + 1)
    assert alone(0.5, 8).info["floats"]["up"] == 2 * (15 + 1 + 1) + (2 * 8 - 2 + 1)


def uploads_of(algorithm: Any, phase: int) -> Upload:
    """What could come of the clients' work, drawn at random."""
    rows = jnp.asarray(DATA.train.x), jnp.asarray(DATA.train.y)
    shapes = rounds.wires(algorithm, algorithm.model.init(jax.random.key(0)), rows, 17, N)
    rng = np.random.default_rng(phase)
    deltas = jax.tree.map(
        lambda leaf: jnp.asarray(rng.uniform(0.0, LARGEST, (N, *leaf.shape)), jnp.float32),
        shapes[phase].delta,
    )
    return Upload(deltas, jnp.ones(N), jnp.full(N, jnp.nan))


@pytest.mark.parametrize("phase", [0, 1], ids=["counts", "updates"])
def test_masks_change_no_bit_of_either_sum(phase):
    directions, absent = list[Any](), (1, 4)
    algorithm = method((0.5, 0.25), 16, sigma=2.0, scale=3)
    masked, given = algorithm.phases[phase].aggregator, uploads_of(algorithm, phase)
    for bare in (True, False):
        rule = masked.unmasked if bare else masked
        present = jnp.asarray([k not in absent for k in range(N)])
        state = rule.init(jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), given.delta), N)
        keys = jax.random.split(jax.random.key(1), N)
        directions.append(reduce_uploads(rule, given, present, state, jax.random.key(2), keys)[0])
        assert rule.streams == bare
    assert np.array_equal(flat(directions[0]), flat(directions[1]))
    assert flat(directions[0]).any()


# --- the two exchanges by themselves -----------------------------------------------------------------------------


def test_clients_add_the_noise_and_the_scale_that_were_given_to_their_counts():
    rule = method(0.5, 16, sigma=2.0, scale=5).phases[0].aggregator
    counting = histogram(16, largest=LARGEST, sigma=2.0, scale=5)
    for k in range(3):
        key, loss = jax.random.key(k), jnp.float32(0.7 + k)
        words, one = rule.lift(Upload(loss, jnp.float32(1), jnp.float32(0)), (), key)
        assert np.array_equal(words, counting.encode(loss, key)) and one == 1
        plain = counting._replace(sigma=0.0).encode(loss, key)
        assert not np.array_equal(words, plain)


def test_noisy_counts_below_zero_are_read_as_such():
    """Sums modulo 2**32: with -1 as 4,294,967,295 clients, the quantile would be in the first bin."""
    rule = method(0.5, 4).phases[0].aggregator
    counts = np.array([-1, 2, 3, 2, 1, 5], np.int32)  # of the bins, and of both halves
    edge, _ = rule.lower((jnp.asarray(counts.view(np.uint32)), jnp.uint32(6)), (), jax.random.key(0))
    below = np.array([-1, 1, 1 + 3, 6])
    assert float(edge) == 1.0 + np.argmin(np.abs(below - 3)) == 3.0


def test_a_tail_with_nobody_in_it_keeps_its_model_and_its_optimiser():
    algorithm = method((1.0, 0.5), server_opt=optax.sgd(1.0, momentum=0.5))
    state = algorithm.init(algorithm.model.init(jax.random.key(0)), N)
    phase = algorithm.phases[1]
    direction = jax.tree.map(
        lambda leaf: jnp.ones(leaf.shape[1:], jnp.float32), uploads_of(algorithm, 1).delta
    )
    empty = direction[1]._replace(weight=jnp.float32(0.0))
    after, info = phase.server(state, (direction[0], empty), jnp.int32(N), jax.random.key(0))
    for part in (0, 1):
        moved = np.abs(flat(after.params[part]) - flat(state.params[part])).max()
        assert (moved > 1e-3) == (part == 0)
        before, then = (flat(kept.optimiser[part]) for kept in (state, after))
        assert np.array_equal(before, then) == (part == 1)
    assert (info["tail_weight (theta=1)"], info["tail_weight (theta=0.5)"]) == (1.0, 0.0)


def test_counting_losses_takes_steps_and_no_gradient():
    rows = DATA.train
    data = eh.types.ClientData(
        *map(jnp.asarray, (rows.x, rows.y, 0, rows.sizes[0], 1.0)), capacity=int(rows.sizes.max())
    )
    counting, training = (phase.effort(data) for phase in method(0.5).phases)
    assert counting == (rows.sizes[0], 0) and training.rows > 0


def test_a_loss_that_is_no_number_counts_as_the_largest():
    """Its client is counted in the last bin, rather than left out of the sum."""
    broken = MODEL._replace(losses=lambda outputs, y: MODEL.losses(outputs, y) * jnp.nan)
    rows = DATA.train
    data = eh.types.ClientData(
        *map(jnp.asarray, (rows.x, rows.y, 0, rows.sizes[0], 1.0)), capacity=int(rows.sizes.max())
    )
    for model, largest in ((broken, True), (MODEL, False)):
        algorithm = secure_delta_fl(WORK._replace(model=model), theta=0.5, largest_loss=LARGEST)
        message = algorithm.phases[0].broadcast(
            algorithm.init(MODEL.init(jax.random.key(0)), N), jnp.int32(0)
        )
        loss, _ = algorithm.phases[0].work(message, (), data, jax.random.key(0))
        assert (float(loss) == LARGEST) == largest


def test_it_promises_no_privacy_as_only_one_of_its_sums_is_noisy():
    assert method(0.5, sigma=2.0).privacy is None
    with pytest.raises(eh.EvenhandError, match="uses a secure sum without noise"):
        eh.privacy.private(method(0.5, sigma=2.0, sampling=eh.sampling.fixed(0.5)))


@pytest.mark.parametrize(
    ("words", "how"),
    [
        ("above 0 and at most 1", {"theta": 0.0}),
        ("different levels", {"theta": (0.5, 0.5)}),
        ("power of two", {"bins": 12}),
        ("above 0", {"largest_loss": 0.0}),
        (r"8192 clients could wrap around modulo 2\*\*32", {"scale": 2**18}),
        ("could wrap around", {"scale": 2**18 - 30_000, "sigma": 4096.0}),  # by ten deviations of the noise
        ("65536 clients|65,535 clients", {"cohort": 65536}),
        (
            "guarantees privacy",
            {"work": eh.privacy.dp_sgd(MODEL, 0.1, clip=1.0, noise_multiplier=1.0, rate=0.5, steps=2)},
        ),
        (r"sampling=\(\): give a value", {"sampling": ()}),
        (r"server_opt=\(\): give a value", {"server_opt": ()}),
    ],
)
def test_what_makes_no_sense_is_refused(words, how):
    given = {"work": WORK, "largest_loss": LARGEST, **how}
    with pytest.raises(eh.EvenhandError, match=words):
        secure_delta_fl(given.pop("work"), **given)


# --- several levels ----------------------------------------------------------------------------------------------


LEVELS = (1.0, 2 / 3, 1 / 3)


def test_several_levels_share_the_quantiles_of_their_mean_loss():
    found = run(method((2 / 3, 1 / 3, 1.0)), 4)
    expected, edges = rounds_of(LEVELS, 4, 4096, np.ones(N))
    for j, theta in enumerate(LEVELS):
        np.testing.assert_allclose(flat(found.params[j]), expected[j], atol=5e-6)
        name = f"quantile (theta={theta:g})"
        np.testing.assert_allclose(found.per_round[name], [row[j] for row in edges], rtol=1e-6)
    alone, _ = rounds_of(LEVELS, 4, 4096, np.ones(N), shared=False)
    assert max(np.abs(flat(found.params[j]) - alone[j]).max() for j in range(3)) > 1e-2


def test_several_levels_have_the_form_of_those_that_show_their_losses():
    found, shown = method((0.5, 0.25)), eh.algorithms.delta_fl_levels(WORK, theta=(0.5, 0.25))
    assert list(found.model.metrics) == list(shown.model.metrics)
    start = found.model.init(jax.random.key(0))
    served = [each.global_params(each.init(start, N)) for each in (found, shown)]
    assert jax.tree.structure(served[0]) == jax.tree.structure(served[1])
    assert (found.name, shown.name) == (
        "secure_delta_fl(theta=0.5, 0.25)",
        "delta_fl_levels(theta=0.5, 0.25)",
    )


# --- everything that the server receives, searched for a loss or an update of one client --------------------------


class Seen(NamedTuple):
    """What crosses the wire to the server, or is computed there, and what it must not find in it.

    Attributes:
      received: by the server, arrays as they are.
      losses: of each client in each round.
      updates: likewise, of the kernel, in one row.
    """

    received: list[np.ndarray]
    losses: list[float]
    updates: list[np.ndarray]


def seen_in(make: Any, monkeypatch: Any, count: int = 2) -> Seen:
    """Plays a method's rounds by the readable twin; what ``make`` makes of local work must be that method.

    Received are reports; what clients add to sums: as it is where it streams, else masked; totals, and directions; and
    the differences of the directions of any two levels.
    """
    seen = Seen([], [], [])

    def received(*arrays: Any) -> None:
        jax.debug.callback(
            lambda *leaves: seen.received.extend(map(np.asarray, leaves)), *jax.tree.leaves(arrays)
        )

    def trained(loss: Any, update: Any) -> None:
        seen.losses.append(float(loss))
        seen.updates.append(np.asarray(update))

    def solve(params: Any, data: Any, key: Any, correction: Any) -> Any:
        after, drawn = WORK.solve(params, data, key, correction)
        kernel = (after["w"] - params["w"]).reshape(-1)
        jax.debug.callback(trained, local.full_loss(MODEL, params, data), kernel)
        return after, drawn

    def exchanged(limbs: Any, present: Any, key: Any) -> Any:
        uploads, total = original(limbs, present, key)
        received(uploads, total)
        return uploads, total

    def watched(phase: Any) -> Any:
        rule = phase.aggregator

        def report(*arguments: Any) -> Any:
            own = phase.report(*arguments)
            received(own)
            return own

        def lift(upload: Any, public: Any, key: Any) -> Any:
            own = rule.lift(upload, public, key)
            if rule.streams:
                received(own)
            return own

        def lower(total: Any, state: Any, key: Any) -> Any:
            direction, after = rule.lower(total, state, key)
            received(total, direction, after)
            if type(direction) is tuple:  # of the levels, whose sums the server can subtract
                received(*(tree.subtract(one, other) for one, other in combinations(direction, 2)))
            return direction, after

        return phase._replace(report=report, aggregator=rule._replace(lift=lift, lower=lower))

    original = _fixed_point._exchanged
    monkeypatch.setattr(_fixed_point, "_exchanged", exchanged)
    algorithm = make(WORK._replace(solve=solve))
    algorithm = algorithm._replace(phases=tuple(map(watched, algorithm.phases)))
    setup = set_up(Job(algorithm, DATA, rounds=count, execution=Execution(masks=True)))
    state, _ = twin.run_rounds(setup.program, setup.state, setup.rows, setup.keys, 0, count)
    jax.effects_barrier()
    monkeypatch.undo()
    engine = run(make(WORK), count)
    np.testing.assert_allclose(flat(algorithm.global_params(state.server)), flat(engine.params), atol=1e-6)
    assert len(seen.losses) in (count * N, 2 * count * N)  # once for each level
    return seen


FRACTION = eh.secure.fixed_point().fraction


def readings(array: np.ndarray) -> list[np.ndarray]:
    """The numbers of an array, in each way in which they could be meant."""
    if array.dtype != np.uint32:
        return [np.asarray(array, np.float64).reshape(-1)]
    words, ways = array.reshape(-1), [array.reshape(-1).astype(np.float64)]
    if array.ndim and array.shape[-1] == 4:
        places = np.uint64(1) << (np.arange(4, dtype=np.uint64) * np.uint64(16))
        whole = (array.astype(np.uint64) * places).sum(axis=-1).view(np.int64).reshape(-1)
        ways.append(whole * 2.0**-FRACTION)
    if array.ndim and array.shape[-1] == 2:
        words = (array[..., 0] | array[..., 1] << 16).astype(np.uint32).reshape(-1)
    with np.errstate(invalid="ignore"):  # words that are no floats
        ways += [words.view(np.int32).astype(np.float64), words.view(np.float32).astype(np.float64)]
    return [np.where(np.isfinite(way), way, 0.0) for way in ways]


def contained(rows: list[np.ndarray], sought: np.ndarray) -> np.ndarray:
    """Which of some vectors, or a multiple of it, is somewhere among rows of numbers; bool ``(vectors,)``."""
    units = sought / np.linalg.norm(sought, axis=1, keepdims=True)
    found = np.zeros(len(sought), bool)
    for row in rows:
        if row.size >= sought.shape[1]:
            windows = np.lib.stride_tricks.sliding_window_view(row, sought.shape[1])
            lengths = np.linalg.norm(windows, axis=1, keepdims=True)
            cosines = windows @ units.T / np.where(lengths > 0, lengths, 1.0)
            found |= (np.abs(cosines) > 1 - 5e-7).any(axis=0)
    return found


def found_in(seen: Seen, counting: Any) -> tuple[int, int]:
    """How many losses and how many updates of single clients there are in what the server received.

    A loss is there if a number is equal to it, or a row of counts is that of its bin alone.
    """
    rows = [way for array in seen.received for way in readings(array)]
    losses, keys = np.array(seen.losses), jax.random.split(jax.random.key(0), len(seen.losses))
    paths = jax.jit(jax.vmap(counting.encode))(jnp.asarray(losses, jnp.float32), keys)
    equal = np.abs(np.concatenate(rows)[:, None] - losses) <= 1e-6 * np.abs(losses)
    counted = contained(rows, np.asarray(paths, np.float64))
    return int((equal.any(axis=0) | counted).sum()), int(contained(rows, np.array(seen.updates)).sum())


def unmasked(algorithm: Any) -> Any:
    """The method with sums that have no masks to draw."""
    return algorithm._replace(
        phases=tuple(phase._replace(aggregator=phase.aggregator.unmasked) for phase in algorithm.phases)
    )


COUNTING = histogram(64, largest=LARGEST, sigma=0.0)
SECRET = {
    "secure_delta_fl": lambda work: secure_delta_fl(work, theta=0.5, largest_loss=LARGEST, bins=64),
    "with levels and noise": lambda work: secure_delta_fl(
        # More noise would leave one client in a tail in some round, whose update is then the sum.
        work,
        theta=(5 / 6, 0.5),
        largest_loss=LARGEST,
        bins=64,
        sigma=2.0,
        scale=50,
    ),
    "dp_delta_fl, noise at the clients": lambda work: dp_delta_fl(
        work,
        theta=0.5,
        largest_loss=LARGEST,
        bins=64,
        clip=0.5,
        noise_multiplier=0.5,
        rate=1.0,
        at_server=False,
        fewest=N,
    ),
}
OPEN = {
    "delta_fl": lambda work: eh.algorithms.delta_fl(work, theta=0.5, filtered=True),
    "without masks": lambda work: unmasked(secure_delta_fl(work, theta=0.5, largest_loss=LARGEST, bins=64)),
}


@pytest.mark.parametrize("name", SECRET)
def test_nothing_that_the_server_receives_is_a_loss_or_an_update_of_one_client(name, monkeypatch):
    seen = seen_in(SECRET[name], monkeypatch)
    assert sum(array.size for array in seen.received) > 1000
    assert found_in(seen, COUNTING) == (0, 0)


@pytest.mark.parametrize("name", OPEN)
def test_the_search_finds_losses_and_updates_where_the_server_does_see_them(name, monkeypatch):
    """All losses of both rounds, and the updates of the half of the clients that is in the tail."""
    assert found_in(seen_in(OPEN[name], monkeypatch), COUNTING) == (2 * N, N)


@pytest.mark.parametrize(("theta", "updates"), [(1 / 6, 2), ((4 / 6, 0.5), 2)], ids=["tail", "difference"])
def test_one_client_in_a_tail_or_between_two_is_no_secret(theta, updates, monkeypatch):
    """Why such levels are refused: in both rounds the sum of a tail of one client is the update of that client, and in
    the first one so is the difference of two tails, which is the same update at either level."""

    def unchecked(work: Any) -> Any:
        algorithm = secure_delta_fl(work, theta=theta, largest_loss=LARGEST, bins=64)
        counts, training = algorithm.phases
        bare = training._replace(aggregator=training.aggregator._replace(needs=()))
        return algorithm._replace(phases=(counts, bare))

    assert found_in(seen_in(unchecked, monkeypatch), COUNTING) == (0, updates)


# --- what would show an update, or train nothing, is refused when a run starts ------------------------------------


@pytest.mark.parametrize(
    ("words", "theta", "how"),
    [
        ("of a cohort of 6 clients, only one may be in the tail.*at least 7 clients", 0.3, {}),
        ("only one may be in the tail.*draw at least 3 clients", 0.99, {"cohort": 2}),
        ("in one tail and not in the next.*at least 12 clients", (4 / 6, 0.5), {}),
        ("at least 8 clients", (0.5, 0.25), {}),
        ("at least 9 clients", (0.99, 0.65), {}),
        ("further apart", (1.0, 0.7), {}),
    ],
)
def test_levels_that_may_leave_one_client_alone_are_refused(words, theta, how):
    with pytest.raises(eh.EvenhandError, match=words):
        eh.simulate(method(theta), DATA, rounds=1, **how)


@pytest.mark.parametrize(
    ("theta", "least"),
    [(1 / 3, 6), (1.0, 2), ((5 / 6, 0.5), 6), ((1.0, 2 / 3, 1 / 3), 6), (0.99, 3), ((0.99, 0.65), 9)],
)
def test_levels_with_just_enough_clients_are_not_refused(theta, least):
    needs = method(theta).phases[-1].aggregator.needs
    works = [all(need.works(m) for need in needs) for m in (least - 1, least, least + 1)]
    assert works == [False, True, True]


def test_without_ties_and_noise_no_client_is_alone_wherever_levels_are_not_refused():
    """Losses in bins of their own, with or without one in the first."""
    counting, rng = histogram(64, largest=64.0, sigma=0.0), np.random.default_rng(0)
    fractions = (1.0, 0.99, *np.arange(1, 40) / 40)
    decode = jax.jit(lambda total, m: counting.decode(total, m, theta=fractions))  # one program for all cases
    allowed, refused = list[int](), list[int]()
    for case in range(300):
        m = int(rng.integers(2, 16))
        theta = tuple(
            sorted(rng.choice(np.arange(1, 40), size=case % 3 + 1, replace=False) / 40, reverse=True)
        )
        theta = ((1.0,), (0.99,), (), ())[case % 4] + theta
        bins = rng.choice(64, size=m, replace=False)
        bins[0] = 0 if case % 2 and 0 not in bins else bins[0]
        total = np.concatenate([np.bincount(bins >> level, minlength=64 >> level) for level in range(6)])
        edge_at = dict(zip(fractions, np.asarray(decode(total.astype(np.uint32), np.int32(m))), strict=True))
        edges = [edge_at[part] for part in theta]
        tails = [int((bins + 0.5 >= edge).sum()) for edge in edges]
        least = min(wider - tail for wider, tail in zip(tails, (*tails[1:], 0), strict=True))
        if all(need.works(m) for need in method(theta).phases[-1].aggregator.needs):
            allowed.append(least)
        else:
            refused.append(least)
    assert min(allowed) == 2 and min(refused) < 2


def test_a_cohort_with_more_clients_than_its_sums_have_room_for_is_refused():
    """Its sums would be given up, and nothing would be trained."""
    with pytest.raises(eh.EvenhandError, match=r"cohorts have 6 clients.*give cohort=6 or more"):
        run(method(0.5, cohort=4))
    assert (
        np.abs(flat(eh.simulate(method(0.5, cohort=4), DATA, rounds=1, cohort=4).params) - START).max() > 1e-3
    )


def test_a_weight_that_would_be_clipped_is_refused():
    """Weights are in the fixed point of the updates, and the largest of them is that of the largest client."""
    with pytest.raises(
        eh.EvenhandError, match=rf"{SIZES.max()} examples has the weight {SIZES.max()}, which"
    ):
        run(method(0.5, sampling=BY_SIZE, largest=SIZES.max() - 0.5))
    with pytest.raises(
        eh.EvenhandError, match="the weight 1, which would be clipped: give largest=1 or more"
    ):
        run(method(0.5, largest=0.5))
    least = run(method(0.5, sampling=BY_SIZE, largest=float(SIZES.max())))
    assert np.abs(flat(least.params) - flat(run(method(0.5, sampling=BY_SIZE)).params)).max() < 1e-6
