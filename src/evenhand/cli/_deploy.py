"""``evenhand deploy``: one federation on real machines, from its files to its results."""

from __future__ import annotations

import importlib
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import numpy as np
from rich.console import Console
from tyro.conf import Positional, arg

from evenhand.cli._arguments import construct, flat, options_of
from evenhand.cli._data import DataOptions
from evenhand.cli._models import ModelOptions
from evenhand.cli._options import LocalOptions, Recipe, trackers
from evenhand.cli._terminal import new_table, remark, say
from evenhand.data import Column, Features, FederatedDataset, Form, Split, from_arrays
from evenhand.data.loaders import new_rows
from evenhand.errors import EvenhandError, ModelError, whole_number
from evenhand.evaluation import private_metrics
from evenhand.network import certificates, files
from evenhand.network.carriers import Carrier, Log
from evenhand.network.deployed import Admit, client_node, event_log, read_status, serve_run, written
from evenhand.network.files import ClientFile, ServerFile
from evenhand.network.terms import check_deployable
from evenhand.records import read_arrays, write_arrays
from evenhand.report import latest
from evenhand.simulation import Run
from evenhand.testing import toy_data, toy_model
from evenhand.text import counted, quoted, visible
from evenhand.types import Algorithm
from evenhand.watch import Watcher, Watching

_Folder = Annotated[Positional[Path], arg(metavar="DIR")]
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_OF_TABLES = {"numbers", "categories", "classes"}
"""What a client's file says of the columns of its table, besides options of the loader."""
_PARTS = ("train", "valid", "test")

# --- the method of the files ------------------------------------------------------------------------------------------


def builder(method: str, options: Mapping[str, Any]) -> Callable[[Form], Algorithm]:
    """``form -> algorithm``, from an expression or a factory, and the options of the model and of the local work.

    Raises:
      EvenhandError: there is no such option, method or factory.
    """
    choices = {**options_of(ModelOptions), **options_of(LocalOptions)}
    for name, value in options.items():
        taken = choices.get(f"--{name.replace('_', '-')}")
        if taken is None or not taken.holds(value):
            raise EvenhandError(
                f"[method.options] {name} = {value!r:.40}: there is no such option, or it takes another value: see "
                "`evenhand deploy init --help`."
            )
    model_options, work_options = construct(ModelOptions, options), construct(LocalOptions, options)
    if not _FACTORY.fullmatch(method):
        recipe = Recipe(method, work_options.work)
        return lambda form: recipe.build(model_options.build(form))
    factory = _imported(method)
    return lambda form: cast(Algorithm, factory(work_options.work(model_options.build(form))))


def _imported(place: str) -> Callable[[Any], Any]:
    """The factory at ``package.module:factory``."""
    module, _, name = place.partition(":")
    try:
        factory = vars(importlib.import_module(module))[name]
    except ImportError as error:
        raise EvenhandError(
            f"method {place!r}: {module} cannot be imported ({error}): install it here."
        ) from None
    except KeyError:
        raise EvenhandError(
            f"method {place!r}: {module} has no {name}: name a factory that is in it."
        ) from None
    return cast(Callable[[Any], Any], factory)


