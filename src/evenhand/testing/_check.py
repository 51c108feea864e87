"""What a law looks like as a check, what laws compare and share, and the toy problem on which methods are checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax

from evenhand import rounds as protocol
from evenhand import tree
from evenhand._jaxpr import programs
from evenhand._paths import named_path
from evenhand._platform import check_process
from evenhand.data import FederatedDataset, Split
from evenhand.devices import everywhere, here, over
from evenhand.exchange import Worked
from evenhand.local import step_per_row
from evenhand.simulation import engine, setup, store, twin
from evenhand.simulation.program import EXECUTED, Program, Rows
from evenhand.streams import keys_of
from evenhand.types import Array, ClientData, Effort, Key, Model, Params, PyTree, Report

NDArray = npt.NDArray[Any]


class Check(NamedTuple):
    """One law of a method, an aggregator, a risk or an attack; calling it raises ``AssertionError`` if it is broken.

    Attributes:
      name: the law in a few words; no two checks of one subject have the same.
      law: the function that checks it.
    """

    name: str
    law: Callable[[], None]

    def __call__(self) -> None:
        """Checks the law; what earlier checks of the same subject have computed is not computed again."""
        check_process()
        self.law()


def checks_of(*laws: tuple[object, str, Callable[[], None]]) -> tuple[Check, ...]:
    """The checks of laws, each given with what it needs, its name and its function; none where the need is missing."""
    return tuple(Check(name, law) for need, name, law in laws if need)


def check_all(checks: Iterable[Check]) -> None:
    """Checks one law after the other, up to the first that is broken."""
    for check in checks:
        check()


def form(tree: PyTree) -> Any:
    """The structure of a tree, and the shapes and dtypes of its leaves."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]


def are_equal(a: PyTree, b: PyTree) -> bool:
    """Whether the leaves of two trees are the same, to the bit; NaN is the same as NaN."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(numbers(x), numbers(y), equal_nan=True) for x, y in pairs)


def numbers(leaf: Any) -> NDArray:
    """A leaf as an array of NumPy; a key as the numbers that it is made of."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def check_form(a: PyTree, b: PyTree, words: str) -> None:
    """Checks that the first tree has the form of the second, with these words before what differs."""
    if form(a) == form(b):
        return
    (structure, leaves), (expected, own) = form(a), form(b)
    differing = f"it is {structure!s:.200}, and must be {expected!s:.200}"
    if structure == expected:
        places = zip(jax.tree.leaves_with_path(b), leaves, own, strict=True)
        (path, _), got, must = next(place for place in places if place[1] != place[2])
        got, must = (f"{dtype} of shape {shape}" for shape, dtype in (got, must))
        differing = f"{named_path(path) or 'the array'} is {got}, and must be {must}"
    raise AssertionError(f"{words}: {differing}.")


def check_same_form(a: PyTree, b: PyTree, subject: str) -> None:
    """Checks that two trees have the same form."""
    check_form(a, b, f"The structure, shapes or dtypes of {subject} differ from what they must be")


def _gaps(a: PyTree, b: PyTree) -> Iterator[tuple[float, float]]:
    """The largest gap of each pair of leaves, and the larger of 1 and their entries."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = (numbers(leaf).astype(np.float64) for leaf in (x, y))
        scale = max(1.0, float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0)))
        # Equal infinities, such as a step size that a line search has not found yet, have no gap, nor have two NaN.
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        yield float(np.max(np.abs(np.where(same, 0.0, x) - np.where(same, 0.0, y)), initial=0.0)), scale


def are_close(a: PyTree, b: PyTree, tolerance: float) -> bool:
    """Whether two trees are the same up to the tolerance, relative to the larger of 1 and a leaf's entries."""
    return all(gap <= tolerance * scale for gap, scale in _gaps(a, b))


def check_close(a: PyTree, b: PyTree, tolerance: float, subject: str) -> None:
    """Checks that two trees are close, the results of what ``subject`` names."""
    for gap, scale in _gaps(a, b):
        assert gap <= tolerance * scale, (
            f"The results of {subject} differ by {gap:.3g}. The usual reason is a function that is not pure: it reads "
            "numpy.random, a clock or a variable that changes, so it is another each time that it is compiled."
        )


