"""A run on real machines: the server meets its clients, trains with them and writes a run folder; a client answers.

Both sides are functions of their folder and of what carries the bytes, so that any carrier serves.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand import records
from evenhand._version import __version__
from evenhand.data import FederatedDataset, Form, Split
from evenhand.errors import EvenhandError
from evenhand.network import files
from evenhand.network.carriers import Carrier, Log
from evenhand.network.compiled import methods_of
from evenhand.network.exchanging import Patience
from evenhand.network.files import ClientFile, ServerFile
from evenhand.network.keeping import FileStore
from evenhand.network.measuring import Evaluated
from evenhand.network.node import Node
from evenhand.network.server import Server, run_from
from evenhand.network.summing import scales
from evenhand.network.terms import Terms, as_deployed, check_masked, check_sum, slots_of
from evenhand.rounds import RoundState
from evenhand.simulation import Run
from evenhand.simulation.evaluating import columns_of
from evenhand.simulation.folder import SUMMARY
from evenhand.simulation.saving import save
from evenhand.simulation.store import Kept
from evenhand.streams import Keys, Purpose, keys_of, stream, wrapped_key
from evenhand.text import counted, quoted
from evenhand.types import Algorithm
from evenhand.wire import Packet, PacketError, Protection, decode, encode
from evenhand.wire.messages import whole
from evenhand.wire.secure_sums import Asks, secure_total
from evenhand.wire.sum_messages import Occasion, sum_terms

__all__ = ["Admit", "client_node", "event_log", "read_status", "refusal", "serve_run"]

NDArray = npt.NDArray[Any]
Scale: TypeAlias = tuple[tuple[float, float], ...]
Admit: TypeAlias = Callable[[int, Path], None]
"""Lets in the client of a number by the public key in a file, in place of an older key of the same number."""
_STATUS, _MET, _SCALE = "status.json", "clients.json", "scale.json"
_ABSENCE = 10.0
"""Seconds before the same absence is logged again."""
_REMINDER = 30.0
"""Seconds after which the server says again whom it waits for."""
_LOOK = 2.0
"""Seconds between two looks at the roster, and between two writes of the status."""


# --- events -----------------------------------------------------------------------------------------------------------


def event_log(path: Path, show: Callable[[str], None]) -> Log:
    """A log that appends a line of JSON to a file for each event, and shows its sentence.

    An absence is logged once in ten seconds: an exchange that is repeated until a client is back would fill the disk.
    Absences are the same if their sentences are, or of secure sums, if their round is.
    """
    lock, said = threading.Lock(), dict[Any, float]()

    def log(event: str, sentence: str, fields: Mapping[str, Any]) -> None:
        if event == "absent":
            # That of a secure sum, which is of a round and of no single client, has another tag each time.
            is_of_sum = "round" in fields and "client" not in fields
            name = fields["round"] if is_of_sum else sentence
            with lock:
                now = time.monotonic()
                for old in [old for old, moment in said.items() if now >= moment + _ABSENCE]:
                    del said[old]
                if name in said:
                    return
                said[name] = now
        moment = datetime.now(UTC).isoformat(timespec="seconds")
        line = json.dumps({"time": moment, "event": event, "sentence": sentence, **fields}) + "\n"
        # A full disk: the sentence is shown, and the work goes on without its log.
        with lock, suppress(OSError), path.open("a", encoding="utf-8") as file:
            file.write(line)
        show(sentence)

    return log


# --- the server -------------------------------------------------------------------------------------------------------


class Met(NamedTuple):
    """What a client has said of its data.

    Attributes:
      form: of the examples.
      label: the shape of one label.
      sizes: examples in each split.
      columns: of a table, as JSON has them; empty for others.
      numbers: how many of these are numbers whose scale is to be agreed on.
    """

    form: Form
    label: tuple[int, ...]
    sizes: tuple[int, int, int]
    columns: list[Any]
    numbers: int

    def to_json(self) -> dict[str, Any]:
        """A JSON object; :meth:`from_json` reads it."""
        return {**self._asdict(), "form": self.form.to_json()}

    @staticmethod
    def from_json(value: Mapping[str, Any], file: ServerFile) -> Met:
        """The inverse of :meth:`to_json`, within the limits of a file.

        Raises:
          KeyError, TypeError, ValueError: ``value`` is something else.
        """
        train, valid, test = (int(size) for size in value["sizes"])
        if min(train - 1, valid, test) < 0 or max(train, valid, test) >= 2**31:
            raise ValueError("a client has at least one example for training")
        if max(train, valid, test) > file.most_examples:
            raise PacketError(
                f"It has {max(train, valid, test):,} examples, to which all others would have to pad theirs; "
                f"server.toml allows {file.most_examples:,}: raise most_examples there and in each client's file."
            )
        columns, numbers = list(value["columns"]), whole(value, "numbers")
        label, form = tuple(map(int, value["label"])), Form.from_json(value["form"])
        if min(form.tokens, 0 if form.classes is None else form.classes - 1) < 0:
            raise ValueError("a client has at least one class, and no tokens below 0")
        if (most := max(form.classes or 0, form.tokens)) > file.most_classes:
            raise PacketError(
                f"It has {most:,} {'classes' if most == form.classes else 'tokens'}, for each of which the model would "
                f"have weights; server.toml allows {file.most_classes:,}: raise most_classes there."
            )
        if form.targets != math.prod(label):
            raise ValueError("its labels have another number of targets")
        return Met(form, label, (train, valid, test), columns, numbers)


def serve_run(
    folder: Path,
    build: Callable[[Form], Algorithm],
    carrier: Carrier,
    log: Log,
    *,
    admit: Admit = lambda number, key: None,
    pause: float = 1.0,
) -> Iterator[Run]:
    """Trains what ``server.toml`` says with the clients behind a carrier; yields the run so far at each evaluation.

    What is done is in ``DIR/server``, so that a run that was killed is continued, and in the run folder ``DIR/run``.

    Args:
      folder: that of the federation.
      build: ``form -> algorithm``, the method of the file for data of a form.
      carrier: the way to the clients of the roster.
      log: for events.
      admit: is given the key of each client of the roster, and each that is added or replaced while the server runs.
      pause: seconds between two attempts to reach clients.

    Raises:
      EvenhandError: the files are damaged, or the clients do not fit together.
    """
    file = files.read_server(folder)
    if file.min_answers > len(files.roster(folder)):
        raise EvenhandError(
            f"{folder / files.SERVER}: min_answers is {file.min_answers}, but there are {len(files.roster(folder))} "
            "clients: lower it, or add clients."
        )
    with _status_of(folder, file, carrier, _Gate(folder, admit, log)) as status:
        met = _meet(folder, file, carrier, log, pause, status)
        form, scale = _agreed_form(met, file.run), _agreed_scale(folder, file, carrier, met, log, pause)
        server = _server(folder, file, build, carrier, log, met, (form, scale), pause)
        if server.is_resumed and server.progress.done:
            log("resumed", f"The run continues after round {server.progress.done} of {file.rounds}.", {})
        data = _shadow(server.agreed.terms.form, server.agreed.terms.label, met, file.run)
        status.update({"activity": "training", "round": server.progress.done})
        server.on_round = lambda done: status.update({"round": done, "seconds": server.seconds["train"]})
        if server.is_resumed and server.progress.history and server.progress.done == file.rounds:
            run = run_from(server, server.progress, data, server.progress.state, seed=file.seed, remote=True)
            # The process before this one may have died, or found no room.
            if written(folder / "run") != file.rounds:
                _write(folder / "run", run, file, server, log)
            yield run
        for record in server.run():
            run = run_from(server, record, data, record.state, seed=file.seed, remote=True)
            _write(folder / "run", run, file, server, log)
            yield run
        status.update({"activity": "done", "round": file.rounds})


def _server(
    folder: Path,
    file: ServerFile,
    build: Callable[[Form], Algorithm],
    carrier: Carrier,
    log: Log,
    met: Mapping[int, Met],
    data: tuple[Form, Scale | None],
    pause: float,
) -> Server:
    clients, (form, scale) = len(met), data
    sizes = np.array([met[client].sizes for client in range(clients)], np.int64).reshape(-1, 3)
    algorithm = build(form)
    slots = slots_of(algorithm, clients, file.cohort)
    check_masked(algorithm, clients, slots, file.colluding)
    terms = Terms(
        run=file.run,
        method=file.text,
        form=form,
        label=met[0].label,
        clients=clients,
        capacity=int(sizes[:, 0].max()),
        rounds=file.rounds,
        slots=slots,
        seed=file.seed if file.test_keys else None,
        scale=scale,
    )
    first = keys_of(file.seed)
    keys = first if file.test_keys else Keys(first.shared, _secret(folder))
    return Server(
        methods_of(build)(terms).agreed,
        carrier,
        FileStore(_state_file(folder)),
        keys=keys,
        sizes={"train": sizes[:, 0], "valid": sizes[:, 1], "test": sizes[:, 2]},
        start=algorithm.model.init(stream(first.shared, Purpose.INIT)),
        eval_every=file.eval_every,
        patience=Patience(deadline=file.deadline, min_answers=file.min_answers, pause=pause),
        log=log,
        authority=bytes.fromhex(file.authority),
        colluding=file.colluding,
    )


def _state_file(folder: Path) -> Path:
    return folder / "server" / "state.bin"


def _secret(folder: Path) -> Any:
    words = np.array(files.secret_words(folder), np.uint32)
    return wrapped_key(jnp.asarray(words))


def _meet(
    folder: Path, file: ServerFile, carrier: Carrier, log: Log, pause: float, status: Status
) -> dict[int, Met]:
    """What every client has said of its data; those that have not are asked until they have."""
    path, met = folder / "server" / _MET, dict[int, Met]()
    # Before the first round everybody is asked again: a file at a client may have been corrected.
    if path.is_file() and _state_file(folder).is_file():
        saved = records.read_json(path)
        met = {int(client): Met.from_json(value, file) for client, value in saved.items()}
    # A run that has begun keeps its clients: those added since take part in the next one.
    begun = bool(met)
    reminded, waiting = -_REMINDER, set[int]() if begun else set(files.roster(folder)) - set(met)
    hello = encode(Packet("hello", {"version": __version__, "method": file.text}))
    while waiting:
        connected = sorted(waiting & carrier.connected())
        answers = carrier.ask(dict.fromkeys(connected, hello), file.deadline).answers if connected else {}
        for client, data in answers.items():
            try:
                answer = decode(data)
                if answer.kind != "here":
                    raise PacketError(
                        str(answer.fields.get("sentence", "it does not describe its data."))[:500]
                    )
                met[client] = Met.from_json(answer.fields, file)
            # Numbers of JSON may be too large for a float.
            except (PacketError, KeyError, TypeError, ValueError, OverflowError) as error:
                log("refused", f"Client {client}: {error}", {"client": client})
        # Those that are added in the meantime are waited for, too.
        waiting = set(files.roster(folder)) - set(met)
        _write_secret(path, {str(client): facts.to_json() for client, facts in met.items()})
        status.update(
            {
                "activity": "waiting for clients",
                "waiting": sorted(waiting),
                "clients": len(met) + len(waiting),
            }
        )
        if waiting:
            if time.monotonic() - reminded >= _REMINDER:
                reminded = time.monotonic()
                names = ", ".join(map(str, sorted(waiting)))
                log("absent", f"Waiting for clients {names}: start them with `evenhand deploy client`.", {})
            time.sleep(pause)
    status.update({"waiting": [], "clients": len(met)})
    return met


def _agreed_form(met: Mapping[int, Met], name: str) -> Form:
    """The form of the examples of all clients.

    Raises:
      EvenhandError: they differ.
    """
    first = met[0]
    for client, other in met.items():
        mine, theirs = ((x.form.shape, x.form.dtype, x.label, x.form.classes is None) for x in (first, other))
        if first.columns != other.columns:
            raise EvenhandError(
                f"Client {client} has other columns, or other categories in them, than client 0: write the same "
                "numbers and categories into the [data] of each client's file."
            )
        if first.numbers != other.numbers:
            raise EvenhandError(
                f"Client {client} standardises {counted(other.numbers, 'column')} of numbers, and client 0 "
                f"{first.numbers:,}: write the same standardize into the [data] of each client's file."
            )
        if first.form.names != other.form.names:
            raise EvenhandError(
                f"Client {client} has the classes {other.form.names}, and client 0 {first.form.names}: write all of "
                'them into the [data] of each client\'s file, as in classes = ["no", "yes"].'
            )
        if mine != theirs:
            raise EvenhandError(
                f"Client {client} has examples {other.form.dtype}{list(other.form.shape)} with labels "
                f"{list(other.label)}, and client 0 {first.form.dtype}{list(first.form.shape)} with labels "
                f"{list(first.label)}: load the files of both in the same way."
            )
    classes = [facts.form.classes for facts in met.values() if facts.form.classes is not None]
    return first.form._replace(
        name=f"federation {name}",
        classes=max(classes) if classes else None,
        names=first.form.names
        if all(facts.form.names == first.form.names for facts in met.values())
        else None,
        tokens=max(facts.form.tokens for facts in met.values()),
    )


def _agreed_scale(
    folder: Path, file: ServerFile, carrier: Carrier, met: Mapping[int, Met], log: Log, pause: float
) -> Scale | None:
    """Mean and deviation of each column of numbers, from a secure sum over all clients; None: there are none.

    Raises:
      EvenhandError: the sum is impossible, or the file of an earlier one is damaged.
    """
    numbers, path = met[0].numbers, folder / "server" / _SCALE
    if numbers == 0:
        return None
    scale, attempt = _scale_in(path, numbers)
    if scale is not None:
        return scale
    if len(met) < 2:
        raise EvenhandError(
            f"{folder}: with one client, the common scale of the columns would reveal that client's: write "
            "standardize = false into its [data]."
        )
    check_sum("The common scale of the columns", len(met), file.colluding)
    while True:
        # On disk first: a client refuses an attempt before the latest that it has seen, also of an earlier process.
        _write_secret(path, {"attempts": attempt + 1})
        occasion, size = Occasion(file.run, file.run, 0, attempt), 2 * (1 + 3 * numbers)
        try:
            terms = sum_terms(occasion, list(met), bits=64, size=size, colluding=file.colluding)
            total = secure_total(
                partial(_moments, file, carrier, len(met), log), terms, bytes.fromhex(file.authority)
            )
        except EvenhandError as error:
            log("absent", f"The scale of the columns: {error}", {"round": 0})
        else:
            if len(total.clients) == len(met):
                scale = scales(total.numbers, sum(facts.sizes[0] for facts in met.values()))
                _write_secret(path, {"scale": scale})
                return tuple(scale)
        attempt += 1
        time.sleep(pause)


def _scale_in(path: Path, numbers: int) -> tuple[Scale | None, int]:
    """The scale that was agreed on, if it was, and how many attempts at it were made before.

    Raises:
      EvenhandError: the file has something else.
    """
    value: Mapping[str, Any] = records.read_json(path) if path.is_file() else {"attempts": 0}
    try:
        if "scale" not in value:
            return None, whole(value, "attempts")
        scale = tuple((float(mean), float(deviation)) for mean, deviation in value["scale"])
        if len(scale) != numbers or not all(math.isfinite(m) and 0 <= d < math.inf for m, d in scale):
            raise ValueError("another scale")
    except (KeyError, TypeError, ValueError):
        raise EvenhandError(
            f"{path} does not hold the scale of {counted(numbers, 'column')} of numbers: restore it from a backup, or "
            "begin another federation."
        ) from None
    return scale, 0


def _write_secret(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON object that only its owner can read."""
    FileStore(path).write(records.json_text(value).encode())