# --- evenhand deploy init ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InitCommand:
    """Create the files of a new federation: those of its server, and those of each client."""

    folder: _Folder
    """the folder of the federation, new or empty"""
    method: str = "fedavg()"
    """training method: an expression as for `evenhand run`, or package.module:factory, a function of the local work"""
    clients: int = 3
    """number of clients"""
    rounds: int = 50
    """rounds of training"""
    cohort: int | Literal["all"] = "all"
    """clients drawn per round"""
    seed: int = 0
    """seed of the initial model and of the cohorts"""
    eval_every: Annotated[
        int | None, arg(metavar="INT", help_behavior_hint="(default: 10 times in the run)")
    ] = None
    """rounds between evaluations of all clients"""
    host: Annotated[str, arg(metavar="NAME,...")] = "localhost,127.0.0.1"
    """host names and addresses in the server's certificate; clients connect to the first one"""
    listen: Annotated[
        str | None, arg(metavar="ADDRESS", help_behavior_hint="(default: this machine only)")
    ] = None
    """address that the server listens on; 0.0.0.0: all addresses of its machine"""
    port: int = 9092
    """port of the server"""
    deadline: float = 60.0
    """seconds that clients have to answer in each exchange"""
    min_answers: int = 1
    """least number of clients of a cohort that must answer; with fewer, the exchange is repeated"""
    colluding: int = 0
    """largest number of clients that may collude with the server in secure sums"""
    metrics: Literal["numbers", "histogram", "none"] = "histogram"
    """metrics that may leave a client: its numbers, only counts in a secure histogram (5 clients or more), or none"""
    signing_request: bool = False
    """write a certificate signing request for your own authority, instead of a certificate signed by one made here"""
    test_keys: bool = False
    """for tests only: derive all keys from the seed, as a simulation does (same numbers, but nothing is secret)"""
    model: ModelOptions = field(default_factory=ModelOptions)
    local: LocalOptions = field(default_factory=LocalOptions)

    def execute(self) -> int:
        """Writes the folder and returns the exit code."""
        self._check()
        method = self.method.strip()
        if not (_FACTORY.fullmatch(method) or "(" in method):
            method = f"{method}()"
        options = {**flat(self.model), **flat(self.local)}
        build = builder(method, options)
        cohort = 0 if self.cohort == "all" else self.cohort
        with suppress(ModelError):  # the toy model is not the user's: the rest shows once the data are known
            algorithm = Recipe(method, self.local.work).build(toy_model()) if "(" in method else build(_TOY)
            check_deployable(algorithm)
        server = ServerFile(
            run="",
            method=method,
            options=options,
            rounds=self.rounds,
            cohort=cohort,
            seed=self.seed,
            eval_every=max(1, self.rounds // 10) if self.eval_every is None else self.eval_every,
            names=self._names,
            host="127.0.0.1" if self.listen is None else self.listen,
            port=self.port,
            deadline=self.deadline,
            min_answers=self.min_answers,
            colluding=self.colluding,
            test_keys=self.test_keys,
            authority="",
        )
        files.make_federation(
            self.folder, server, self.clients, {"metrics": self.metrics}, not self.signing_request
        )
        print(f"{visible(self.folder)}: a server and {counted(self.clients, 'client')}.")
        if self.metrics == "histogram" and self.clients < private_metrics.LEAST:
            print(
                f"A histogram of metrics needs at least {private_metrics.LEAST} clients, so no metrics will be shown: "
                "--metrics numbers shows those of each client."
            )
        if self.signing_request:
            print(
                f"Have {self.folder / 'server' / 'server.csr'} signed. Put the certificate beside it as "
                "server.crt, and the authority's certificate as authority.crt there and in each client's folder."
            )
        print(f"Copy {self.folder / files.CLIENTS / 'K'} to the machine of client K.")
        print(f"Start the server with `evenhand deploy server {quoted(self.folder)}`,")
        print(
            f"and each client with `evenhand deploy client {quoted(self.folder / files.CLIENTS / 'K')} --data FILE`."
        )
        return 0

    def _check(self) -> None:
        """Refuses options that are out of range, before anything is written."""
        whole_number("clients", self.clients, 1)
        whole_number("rounds", self.rounds, 1)
        whole_number("min_answers", self.min_answers, 1, self.clients)
        whole_number("colluding", self.colluding, 0)  # clients may be added before the server starts
        whole_number("port", self.port, 1, 65535)
        whole_number("seed", self.seed, 0, 2**63 - 1)
        if self.cohort != "all":
            whole_number("cohort", self.cohort, 1)
        if self.eval_every is not None:
            whole_number("eval_every", self.eval_every, 1)
        if not 0 < self.deadline < math.inf:
            raise EvenhandError(f"--deadline {self.deadline:g}: give a number of seconds above 0.")
        if not self._names:
            raise EvenhandError(f"--host {self.host!r}: give the server's name or its address.")

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.host.split(",") if name.strip())