def grow_with_parameters(grown: Callable[[int], list[NDArray]], sizes: NDArray, count: int) -> bool:
    """Whether the uploads of clients of these sizes hold parameters, and not only how these change.

    Args:
      grown: ``most -> leaves``, with an axis of clients first: how uploads grow where all parameters grow by 1, if no
        client has more than so many examples.
      sizes: of the clients.
      count: leaves of the parameters.
    """

    def hold(leaves: list[NDArray], times: NDArray) -> bool:
        """Whether most grow by about ``times`` as much: a model trained from further away comes back in part."""
        flat = np.hstack([np.zeros((len(sizes), 0)), *(leaf.reshape(len(sizes), -1) for leaf in leaves)])
        gaps = np.linalg.norm(flat / times[:, None] - 1.0, axis=1)
        return bool(np.median(gaps) < 0.5 * np.sqrt(flat.shape[1]))

    # Gradients grow with parameters too, but there are none without examples.
    empty, single, largest = grown(0), grown(1), int(sizes.max())
    # With examples, all that may be the parameters is compared: a bias may be a gradient that grows so.
    wholes = [slice(i, i + count) for i in range(max(1, len(single) - count + 1))]

    def any_hold(leaves: list[NDArray], times: NDArray) -> bool:
        return any(hold(leaves[whole], times) for whole in wholes)

    ones = np.ones(len(sizes))
    if not all(np.isfinite(leaf).all() for leaf in empty):
        return any_hold(single, ones)
    if any(leaf.size and leaf.mean() > 0.5 for leaf in empty):
        return True
    # A summand of a weighted mean is the parameters times the size, or its share, and nothing without examples.
    totals = [total for total in (1, sizes.sum()) if largest > 2 and any_hold(single, ones / total)]
    return bool(totals) and any(any_hold(grown(largest), sizes / total) for total in totals)


def makes_keys(program: Any) -> bool:
    """Whether a traced program has keys that come from none of its inputs."""
    return _makes_keys(program, [True] * len(programs.opened(program)[0].invars))


def _makes_keys(program: Any, given: list[bool]) -> bool:
    """As above; ``given``: which inputs come from those of the whole program."""
    jaxpr, constants = programs.opened(program)
    if any(jnp.issubdtype(jnp.result_type(value), jax.dtypes.prng_key) for value in constants):
        return True
    derived = {id(variable) for variable, is_given in zip(jaxpr.invars, given, strict=True) if is_given}
    for equation in jaxpr.eqns:
        operands = [id(atom) in derived for atom in equation.invars]
        if equation.primitive.name in ("random_seed", "random_wrap") and not any(operands):
            return True
        for part in programs.within(equation.params):
            count = len(programs.opened(part)[0].invars)
            # Of a loop or a branch, the last operands; what has others is not looked into.
            last = operands[max(0, len(operands) - count) :]
            if _makes_keys(part, [True] * (count - len(last)) + last):
                return True
        derived |= {id(result) for result in equation.outvars if any(operands)}
    return False


def is_random(program: Any) -> bool:
    """Whether a traced program draws random numbers, or reads those that a key is made of."""
    return programs.has_primitive(
        program, {"random_bits", "random_gamma", "random_unwrap", "rng_bit_generator"}
    )


def are_coarse(upload: PyTree) -> bool:
    """Whether an upload is zeros, or has one number and its opposite only, as signs do."""
    sizes = np.concatenate(
        [np.zeros(1), *(np.abs(numbers(leaf)).ravel() for leaf in jax.tree.leaves(upload))]
    )
    return np.unique(sizes[sizes != 0]).size <= 1


def rounding(params: PyTree) -> float:
    """What rounding may do to numbers around 1: a few units in the last place of the coarsest parameter."""
    kinds = {leaf.dtype for leaf in jax.tree.leaves(params) if jnp.issubdtype(leaf.dtype, jnp.floating)}
    return max((4 * float(jnp.finfo(kind).eps) for kind in kinds), default=0.0)


def may_be_assumed(effort: Callable[[ClientData], Effort], data: ClientData) -> bool:
    """Whether an effort may be the one that is assumed where it is unknown, a step for each example, or a multiple."""
    for size, progress in ((8, 0.25), (5, 0.5)):
        data = data._replace(size=jnp.int32(size))
        whole, part = (data._replace(progress=jnp.float32(done)) for done in (1.0, progress))
        if effort(part).steps * step_per_row(whole).steps != effort(whole).steps * step_per_row(part).steps:
            return False
    return True