def _moments(file: ServerFile, carrier: Carrier, clients: int, log: Log, asks: Asks) -> Asks:
    """One exchange of the secure sum of moments: the answers of the clients that do not refuse."""
    about = {"version": __version__, "method": file.text, "clients": clients}

    questions = {
        client: encode(
            Packet(
                "moments",
                {
                    **about,
                    "inner": {"kind": step.kind, "fields": dict(step.fields)},
                    "count": len(step.arrays),
                },
                step.arrays,
            )
        )
        for client, step in asks.items()
    }
    came = carrier.ask(questions, file.deadline)
    for client, reason in came.absent.items():
        log("absent", f"Client {client}: {reason}", {"client": client})
    answers = dict[int, Packet]()
    for client, data in came.answers.items():
        try:
            answer = decode(data)
        except PacketError as error:
            answer = Packet("refused", {"sentence": str(error)})
        if answer.kind == "summed":
            answers[client] = Packet(
                str(answer.fields.get("kind")), answer.fields.get("fields") or {}, answer.arrays
            )
        else:
            sentence = f"Client {client}: {str(answer.fields.get('sentence', 'it does not answer'))[:500]}"
            log("refused", sentence, {"client": client})
    return answers


def _shadow(form: Form, label: tuple[int, ...], met: Mapping[int, Met], run: str) -> FederatedDataset:
    """A data set with as many examples as the clients have, all of them zeros that take no memory."""
    kind = np.float32 if form.classes is None else np.int32

    def split(place: int) -> Split:
        sizes = [met[client].sizes[place] for client in range(len(met))]
        rows = sum(sizes)
        x = np.broadcast_to(np.zeros((), form.dtype), (rows, *form.shape))
        y = np.broadcast_to(np.zeros((), kind), (rows, *label))
        return Split(x, y, np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]))

    names = form.names or (None if form.classes is None else tuple(map(str, range(form.classes))))
    ids = tuple(map(str, range(len(met))))
    return FederatedDataset(
        train=split(0), valid=split(1), test=split(2), client_ids=ids, name=f"federation {run}", classes=names
    )