_TOY = toy_data().form


# --- evenhand deploy add-client, split, status ------------------------------------------------------------------------


@dataclass(frozen=True)
class AddClientCommand:
    """Add a client to a federation, without touching the others."""

    folder: _Folder
    """the folder of the federation, with its authority's key"""
    metrics: Literal["numbers", "histogram", "none"] = "histogram"
    """metrics that may leave the client"""

    def execute(self) -> int:
        """Makes the client's folder and returns the exit code."""
        number = files.add_client(self.folder, {"metrics": self.metrics})
        print(f"Client {number}: copy {visible(files.client_folder(self.folder, number))} to its machine.")
        print(
            f"A server that waits for clients on this machine admits it within seconds. For a server elsewhere, copy "
            f"{visible(self.folder / files.ROSTER / f'{number}.pub')} into the same folder there. A run that has begun "
            "continues without the new client."
        )
        return 0


@dataclass(frozen=True)
class RotateCommand:
    """Replace the server's certificate, or the keys of one client, by new ones."""

    folder: _Folder
    """the folder of the federation, with its authority's key"""
    client: Annotated[int | None, arg(metavar="K", help_behavior_hint="(default: the server)")] = None
    """the client that gets new keys; its old keys are refused from then on"""
    signing_request: bool = False
    """write a certificate signing request for your own authority; the old certificate stays until you replace it"""

    def execute(self) -> int:
        """Writes the files, says which go where, and returns the exit code."""
        if self.client is not None:
            if self.signing_request:
                raise EvenhandError(
                    "--signing-request is for the server's certificate: leave it out, or --client."
                )
            made = files.rotate_client(self.folder, self.client)
            names = ", ".join(path.name for path in made)
            key = self.folder / files.ROSTER / f"{self.client}.pub"
            print(f"Client {self.client} has new keys: the old ones are refused.")
            print(
                f"Copy {names} from {visible(made[0].parent)} into the client's folder on its machine, and restart the "
                "client. Its client.toml and its state stay as they are."
            )
            print(
                f"A server on this machine accepts the new key within seconds. For one elsewhere, copy {visible(key)}."
            )
            return 0
        path = files.rotate_server(self.folder, self.signing_request)
        if self.signing_request:
            print(
                f"Have {visible(path)} signed, and put the certificate beside it as server.crt. Then move server.crt "
                f"and server.key together into {visible(self.folder / 'server')}, and restart the server."
            )
        else:
            print(
                f"{visible(path)} and server.key are new: restart the server; if it runs elsewhere, copy both there "
                "first. Clients need no change, because they trust the authority."
            )
        return 0


@dataclass(frozen=True)
class SplitCommand:
    """Split a data set into the clients' folders, to try a deployment on one machine."""

    folder: _Folder
    """the folder of the federation"""
    data: DataOptions = field(default_factory=DataOptions)

    def execute(self) -> int:
        """Writes ``data.npz`` for each client and returns the exit code."""
        clients = len(files.roster(self.folder))
        data = self.data.load()
        if data.num_clients != clients:
            raise EvenhandError(
                f"{data.name} has {counted(data.num_clients, 'client')}, and the federation {clients}: "
                f"{self._cure(data, clients)}."
            )
        # One client may lack the last class.
        classes = {} if data.num_classes is None else {"classes": np.array(data.num_classes)}
        for k in range(clients):
            arrays = dict(classes)
            for part, split in zip(_PARTS, (data.train, data.valid, data.test), strict=True):
                arrays[f"x_{part}"], arrays[f"y_{part}"] = map(np.asarray, split.client(k))
            write_arrays(files.client_folder(self.folder, k) / "data.npz", arrays)
        print(
            f"{visible(self.folder / files.CLIENTS / 'K' / 'data.npz')}: the examples of {clients} clients."
        )
        return 0

    def _cure(self, data: FederatedDataset, clients: int) -> str:
        """How the data get as many clients as the federation."""
        if self.data.counts(data):
            return f"give --clients {clients}"
        new = f"make a federation with `evenhand deploy init DIR --clients {data.num_clients}`"
        if data.num_clients < clients:
            return new
        return f"{new}, or name the clients to keep in a file and give --clients-from FILE"


