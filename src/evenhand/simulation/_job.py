"""A run as a value: what to simulate, before anything is set up, and what can be wrong with it."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np

from evenhand.data import FederatedDataset
from evenhand.errors import Argument, EvenhandError, expect, is_truth_value, whole_number
from evenhand.evaluation import Metric, Metrics
from evenhand.evaluation.metrics import BACKDOOR, backdoor_success, resolved
from evenhand.rounds import newcomer
from evenhand.streams import MAX_ROUNDS, root_key
from evenhand.systems import Systems, bound
from evenhand.types import Algorithm, Array, Attack, Model, Params
from evenhand.watch import Watch

Untrained: TypeAlias = Literal["global", "initial"]
"""What clients are served that never trained: the current global model, or what they have kept since the start."""


class Checkpoint(NamedTuple):
    """Where a run keeps its latest state, and how often it is saved.

    The last two states are kept, each with a checksum of all that is in it.  Where the newest is damaged, the run
    continues from the one before it, to the same numbers in the end, and a warning says so; where both are, it is
    refused.  Only one run at a time may be in a folder; a second one is refused.

    Attributes:
      folder: where; it is made when the run begins.
      seconds: time between two saves, longer in proportion where a save takes more than one second, so that saving
        stays below a share ``1 / seconds`` of the time.  A state is saved at an evaluation, and after the last round,
        however short the run was, so that more rounds can be added to it.  0: at each evaluation.
      fresh: begin anew, rather than continue from the checkpoint of an earlier run, which is deleted when the first
        state of the new run is saved, or when that ends.
      last: whether the state after the last round is saved, too, so that more rounds can be added to it.

    Example:
      >>> import tempfile, evenhand as eh
      >>> data, model = eh.testing.toy_data(), eh.testing.toy_model()
      >>> method = eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1, batch_size=5))
      >>> place = Checkpoint(tempfile.mkdtemp())
      >>> run = eh.simulate(method, data, rounds=2, eval_every=1, checkpoint=place)
      >>> place.saved()
      [2]
      >>> longer = eh.simulation.iterate(method, data, rounds=4, eval_every=1, checkpoint=place)
      >>> [run.info["rounds"] for run in longer]
      [2, 3, 4]
    """

    folder: str | Path
    seconds: float = 10.0
    fresh: bool = False
    last: bool = True

    def saved(self) -> list[int]:
        """The number of rounds done in each saved state, ascending."""
        folder = Path(self.folder)
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        return sorted(int(name) for name in names if re.fullmatch("0|[1-9][0-9]{0,9}", name))


class Execution(NamedTuple):
    """How a run is executed, which changes its result by rounding at most; fields as in :func:`evenhand.simulate`."""

    lanes: int | None = None
    devices: int | None = None
    stream: bool | None = None
    offload: bool | str | Path | None = None
    progress: bool = False
    watch: Watch = None
    masks: bool = False


class Job(NamedTuple):
    """One run: what :func:`evenhand.simulate` is given, as one value; fields as its arguments."""

    algorithm: Algorithm
    data: FederatedDataset
    rounds: int
    seed: int = 0
    cohort: int | None = None
    eval_every: int = 10
    attack: Attack | None = None
    systems: Systems | None = None
    checkpoint: str | Path | Checkpoint | None = None
    eval_clients: int | None = None
    metrics: Metrics = ()
    untrained: Untrained = "global"
    start: Params | None = None
    execution: Execution = Execution()

    @staticmethod
    def from_arguments(arguments: Mapping[str, Any]) -> Job:
        """From the arguments of :func:`evenhand.simulate`, by name."""
        execution = {name: arguments[name] for name in Execution._fields if name in arguments}
        task = {name: value for name, value in arguments.items() if name not in execution}
        return Job(**task, execution=Execution(**execution)).plain

    @property
    def plain(self) -> Job:
        """The same with Python's own whole numbers in place of those of NumPy and JAX."""
        # NumPy's compute in their own few bits, and no checkpoint can hold them.
        lanes, devices = _plain(self.execution.lanes), _plain(self.execution.devices)
        return self._replace(
            rounds=_plain(self.rounds),
            cohort=_plain(self.cohort),
            seed=_plain(self.seed),
            eval_every=_plain(self.eval_every),
            eval_clients=_plain(self.eval_clients),
            execution=self.execution._replace(lanes=lanes, devices=devices),
        )

    @property
    def measured(self) -> tuple[Metric, ...]:
        """The metrics of a set of examples that are measured: those asked for, and that of a backdoor."""
        asked = resolved(self.metrics)
        if self.attack is None or self.attack.trigger is None or any(x.name == BACKDOOR for x in asked):
            return asked
        return (*asked, backdoor_success(self.attack.trigger))

    @property
    def trained(self) -> FederatedDataset:
        """The data as the method trains on them: of a single client, for a method that pools the examples of all."""
        return self.data if self.algorithm.pooled is None else self.data.pooled

    @property
    def slots(self) -> int:
        """The slots of a cohort, no more than there are clients.

        Raises:
          EvenhandError: the method's sampling draws another number.
        """
        sampling, clients, cohort = self.algorithm.sampling, self.trained.num_clients, self.cohort
        if sampling.slots is None:
            return clients if cohort is None else min(cohort, clients)
        slots = sampling.slots(clients)
        if cohort is not None and sampling.rate is not None:
            raise EvenhandError(
                Argument("cohort", str(cohort)),
                f": this method draws its own cohorts, at a rate of {sampling.rate:g}: "
                "leave the cohort out, and give the method another rate.",
            )
        if cohort is not None and min(cohort, clients) != slots:
            raise EvenhandError(
                Argument("cohort", str(cohort)),
                f": this method needs cohorts of {slots}: leave the cohort out, or give the method another one.",
            )
        return slots