# --- a method under test --------------------------------------------------------------------------------------


class Subject:
    """A method under test, and what its laws share, each computed when the first of them asks for it."""

    def __init__(
        self,
        program: Program,
        data: FederatedDataset,
        ways: tuple[tuple[int, int], ...],
        spare: int,
        tolerance: float,
    ) -> None:
        self.program, self.data, self.ways, self.tolerance = program, data, ways, tolerance
        self.spare = spare
        self.algorithm = program.algorithm

    @cached_property
    def arguments(self) -> tuple[Params, Rows, PyTree]:
        """Parameters, rows and copies of both, from before anything saw them."""
        rows = setup.device_rows(self.data, self.program.attack, 0)
        params = self.algorithm.model.init(jax.random.key(7))
        return params, rows, jax.tree.map(np.array, (params, rows))

    @property
    def params(self) -> Params:
        return self.arguments[0]

    @property
    def rows(self) -> Rows:
        return self.arguments[1]

    @cached_property
    def parts(self) -> list[twin.PhaseParts]:
        return twin.parts_of(self.program)

    @cached_property
    def wires(self) -> Any:
        rows, capacity = (self.rows.x, self.rows.y), self.program.capacity
        return protocol.wires(self.algorithm, self.params, rows, capacity, self.data.num_clients)

    def begin(self, params: Params) -> protocol.RoundState:
        capacity = self.program.capacity
        state = protocol.begin(self.algorithm, params, self.data.num_clients, self.wires, capacity)
        if self.algorithm.pooled is not None:
            state = state._replace(clients=self.algorithm.pooled(params, self.rows.x, self.rows.y))
        return state._replace(clients=store.stored(state.clients, self.data.num_clients))

    @cached_property
    def state(self) -> protocol.RoundState:
        return self.begin(self.params)

    @cached_property
    def roomy(self) -> tuple[protocol.RoundState, Any]:
        """A run for larger clients than there are."""
        return self.run(self.ways[0], spare=self.spare)

    @cached_property
    def room(self) -> int:
        """By how much the engine's capacity is above the largest client: nothing where that changes a number."""
        if not self.spare:
            return 0
        return self.spare if are_close(self.roomy, self.plain, self.tolerance) else 0

    @cached_property
    def first(self) -> tuple[protocol.RoundState, Any]:
        """The run with which others are compared."""
        return self.roomy if self.room == self.spare else self.run(self.ways[0])

    @cached_property
    def plain(self) -> tuple[protocol.RoundState, Any]:
        """The run of the readable twin."""
        return self.run(None)

    @cached_property
    def sent(self) -> list[tuple[Report, PyTree]]:
        """What every client reports and uploads in each phase of the first round."""
        everybody = range(self.data.num_clients)
        return [self.uploads(self.state, index, self.rows, everybody) for index in range(len(self.parts))]

    @cached_property
    def largest(self) -> int:
        """The client with the most examples."""
        return int(np.argmax(self.rows.sizes))

    def own(self, k: int, progress: float = 1.0) -> ClientData:
        """The examples of a client in the first round."""
        rows = self.rows
        window = (rows.starts[k], rows.sizes[k], jnp.float32(progress), self.program.capacity)
        return ClientData(rows.x, rows.y, *window, round=jnp.int32(0))

    def given(self, index: int) -> tuple[PyTree, PyTree]:
        """What the largest client gets and has kept in a phase of the first round."""
        k = jnp.int32(self.largest)
        message = self.algorithm.phases[index].broadcast(self.state.server, k)
        return message, tree.take(self.state.clients, k)

    def traced_work(self, index: int) -> Any:
        """The program of what the largest client reports and does, given its state, message, progress and key."""
        phase, (message, memory), data = (
            self.algorithm.phases[index],
            self.given(index),
            self.own(self.largest),
        )

        def work(memory: PyTree, message: PyTree, progress: Array, key: Key) -> Any:
            given = message, memory, data._replace(progress=progress)
            return phase.report(*given), phase.work(*given, key)

        return jax.make_jaxpr(work)(memory, message, data.progress, jax.random.key(3))

    def worked(
        self,
        index: int,
        k: int | None = None,
        *,
        rows: Rows | None = None,
        progress: float = 1.0,
        round: int = 0,
        seed: int = 3,
        spare: int = 0,
    ) -> Worked:
        """What a client, the largest for None, reports, uploads and keeps in a phase, as the states are at first."""
        part, client = self.parts[index], jnp.int32(self.largest if k is None else k)
        if spare:
            part = twin.parts_of(self.program._replace(capacity=self.program.capacity + spare))[index]
        message = self.algorithm.phases[index].broadcast(self.state.server, client)
        memory, key = tree.take(self.state.clients, client), jax.random.key(seed)
        rows = self.rows if rows is None else rows
        return part.client(rows, message, memory, client, jnp.float32(progress), round, key)

    def uploads(
        self, state: protocol.RoundState, index: int, rows: Rows, ids: Iterable[int]
    ) -> tuple[Report, PyTree]:
        phase, part, uploads = self.algorithm.phases[index], self.parts[index], list[tuple[Report, PyTree]]()
        for k in map(jnp.int32, ids):
            message, memory = phase.broadcast(state.server, k), tree.take(state.clients, k)
            key = jax.random.fold_in(jax.random.key(4), k)
            uploads.append(part.client(rows, message, memory, k, jnp.float32(1.0), 0, key)[:2])
        return tree.stack(uploads)

    def run(
        self,
        way: tuple[int, int] | None,
        *,
        seed: int = 0,
        rounds: int | None = None,
        masks: bool = True,
        spare: int | None = None,
    ) -> tuple[protocol.RoundState, Any]:
        """All rounds, or so many, on so many lanes and devices, or of the readable twin where ``way`` is None.

        ``spare`` is the engine's capacity above the largest client; None: as in the run with which it is compared.
        """
        keys, count = protocol.roots(self.algorithm, keys_of(seed)), rounds or self.program.buffer
        if way is None:
            end, infos = twin.run_rounds(self.program, self.state, self.rows, keys, 0, count, self.parts)
        else:
            lane_count, device_count = way
            mesh = over(device_count)
            # A copy: the engine reuses the memory of its state.
            fresh, placed = everywhere(mesh, (jax.tree.map(jnp.copy, self.state), self.rows))
            capacity = self.program.capacity + (self.room if spare is None else spare)
            program = self.program._replace(lanes=lane_count, mesh=mesh, masks=masks, capacity=capacity)
            end, infos = engine.run_rounds(program, fresh, placed, keys, 0, count)
        return here(end), {name: info[:count] for name, info in infos.items() if name != EXECUTED}