@dataclass(frozen=True)
class StatusCommand:
    """Show which clients are connected, how far the run has got, and what was refused."""

    folder: _Folder
    """the folder of the federation"""

    def execute(self) -> int:
        """Prints it and returns the exit code."""
        status, console = read_status(self.folder), Console(highlight=False)
        age = time.time() - float(status["updated"])
        state = "not running" if age > 10.0 else str(status["activity"])
        if status["activity"] == "done":
            state = "done"
        done, seconds = int(status["round"]), float(status["seconds"])
        say(
            console,
            f"Run {status['run']}: {state}, round {done} of {status['rounds']}, {seconds:.1f} s of training.",
        )
        connected = set(status["connected"]) if age <= 10.0 else set[int]()
        table = new_table()
        for title in ("client", "connected", "waited for"):
            table.add_column(title)
        for client in range(int(status["clients"])):
            table.add_row(
                str(client),
                "yes" if client in connected else "no",
                "yes" if client in status["waiting"] else "",
            )
        console.print(table)
        counts = _events(self.folder / "server.log")
        if counts:
            say(
                console,
                "Events: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) + ".",
            )
        return 0


def _events(path: Path) -> dict[str, int]:
    """How often each event is in a log."""
    counts: dict[str, int] = {}
    if path.is_file():
        for line in path.read_text("utf-8", "replace").splitlines():
            if match := re.search(r'"event": "(\w+)"', line):
                counts[match[1]] = counts.get(match[1], 0) + 1
    return counts


# --- evenhand deploy server -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerCommand:
    """Run the server of a federation; a server that was stopped continues where it left off."""

    folder: _Folder
    """the folder of the federation"""
    watch: Annotated[str | None, arg(metavar="TRACKER,...", help_behavior_hint="(default: none)")] = None
    """experiment trackers to log to: tensorboard (files in the folder), mlflow, wandb"""
    quiet: bool = False
    """print nothing but errors"""

    def execute(self) -> int:
        """Trains to the last round and returns the exit code."""
        from evenhand.network.carriers.flower import link

        folder, file = self.folder, files.read_server(self.folder)
        build = builder(file.method, file.options)
        console = Console(stderr=True, quiet=self.quiet, highlight=False)
        made = trackers(self.watch, folder)
        log = event_log(folder / "server.log", lambda sentence: say(console, sentence, style="yellow"))
        place, roster = folder / "server", files.roster(folder)
        authority = certificates.authority_file(folder / files.AUTHORITY)
        if not authority.is_file():
            authority = certificates.authority_file(place)
        own = certificates.Certificates(authority, place / "server.crt", place / "server.key")
        with link(place / "flower", file.host, file.port, own, roster, log=log) as carrier:
            say(console, f"Run {file.run} listens on {file.host}:{file.port} for {len(roster)} clients.")
            train(folder, build, carrier, log, console, made, admit=carrier.register)
        if written(folder / "run") != file.rounds:
            say(
                console,
                f"Done, but {folder / 'run'} lacks the results: see {folder / 'server.log'}, and start again.",
            )
            return 1
        say(console, f"Done: `evenhand report {quoted(folder / 'run')}` writes the page of the results.")
        return 0