def _plain(value: Any) -> Any:
    """A whole number of NumPy or JAX as Python's own; anything else as it is, for :func:`check_job` to refuse."""
    try:
        return value if value is None or is_truth_value(value) else operator.index(value)
    except TypeError:
        return value


# --- what can be wrong before it starts -------------------------------------------------------------------------------

_FLAG = bool | np.bool_


def check_job(job: Job) -> None:
    """The parts of a job go together, and its numbers are in range; its model and start are not looked at.

    Raises:
      EvenhandError: they do not.
    """
    algorithm = job.algorithm
    # The likeliest slips get their cure.
    expect("algorithm", algorithm, Algorithm, "eh.algorithms.fedavg(work)")
    example = "eh.data.load(...), or eh.data.from_arrays(x, y, client) of arrays"
    expect("data", job.data, FederatedDataset, example)
    expect("systems", job.systems, Systems | None, "eh.systems.stragglers(0.5)")
    expect("attack", job.attack, Attack | None, "eh.attacks.sign_flip(0.2)")
    if job.untrained not in get_args(Untrained):
        raise EvenhandError(Argument("untrained", repr(job.untrained)), ": give 'global' or 'initial'.")
    whole_number("rounds", job.rounds, 0, MAX_ROUNDS - 1)
    whole_number("seed", job.seed, 0, 2**32 - 1)
    values = {**job._asdict(), **job.execution._asdict()}
    for name in ("cohort", "eval_every", "lanes", "devices", "eval_clients"):
        if values[name] is not None or name == "eval_every":
            whole_number(name, values[name], 1)
    _check_execution(job)
    # Shapes only: a model that is too large for the machine gets a sentence of its own from check_model.
    params = jax.eval_shape(algorithm.model.init, root_key(0))
    stateful = bool(jax.tree.leaves(jax.eval_shape(lambda params: newcomer(algorithm, params, 1), params)))
    if algorithm.sampling.repeats and stateful:
        raise EvenhandError(
            "This method keeps a state at each client, and its sampling can draw a client twice in one round: "
            "sample without replacement, e.g. sampling=eh.sampling.uniform()."
        )
    if algorithm.classes is not None:
        whole_number("Algorithm(classes=)", algorithm.classes, 1)
    trigger, classes = None if job.attack is None else job.attack.trigger, job.data.num_classes
    if algorithm.classes is not None and classes is not None and classes > algorithm.classes:
        raise EvenhandError(
            f"{algorithm.name or 'This method'} has classes={algorithm.classes}, but {job.data.name!r} has "
            f"{classes:,} classes: give it classes={classes}."
        )
    if trigger is not None and classes is not None and trigger.label >= classes:
        raise EvenhandError(
            f"attacks.trigger(label={trigger.label}): {job.data.name!r} has the classes 0 to {classes - 1}: give one "
            "of them."
        )
    if algorithm.pooled is not None and (job.attack is not None or job.systems is not None):
        part = "attack" if job.attack is not None else "systems"
        raise EvenhandError(
            Argument(part, "..."),
            f": {algorithm.name or 'this method'} trains on the pooled examples of all clients, without rounds in "
            "which clients take part: leave it out.",
        )
    _check_presence(job)
    slots = job.slots
    for need in (need for phase in algorithm.phases for need in phase.aggregator.needs):
        if not need.works(slots):
            if need.refusal is not None:
                raise EvenhandError(need.refusal(slots))
            raise EvenhandError(
                f"{need.name} needs {need.least(slots)} uploads, but the cohort has {slots}: that many malicious "
                "clients would leave no honest upload. Draw a larger cohort, or set the aggregator to fewer of them."
            )