def _write(folder: Path, run: Run, file: ServerFile, server: Server, log: Log) -> None:
    """Writes the run folder anew; models of single clients are on their machines."""
    private = server.progress.private
    more = {"private_metrics": private} if private else {}
    about = {"deployed": True, "method": file.text, **more}
    try:
        save(run, folder, overwrite=True, unseen=None, personal=False, about=about)
    except (OSError, EvenhandError) as error:  # the state is in DIR/server: no reason to end the training
        done = run.info["rounds"]
        when = "when the server starts again" if done == file.rounds else "at the next evaluation"
        log(
            "disk",
            f"The results after round {done} could not be written: {error} They are written {when}.",
            {},
        )


def written(folder: Path) -> int | None:
    """After how many rounds the run folder was written; None: it is missing or damaged."""
    try:
        return records.read_json(folder / SUMMARY)["rounds"]
    except (OSError, EvenhandError, KeyError, TypeError):
        return None


# --- who is there -----------------------------------------------------------------------------------------------------


class Status:
    """What `evenhand deploy status` shows, in a file that is written every second or two while the server runs."""

    def __init__(self, path: Path, clients: int) -> None:
        self._path, self._lock = path, threading.Lock()
        self._facts: dict[str, Any] = {"clients": clients, "round": 0, "seconds": 0.0, "waiting": []}

    def update(self, facts: Mapping[str, Any]) -> None:
        """Takes note of facts; they are written with the next :meth:`write`."""
        with self._lock:
            self._facts |= facts

    def write(self, connected: frozenset[int]) -> None:
        """Writes the file."""
        with self._lock:
            facts = {**self._facts, "connected": sorted(connected), "updated": time.time()}
        records.write_text(self._path, records.json_text(facts))


