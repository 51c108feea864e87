"""``evenhand deploy app``: a federation as an ordinary Flower app, and what its two halves call.

Flower starts a new process for each message.  A client therefore keeps nothing in memory between two messages: what
its folder holds on disk is all it knows, which is enough for every method whose exchanges are one question each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import Positional, arg

from evenhand import records
from evenhand._version import __version__
from evenhand.cli._deploy import builder, own_data, train
from evenhand.cli._terminal import say
from evenhand.data import Form
from evenhand.errors import EvenhandError, ModelError
from evenhand.network import files
from evenhand.network.carriers import Log
from evenhand.network.carriers.grid import GridCarrier, answered
from evenhand.network.deployed import client_node, event_log, refusal
from evenhand.network.files import ClientFile, ServerFile
from evenhand.network.terms import check_deployable, is_masked
from evenhand.testing import toy_data
from evenhand.text import visible
from evenhand.types import Algorithm, Sum

__all__ = ["AppCommand", "answer", "serve"]

_TOY = toy_data().form
_COLUMNS = (
    "Standardising columns of numbers takes a secure sum, which no Flower app supports: write standardize = false "
    "into [data] of each client.toml."
)


# --- what the app's halves call ---------------------------------------------------------------------------------------


def serve(grid: Any, folder: str) -> None:
    """Trains a federation to its last round over Flower's grid; called again, it continues where it was.

    Args:
      grid: Flower's, as a ``ServerApp`` gets it.
      folder: that of the federation, where the ``ServerApp`` runs.

    Raises:
      EvenhandError: the files are damaged, the clients do not fit together, or the method is none for an app.
    """
    home = Path(folder)
    file, console = files.read_server(home), Console(highlight=False)
    log = event_log(home / "server.log", lambda sentence: say(console, sentence))
    carrier = GridCarrier(grid, len(files.roster(home)), log)
    with records.held(home / "server"):  # a second `flwr run` beside this one would be a second server
        train(home, _built(file), carrier, log, console)


def answer(message: Any, folder: str, data: str) -> Any:
    """A client's reply to one message.

    Args:
      message: Flower's, as a ``ClientApp`` gets it.
      folder: the client's, with its client.toml, where the ``ClientApp`` runs.
      data: its examples, as ``evenhand deploy client --data`` takes them.

    Raises:
      EvenhandError: the folder has no ``client.toml`` as it should be.
    """
    home = Path(folder)
    file = files.read_client(home)
    log = event_log(home / "client.log", lambda sentence: say(Console(highlight=False), sentence))
    return answered(message, file.number, partial(_answer, home, file, data, log))


def _answer(home: Path, file: ClientFile, data: str, log: Log, content: bytes) -> bytes:
    """The answer of the client in a folder, which is made for this message alone."""
    try:
        # A process that outlived its deadline may still be at work here.
        with records.held(home):
            examples = own_data(data, file)
            if examples.features is not None and examples.features.standardized:
                return refusal(_COLUMNS)
            # A histogram is a secure sum, too.
            file = file._replace(allowed=file.allowed._replace(histogram=False))
            return client_node(home, file, _built(file), examples, log).answer(content)
    except EvenhandError as error:
        log("refused", str(error), {})
        # Its sentence may hold what stands in the client's data.
        return refusal("The client could not be started: its client.log has the reason.")


def _built(file: ServerFile | ClientFile) -> Callable[[Form], Algorithm]:
    """What builds the method of a file, if it is one for an app."""
    build = builder(file.method, file.options)

    def checked(form: Form) -> Algorithm:
        algorithm = build(form)
        check_app(algorithm)
        return algorithm

    return checked


def check_app(algorithm: Algorithm) -> None:
    """Returns if each exchange of a method is one question to a client.

    Raises:
      EvenhandError: clients would have to keep something in memory between two messages.
    """
    for phase in algorithm.phases:
        aggregator = phase.aggregator
        if is_masked(aggregator) or (isinstance(aggregator, Sum) and aggregator.passes > 1):
            cause = "secure sums" if is_masked(aggregator) else "sums of several passes"
            raise EvenhandError(
                f"{algorithm.name} takes {cause}, for which a client keeps secrets in memory between two messages, but "
                "Flower starts a process for each message: use `evenhand deploy server` and `evenhand deploy client`."
            )


# --- evenhand deploy app ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AppCommand:
    """Write a federation as an ordinary Flower app, for those who start runs with `flwr run`."""

    folder: Annotated[Positional[Path], arg(metavar="DIR")]
    """the folder of the federation"""

    def execute(self) -> int:
        """Writes ``DIR/app`` and returns the exit code."""
        file, place = files.read_server(self.folder), self.folder / "app"
        with suppress(ModelError):  # the toy model is not the user's: both halves check the method again
            algorithm = _built(file)(_TOY)
            check_deployable(algorithm)
        place.mkdir(exist_ok=True)
        folder = json.dumps(str(self.folder.absolute()))  # a text of TOML
        texts = {
            "pyproject.toml": _PROJECT.format(run=file.run, version=__version__, folder=folder),
            "LICENSE": _LICENSE,
            "server_app.py": _SERVER.format(run=file.run),
            "client_app.py": _CLIENT.format(run=file.run),
        }
        for name, text in texts.items():
            records.write_text(place / name, text)
        print(f"{visible(place)} is a Flower app: {', '.join(texts)}.")
        print(
            "Install evenhand[flower] where your SuperLink and your SuperNodes run, and start them with yours:"
        )
        print("  flower-superlink ... --disable-runtime-dependency-installation")
        print("  flower-supernode ... --node-config \"folder='/path/of/clients/K' data='/path/of/its/data'\"")
        print(f"  flwr run {place} YOUR-SUPERLINK --stream")
        print("Your SuperLink decides which nodes may join: a node itself states which client it is.")
        if any(metrics == "histogram" for metrics in _metrics_of(self.folder)):
            print("A histogram takes a secure sum: clients that allow only histograms send no metrics.")
        return 0


def _metrics_of(folder: Path) -> list[str]:
    """What metrics may leave the clients whose folders are here."""
    places = [files.client_folder(folder, number) for number in files.roster(folder)]
    return [files.read_client(place).metrics for place in places if (place / files.CLIENT).is_file()]


_PROJECT = """\
# A federation of Evenhand as a Flower app: `flwr run` starts its server, which continues a run that was stopped.
[project]
name = "evenhand-{run}"
version = "1.0.0"
description = "Federation {run} of Evenhand."
license = {{ file = "LICENSE" }}
dependencies = ["flwr>=1.41,<1.43", "evenhand[flower]=={version}"]

[tool.flwr.app]
publisher = "evenhand"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
folder = {folder}  # of the federation, where the ServerApp runs
"""

_LICENSE = "This app is yours: put its license here.\n"

_SERVER = '''\
"""The server of federation {run}."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from evenhand.cli.flower_app import serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    serve(grid, str(context.run_config["folder"]))
'''

_CLIENT = '''\
"""A client of federation {run}: the node config says where its folder and its data are."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from evenhand.cli.flower_app import answer

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    return answer(message, str(context.node_config["folder"]), str(context.node_config["data"]))
'''