def _check_execution(job: Job) -> None:
    """Flags are flags, folders have a name, and a time is a number."""
    execution, kept = job.execution, job.checkpoint
    expect("checkpoint", kept, str | Path | Checkpoint | None, '"runs/a"')
    place = kept if isinstance(kept, Checkpoint) else Checkpoint("." if kept is None else kept)
    expect("Checkpoint(folder=)", place.folder, str | Path, '"runs/a"')
    expect("Checkpoint(seconds=)", place.seconds, Real, "10.0")
    expect("offload", execution.offload, bool | str | Path | None, 'True, or "states"')
    expect("stream", execution.stream, _FLAG | None, "True")
    flags = {"progress": execution.progress, "masks": execution.masks}
    flags |= {"Checkpoint(fresh=)": place.fresh, "Checkpoint(last=)": place.last}
    for name, flag in flags.items():
        expect(name, flag, _FLAG, "True")
    for name, folder in (("checkpoint", place.folder), ("offload", execution.offload)):
        # It would be the folder in which the program was started.
        if folder == "":
            raise EvenhandError(Argument(name, "''"), ": give the name of a folder.")


def _check_presence(job: Job) -> None:
    """The systems are of these clients, and the method can draw cohorts among those that are available."""
    systems, sampling = bound(job.systems, job.data.client_ids), job.algorithm.sampling
    if (
        systems is None
        or systems.present is None
        or sampling.among is not None
        or sampling.scheduled is not None
    ):
        return
    reason = (
        f"its privacy guarantee needs cohorts that are {sampling.rate:g} of all clients; if fewer were available, each "
        "would be more likely to take part"
        if sampling.rate is not None
        else "its sampling draws from all clients only"
    )
    raise EvenhandError(
        Argument("systems", "..."),
        f": {job.algorithm.name or 'this method'} cannot draw a cohort among the available clients, because "
        f"{reason}: sample with eh.sampling.uniform(), proportional(), poisson(rate) or cyclic().",
    )