class _Gate:
    """Lets in the clients whose keys are in the roster, also those that come into it while the server runs."""

    def __init__(self, folder: Path, admit: Admit, log: Log) -> None:
        self._folder, self._admit, self._log = folder, admit, log
        self._stamps: dict[int, tuple[int, int]] = {}
        self._doubts: dict[int, tuple[int, int]] = {}

    def look(self) -> None:
        """Admits each key that is new or has changed since the last look.

        A file that holds no key is reported once, at the second look that finds it unchanged: at the first one
        it may be the beginning of a key that is being copied.

        Raises:
          OSError: a file went away in the meantime.
        """
        for number, key in files.roster(self._folder).items():
            facts = key.stat()
            stamp = facts.st_mtime_ns, facts.st_size
            if self._stamps.get(number) == stamp:
                continue
            try:
                self._admit(number, key)
            except EvenhandError as error:
                if self._doubts.get(number) != stamp:
                    self._doubts[number] = stamp
                    continue
                self._log(
                    "refused", f"The key of client {number} is not accepted: {error}", {"client": number}
                )
            self._stamps[number] = stamp


@contextmanager
def _status_of(folder: Path, file: ServerFile, carrier: Carrier, gate: _Gate) -> Generator[Status]:
    """A status that a thread keeps writing; the thread also looks at the roster."""
    status, ended = Status(folder / "server" / _STATUS, len(files.roster(folder))), threading.Event()
    status.update({"run": file.run, "rounds": file.rounds, "activity": "starting"})

    def keep() -> None:
        while True:
            # A full disk or a link that is down: the next attempt may succeed.
            with suppress(OSError, EvenhandError):
                gate.look()
                status.write(carrier.connected())
            if ended.wait(_LOOK):
                return

    thread = threading.Thread(target=keep, name="evenhand status", daemon=True)
    thread.start()
    try:
        yield status
    finally:
        ended.set()
        thread.join(5)
        with suppress(OSError, EvenhandError):
            status.write(carrier.connected())