# --- a toy problem, small enough for seconds and uneven enough to break careless code -------------------------


_SIZES = (1, 3, 8, 17, 5, 12)
_FEATURES = 4
_CLASSES = 3


def toy_model() -> Model:
    """Softmax regression from 4 features to 3 classes, as pure functions; all calls give the same ones."""
    losses = optax.losses.softmax_cross_entropy_with_integer_labels
    return Model(_init, _apply, losses, {"accuracy": _accuracy})


def toy_data(seed: int = 0) -> FederatedDataset:
    """Six heterogeneous clients with 1 to 17 training examples and 2 test examples each, for :func:`toy_model`."""
    rng = np.random.default_rng(seed)
    train = _split(rng, np.array(_SIZES))
    return FederatedDataset(
        train=train,
        valid=_split(rng, np.zeros(len(_SIZES), np.int64)),
        test=_split(rng, np.full(len(_SIZES), 2)),
        client_ids=tuple("abcdef"),
    )


def _split(rng: np.random.Generator, sizes: np.ndarray) -> Split:
    client = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(client), _FEATURES)) + 0.3 * client[:, None]
    y = (np.argmax(x[:, :_CLASSES], axis=1) + client) % _CLASSES
    return Split(x.astype(np.float32), y.astype(np.int32), np.concatenate([[0], np.cumsum(sizes)]))


def _init(key: Key) -> Params:
    return {"w": 0.3 * jax.random.normal(key, (_FEATURES, _CLASSES)), "b": jnp.zeros(_CLASSES)}


def _apply(params: Params, x: Array) -> Array:
    return x @ params["w"] + params["b"][None]


def _accuracy(outputs: Array, y: Array) -> Array:
    return (jnp.argmax(outputs, axis=-1) == y).astype(jnp.float32)