def check_model(model: Model, data: FederatedDataset) -> None:
    """The model fits the machine, has parameters that can be trained, and gives one loss per row of the data."""
    check_size(model, data)
    params = jax.eval_shape(model.init, root_key(0))
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise EvenhandError(
                f"The model's parameters have {_in_words(leaf)} at {jax.tree_util.keystr(path)}, which no gradient "
                "trains: give floating-point numbers, and keep other constants in the model's functions."
            )
    # Two rows: of one row, a mean that keeps its axis would pass for one loss per row.
    x, y = (
        jax.ShapeDtypeStruct(rows.shape, jax.dtypes.canonicalize_dtype(rows.dtype))
        for rows in (data.train.x[:2], data.train.y[:2])
    )

    def losses(x: Array, y: Array) -> Array:
        return model.losses(model.apply(model.init(root_key(0)), x), y)

    try:
        given = jax.eval_shape(losses, x, y)
    except (TypeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise EvenhandError(
            f"The model does not fit the data {data.name!r}, whose rows are {x.dtype}{list(x.shape[1:])} with labels "
            f"{y.dtype}{list(y.shape[1:])}: give a model for such rows ({reason})."
        ) from error
    if not isinstance(given, jax.ShapeDtypeStruct):
        raise EvenhandError(
            f"The model's losses are of the type {type(given).__name__}: they must be an array, one number per row."
        )
    if given.shape != (x.shape[0],):
        raise EvenhandError(
            f"The model's losses have shape {given.shape} for {x.shape[0]} rows: they must be one number per row, "
            "unreduced."
        )


def check_start(start: Params, model: Model, *, caller: str = "simulate", owner: str = "") -> None:
    """A model to start from has the structure and the shapes of the method's own.

    Args:
      start: its parameters.
      model: that of the method.
      caller: the function that took the start.
      owner: the method, where there may be several; "": it needs no name.

    Raises:
      EvenhandError: it has others; the sentence names the first array that differs.
    """
    wanted, given = (
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
        for params in (jax.eval_shape(model.init, root_key(0)), start)
    )
    # Not a set: the sentence names the first difference in the order of the model.
    for place in dict.fromkeys([*wanted, *given]):
        own, like = (_in_words(params.get(place)) for params in (given, wanted))
        if own != like:
            whose = f"the model of {owner:.60}" if owner else "the model"
            raise EvenhandError(
                f"{caller}(start=...): it has {own} at {place or 'its root'}, where {whose} has {like}: give the "
                "parameters of such a model, as run.params gives them."
            )


def _in_words(leaf: Any) -> str:
    return "nothing" if leaf is None else f"{jnp.result_type(leaf)}{list(np.shape(leaf))}"


# --- models that are too large for this machine -----------------------------------------------------------------------

_COPIES = 3
"""The server's model, a client's and the sum of the changes exist at the same time, whatever the method."""


def check_size(model: Model, data: FederatedDataset) -> None:
    """Checks by size alone that the machine can train the model; allocates nothing.

    Raises:
      EvenhandError: it cannot.
    """
    leaves = jax.tree.leaves(jax.eval_shape(model.init, root_key(0)))
    needed = _COPIES * sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    if needed <= (memory := _memory()):
        return
    classes = data.num_classes or 0
    # One odd label makes as many classes as it is large.
    cure = (
        f"its {classes:,} classes are the highest label and those below it, so number the labels from 0"
        if classes > data.train.rows
        else "give a smaller one"
    )
    raise EvenhandError(
        f"The model has {sum(math.prod(leaf.shape) for leaf in leaves):,} parameters, and training it takes "
        f"at least {needed / 2**30:,.0f} GiB of memory, but the machine has {memory / 2**30:,.0f}: {cure}."
    )


def _memory() -> float:
    """Bytes that the device has, or else the machine; infinite where neither is known."""
    # A CPU states no limit: its memory is that of the machine.
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    if limit:
        return float(limit)
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on every system
        return math.inf


# --- what the first evaluation shows ----------------------------------------------------------------------------------


def check_first_losses(
    clients: Mapping[str, Mapping[str, Any]],
    data: FederatedDataset,
    model: Model,
    drawn: Any = None,
    adapted: bool = False,
) -> None:
    """The initial model has a finite loss at every client: labels out of the model's range show here."""
    then = ", adapted to its own rows," if adapted else ""
    cure = "; or let the adaptation take smaller steps" if adapted else ""
    checks = "check that its labels lie in the model's range and its features are of ordinary size"
    measured = np.arange(data.num_clients) if drawn is None else drawn
    for split, sizes in (("train", data.train.sizes), ("valid", data.valid.sizes), ("test", data.test.sizes)):
        # The loss of a client without rows in the split is NaN, too, and no sign of anything.
        bad = np.flatnonzero(~np.isfinite(clients[split]["loss"]) & (sizes[measured] > 0))
        if len(bad):
            name = data.client_ids[measured[bad[0]]]
            count = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            raise EvenhandError(
                f"Client {name!r}{count} has {split} rows on which the loss of the initial model{then} is not finite: "
                f"{_beyond_outputs(model, data) or checks}{cure}."
            )


def _beyond_outputs(model: Model, data: FederatedDataset) -> str:
    """That a classifier has fewer outputs than the data have classes; "" where it is not known to be one."""
    classes, (x, y) = data.num_classes, (data.train.x[:1], data.train.y[:1])
    outputs = jax.eval_shape(lambda: model.apply(model.init(root_key(0)), jnp.asarray(x)))
    if classes is None or not isinstance(outputs, jax.ShapeDtypeStruct) or outputs.shape[:-1] != y.shape:
        return ""
    if not 1 < outputs.shape[-1] < classes:
        return ""
    return f"labels go up to {classes - 1}, but the model has {outputs.shape[-1]} outputs: give it classes={classes}"