def read_status(folder: Path) -> dict[str, Any]:
    """What the server of a federation has last said of itself.

    Raises:
      EvenhandError: it has not run yet.
    """
    path = folder / "server" / _STATUS
    files.read_server(folder)
    if not path.is_file():
        raise EvenhandError(
            f"{folder}: its server has not run yet: start it with `evenhand deploy server {quoted(folder)}`."
        )
    return records.read_json(path)


# --- a client ---------------------------------------------------------------------------------------------------------


def client_node(
    folder: Path,
    file: ClientFile,
    build: Callable[[Form], Algorithm],
    data: FederatedDataset,
    log: Log,
    *,
    on_end: Callable[[], None] = lambda: None,
) -> Node:
    """The client of a folder, with its examples.

    Args:
      folder: the client's.
      file: what its ``client.toml`` says.
      build: ``form -> algorithm``, the method of the file for data of a form.
      data: its examples, as a data set of one client.
      log: for events.
      on_end: is called once, after the evaluation that follows the last round.

    Raises:
      EvenhandError: the folder is not complete, or the data are of several clients.
    """
    rows, ended = list[dict[str, float]](), list[bool]()

    def show(evaluated: Evaluated) -> None:
        try:
            _write_own(folder / "run", evaluated, rows)
        except (OSError, EvenhandError) as error:  # its own copy of the results is no reason not to answer
            log("disk", f"The results of client {file.number} could not be written: {error}", {})
        if evaluated.round == evaluated.agreed.terms.rounds and not ended:
            ended.append(True)  # a server that is started again evaluates again
            on_end()

    if data.num_clients != 1:
        raise EvenhandError(
            f"{data.name} has {data.num_clients} clients: give the examples of client {file.number}."
        )
    return Node(
        file.text,
        methods_of(build),
        data,
        file.allowed,
        FileStore(folder / "state.bin"),
        identity=files.client_identity(folder, file),
        protection=Protection(smallest=max(2, file.allowed.cohort), colluding=file.colluding),
        log=log,
        show=show,
    )