def train(
    folder: Path,
    build: Callable[[Form], Algorithm],
    carrier: Carrier,
    log: Log,
    console: Console,
    made: Sequence[Watcher] = (),
    *,
    admit: Admit = lambda number, key: None,
    pause: float = 1.0,
) -> None:
    """Trains a federation to its last round, and shows each evaluation in the terminal and in trackers.

    Args:
      folder: that of the federation.
      build: ``form -> algorithm``, the method of its file.
      carrier: the way to its clients.
      log: for events.
      console: where a line about each evaluation goes.
      made: trackers, which begin with the first evaluation.
      admit: as in :func:`evenhand.network.deployed.serve_run`, like ``pause``.
      pause: likewise.

    Raises:
      EvenhandError: the files are damaged, or the clients do not fit together.
    """
    file = files.read_server(folder)
    begin, status = time.perf_counter(), "interrupted"
    watching: Watching | None = None
    try:
        for run in serve_run(folder, build, carrier, log, admit=admit, pause=pause):
            if watching is None and made:
                settings = {**file.options, "method": file.method, "rounds": file.rounds, "seed": file.seed}
                watching = Watching(made, f"{file.method} in federation {file.run}", settings)
            if watching is not None:
                watching.show(run.history)
            _say_round(console, run, file.rounds, time.perf_counter() - begin, len(carrier.connected()))
            if run.info["rounds"] == file.rounds:
                # Not may_win, as of a simulation: here the NaN of a client may mean that it was away.
                grave = [finding for finding in run.view().findings if finding.kind == "diverged"]
                status = "diverged" if any(finding.split != "test" for finding in grave) else "done"
    # As of a simulation: after Ctrl-C a run is interrupted, not failed.
    except Exception:
        status = "failed"
        raise
    finally:
        if watching is not None:
            watching.end(status)


def _say_round(console: Console, run: Run, rounds: int, seconds: float, connected: int) -> None:
    """One line about an evaluation: how far the run is, how long it took, who is there, and what was measured."""
    row = {name: float(values[-1]) for name, values in run.history.items()}
    numbers = (
        latest(row)
        if any("accuracy" in name or "loss" in name for name in row)
        else "no metrics leave the clients"
    )
    say(
        console,
        f"round {run.info['rounds']} of {rounds}, {seconds:.0f} s, {counted(connected, 'client')} connected: {numbers}",
    )


# --- evenhand deploy client -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientCommand:
    """Run one client, which trains on its own data at the server's request until it is stopped."""

    folder: _Folder
    """the client's folder, with its client.toml"""
    data: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="(required)")] = None
    """the client's data, in any format that `evenhand run` reads; all examples belong to this client"""
    poll: float = 1.0
    """seconds between polls of the server for new messages"""
    quiet: bool = False
    """print nothing but errors"""

    def execute(self) -> int:
        """Answers the server for ever."""
        from evenhand.network.carriers.flower import serve

        file = files.read_client(self.folder)
        if self.data is None:
            raise EvenhandError(f"client {file.number} has no data: give --data FILE.")
        if not 0 < self.poll <= 60:
            raise EvenhandError(f"--poll {self.poll:g}: give a number of seconds above 0, up to 60.")
        console = Console(stderr=True, quiet=self.quiet, highlight=False)
        log = event_log(self.folder / "client.log", lambda sentence: say(console, sentence, style="yellow"))
        data = own_data(self.data, file)

        def on_end() -> None:
            say(
                console,
                f"Run {file.run} is done: {self.folder / 'run'} holds the model that this client is served. The "
                "client stays connected until it is stopped.",
            )

        build = builder(file.method, file.options)
        node = client_node(self.folder, file, build, data, log, on_end=on_end)
        say(console, f"Client {file.number} of run {file.run} has {data.train.rows:,} examples for training.")
        serve(
            node.answer,
            address=file.server,
            authority=certificates.authority_file(self.folder),
            key=self.folder / "node.key",
            folder=self.folder / "flower",
            log=log,
            poll=self.poll,
        )
        return 0