def refusal(sentence: str) -> bytes:
    """The answer of a client that cannot take part at all, whatever it is asked; the server logs the sentence."""
    return encode(Packet("refused", {"event": "refused", "sentence": sentence}))


def _write_own(folder: Path, evaluated: Evaluated, rows: list[dict[str, float]]) -> None:
    """Writes what a client is served as a run folder of its own, for `evenhand predict` on its machine."""
    agreed, served = evaluated.agreed, evaluated.served
    data = evaluated.data
    sizes = {"train": data.train.sizes, "valid": data.valid.sizes, "test": data.test.sizes}
    rows.append({"round": evaluated.round, **columns_of(served, sizes, np.ones(1, bool))})
    history = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    last = jnp.full(1, evaluated.round if evaluated.own else 0, jnp.int32)
    clients = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], evaluated.client)
    info: dict[str, Any] = {
        "rounds": evaluated.round,
        "charged": evaluated.round + evaluated.repeats,
        "cohort": 1,
        "lanes": 1,
        "devices": 1,
        "communication": None,
        "seconds": {},
        "examples_per_second": 0.0,
        "padded": 0.0,
        "secure_sums": 0,
    }
    if levels := agreed.algorithm.levels:
        info["levels"] = [level.name for level in levels]
    run = Run(
        algorithm=as_deployed(agreed),
        data=data,
        seed=0,
        history={**history, "round": history["round"].astype(np.int64)},
        per_round={},
        info=info,
        kept=Kept(RoundState(evaluated.server, (), clients, last)),
        clients=served.clients,
        classes=served.classes,
        malicious=np.zeros(1, bool),
        last_round=np.asarray(last, np.int64),
        level=served.level,
        remote=True,
    )
    save(run, folder, overwrite=True, unseen=None, about={"deployed": True})