def own_data(path: str, file: ClientFile) -> FederatedDataset:
    """The examples of one client, as a data set of this client alone.

    Raises:
      EvenhandError: they cannot be read, or the file's ``[data]`` has an option that there is not.
    """
    name, choices = str(file.number), options_of(DataOptions)
    options = {option: value for option, value in file.data.items() if option not in _OF_TABLES}
    for option, value in options.items():
        taken = choices.get(f"--{option.replace('_', '-')}")
        if taken is None or not taken.holds(value):
            raise EvenhandError(
                f"[data] {option} = {value!r:.40}: there is no such option, or it takes another value: see "
                "`evenhand run --help`."
            )
    if path.endswith(".npz") and (parts := _parts_in(Path(path), name)) is not None:
        return parts
    chosen = construct(DataOptions, {**options, "data": path})
    if chosen.vocabulary is not None and chosen.text_column is not None:
        raise EvenhandError(
            "[data] vocabulary: each client would count the words of its own texts: write buckets = 1024 in its place."
        )
    if "numbers" in file.data or "categories" in file.data or chosen.text_column is not None:
        return _rows_of_table(path, chosen, file)
    # Columns of numbers as they are: their scale is that of all clients, which no client knows alone.
    data = replace(chosen, standardize=False, standardize_target=False).pooled().load()
    data = replace(data if data.num_clients == 1 else data.pooled, client_ids=(name,))
    if data.features is None:
        return data
    return replace(data, features=data.features._replace(standardized=chosen.standardize))


def _rows_of_table(path: str, options: DataOptions, file: ClientFile) -> FederatedDataset:
    """The rows of a table, whose columns and categories are those of the client's file, as in all others.

    Raises:
      EvenhandError: a column or the labels are missing, or a label is none of the classes.
    """
    categories = dict(file.data.get("categories", {}))
    numbers = [Column(str(name), "number") for name in file.data.get("numbers", [])]
    texts = [
        Column(str(name), "category", categories=tuple(map(str, values)))
        for name, values in categories.items()
    ]
    features = Features((*numbers, *texts, *options.text_columns()), options.standardize)
    rows = new_rows(path, features=features, label=options.label_column)
    if rows.labels is None:
        raise EvenhandError(f"{path} has no column {options.label_column!r}: set label_column in [data].")
    for column, (count, text) in rows.unseen.items():
        remark(
            f"{path}: {count} rows have a value in {column!r}, such as {text!r}, that is not among its categories."
        )
    classes = [str(name) for name in file.data.get("classes", [])]
    if classes:
        if unknown := sorted(set(rows.labels.tolist()) - set(classes)):
            raise EvenhandError(
                f"{path}: the label {unknown[0]!r} is not among the classes in [data]: {classes}."
            )
        y = np.array([classes.index(label) for label in rows.labels.tolist()], np.int32)
    else:
        y = rows.labels.astype(np.float32 if options.regression else np.int32)
    data = from_arrays(
        rows.x,
        y,
        np.full(len(y), str(file.number)),
        test_fraction=options.test_fraction,
        valid_fraction=options.valid_fraction,
        seed=options.data_seed,
        name=path,
        classes=classes or None,
    )
    return replace(data, features=features)


def _parts_in(path: Path, name: str) -> FederatedDataset | None:
    """The examples of a file with arrays ``x_train``, ``y_train`` and so on; None: it has none such."""
    arrays = read_arrays(path)
    if "x_train" not in arrays:
        return None

    def split(part: str) -> Split:
        x = arrays.get(f"x_{part}", arrays["x_train"][:0])
        return Split(x, arrays.get(f"y_{part}", arrays["y_train"][:0]), np.array([0, len(x)]))

    try:
        train, valid, test = map(split, _PARTS)
        count = int(arrays["classes"]) if "classes" in arrays else 0
        names = tuple(map(str, range(count))) or None
        return FederatedDataset(
            train=train, valid=valid, test=test, client_ids=(name,), name=str(path), classes=names
        )
    except KeyError as error:
        raise EvenhandError(f"{path} has no array {error}: it needs x_train and y_train.") from None
