"""The app of `evenhand deploy app`: Flower's two apps, called as Flower calls them, train as a simulation does.

Flower's grid is stood in for by one that calls the `ClientApp` in this process with the node's own context.
"""

import importlib.util
import sys
import tomllib
import warnings

import jax
import numpy as np
import pytest

import evenhand as eh
from evenhand.cli import main
from evenhand.cli._data import DataOptions
from evenhand.cli._deploy import InitCommand, SplitCommand, builder
from evenhand.network import files
from evenhand.network.carriers._flwr import content_of
from evenhand.network.carriers.grid import GridCarrier
from evenhand.wire import Packet, decode, encode

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages that Flower uses
    from flwr.app import (  # pyright: ignore[reportMissingImports]
        Array,
        ArrayRecord,
        ConfigRecord,
        Context,
        Error,
        Message,
        MetricRecord,
        RecordDict,
    )
    from flwr.cli.config_utils import load_and_validate  # pyright: ignore[reportMissingImports]
    from flwr.serverapp import Grid  # pyright: ignore[reportMissingImports]
    from flwr.supercore.task_identity import TaskIdentity  # pyright: ignore[reportMissingImports]

CLIENTS = 3
DATA = DataOptions(data="digits", clients=CLIENTS)
NODES = {number: 900 + 7 * number for number in range(CLIENTS)}  # no order that a client could be told by


@pytest.fixture(autouse=True)
def _task(monkeypatch):
    """Flower's messages are made in a task of its own processes alone."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class InProcess(Grid):
    """Nodes that answer when their answer is fetched; those in ``down`` fail, those in ``silent`` never answer."""

    def __init__(self, app, configs):
        self.app, self.configs, self.posted, self.calls, self.replies = app, configs, {}, [], []
        self.down, self.silent = set(), set()

    def get_node_ids(self):
        return list(self.configs)

    def push_messages(self, messages):
        names = []
        for message in messages:
            name = f"message {len(self.calls)}"
            self.calls.append(message)
            message.metadata.__dict__["_message_id"] = name
            self.posted[name] = message
            names.append(name)
        return names

    def pull_messages(self, message_ids):
        replies = []
        for name in message_ids:
            message = self.posted[name]
            node = message.metadata.dst_node_id
            if node in self.silent:
                continue
            if node in self.down:
                replies.append(Message(Error(2, "ValueError"), reply_to=message))
                continue
            context = Context(1, node, self.configs[node], RecordDict(), {})
            replies.append(self.app(message, context))
            self.replies.append(replies[-1])
        return replies

    def set_run(self, run):
        raise NotImplementedError

    run = property(set_run)  # pyright: ignore[reportArgumentType]

    def create_message(self, *arguments, **options):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError


def loaded(path):
    """The ``app`` of a module of the written app."""
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{path.parent.parent.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.app


def written(folder, method, **options):
    """The folder of a federation whose app is written, with its data; and the app's grid."""
    standing = {"clients": CLIENTS, "rounds": 2, "eval_every": 1, "metrics": "numbers"}
    InitCommand(folder, method=method, **(standing | options)).execute()
    SplitCommand(folder, DATA).execute()
    assert main(["deploy", "app", str(folder)]) == 0
    configs = {}
    for number, node in NODES.items():
        place = files.client_folder(folder, number)
        configs[node] = {"folder": str(place), "data": str(place / "data.npz")}
    return folder, InProcess(loaded(folder / "app" / "client_app.py"), configs)


def run_app(folder, grid):
    """What ``flwr run`` does with the server's half."""
    project = tomllib.loads((folder / "app" / "pyproject.toml").read_text())
    app = loaded(folder / "app" / "server_app.py")
    app(grid, Context(1, 0, {}, RecordDict(), project["tool"]["flwr"]["app"]["config"]))
    return eh.load_run(folder / "run")


def simulated(folder):
    file, data = files.read_server(folder), DATA.load()
    algorithm = builder(file.method, file.options)(data.form)
    cohort = file.cohort or None
    return eh.simulate(algorithm, data, rounds=file.rounds, seed=file.seed, cohort=cohort, eval_every=1)


def gap(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.max(np.abs(np.asarray(x) - np.asarray(y)))) for x, y in leaves)


@pytest.mark.parametrize("method", ["fedavg()", "scaffold()"])
def test_the_app_trains_as_a_simulation_does(tmp_path, method):
    """Also a method whose clients keep a state, which is on disk between two of their processes."""
    folder, grid = written(tmp_path / "fed", method, cohort=2)
    run, wanted = run_app(folder, grid), simulated(folder)
    assert gap(run.params, wanted.params) < 1e-6
    assert run.summary() == pytest.approx(dict(wanted.summary()), abs=1e-6)
    assert len(grid.calls) > 2 * CLIENTS
    # Once more: it is done, so that nodes are greeted and no client is asked for anything.
    asked = len(grid.calls)
    assert gap(run_app(folder, grid).params, run.params) == 0.0
    assert len(grid.calls) == asked + CLIENTS


def test_the_app_is_one_that_flower_accepts(tmp_path):
    folder, _ = written(tmp_path / "fed", "fedavg()")
    project, remarks = load_and_validate(folder / "app" / "pyproject.toml", check_module=True)
    assert project["project"]["license"] == {"file": "LICENSE"} and remarks == []
    for name in ("server_app.py", "client_app.py"):
        assert len((folder / "app" / name).read_text().splitlines()) <= 16


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("fedavg(aggregator=secure(mean()))", "takes secure sums"),
        ("fedavg(aggregator=geometric_median(passes=3))", "takes sums of several passes"),
    ],
)
def test_a_method_whose_clients_must_remember_is_refused(tmp_path, capsys, method, words):
    InitCommand(tmp_path / "fed", method=method, clients=CLIENTS).execute()
    assert main(["deploy", "app", str(tmp_path / "fed")]) == 2
    said = capsys.readouterr().err
    assert words in said and "evenhand deploy client" in said
    assert not (tmp_path / "fed" / "app").exists()


def test_a_client_that_fails_or_is_silent_is_absent_and_others_count(tmp_path):
    _, grid = written(tmp_path / "fed", "fedavg()")
    events = []
    carrier = GridCarrier(grid, CLIENTS, lambda *event: events.append(event), pause=0.01)
    assert carrier.connected() == frozenset(range(CLIENTS))
    grid.down.add(NODES[1])
    grid.silent.add(NODES[2])
    hello = b"no packet"
    answers, absent = carrier.ask({0: hello, 1: hello, 2: hello, 7: hello}, 0.5)
    assert set(answers) == {0}
    assert absent == {
        1: "its app failed (ValueError).",
        2: "no answer within 0 seconds.",
        7: "it is not connected.",
    }
    assert events == []


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({"message": ConfigRecord({"bytes": 7})}),
        RecordDict({"message": ConfigRecord({"bytes": "0"})}),
        RecordDict({"message": ConfigRecord({"bytes": [b"0"]})}),
        RecordDict({"message": MetricRecord({"bytes": 1.5})}),
        RecordDict({"message": ArrayRecord({"bytes": Array(np.zeros(1, np.float32))})}),
        RecordDict({"message": ConfigRecord({"bytes": bytes(101)})}),
        RecordDict({}),
    ],
)
def test_an_answer_that_is_none_does_not_end_the_server(content):
    """Whatever a node's own code sends, as a greeting's answer or as another one."""
    events, contents = [], iter([RecordDict({"message": ConfigRecord({"bytes": b"0"})}), content, content])
    app = lambda message, context: Message(next(contents), reply_to=message)  # noqa: E731
    grid = InProcess(app, {4: {}})
    carrier = GridCarrier(grid, 1, lambda *event: events.append(event), pause=0.01, largest=100)
    assert carrier.connected() == frozenset({0})
    answers, absent = carrier.ask({0: b"question"}, 1.0)
    assert answers == {} and len(absent[0]) > 5 and events == []
    grid.configs[5] = grid.configs.pop(4)
    assert carrier.connected() == frozenset()
    [(event, sentence, fields)] = events
    assert (event, fields) == ("refused", {"node": 5}) and sentence.startswith("Node 5 is not admitted: ")


def test_a_second_node_of_one_client_is_refused_until_the_first_is_gone(tmp_path):
    _, grid = written(tmp_path / "fed", "fedavg()")
    events = []
    carrier = GridCarrier(grid, CLIENTS, lambda *event: events.append(event), pause=0.01)
    assert carrier.connected() == frozenset(range(CLIENTS))
    twin = grid.configs[5] = grid.configs[NODES[1]]
    assert carrier.connected() == frozenset(range(CLIENTS))
    [(event, sentence, fields)] = events
    assert (event, fields) == ("refused", {"node": 5})
    assert "client 1, as another node does" in sentence
    carrier.ask({1: b""}, 0.2)
    assert grid.calls[-1].metadata.dst_node_id == NODES[1]
    # A SuperNode that was started again has another number.
    del grid.configs[5], grid.configs[NODES[1]]
    grid.configs[6] = twin
    assert carrier.connected() == frozenset(range(CLIENTS))
    carrier.ask({1: b""}, 0.2)
    assert grid.calls[-1].metadata.dst_node_id == 6


def test_no_secure_sum_of_a_histogram_is_begun_and_no_metric_leaves(tmp_path):
    """The counts would have to wait in a client's memory for the messages of the sum."""
    folder, grid = written(tmp_path / "fed", "fedavg()", metrics="histogram", rounds=1)
    run = run_app(folder, grid)
    assert not any("accuracy" in name for name in run.history)
    answers = [decode(content) for reply in grid.replies if (content := content_of(reply))[:1] not in b"012"]
    withheld = [answer for answer in answers if answer.kind == "withheld"]
    assert len(withheld) == 2 * CLIENTS
    assert all("histogram" not in answer.fields for answer in withheld)
    assert "summed" not in {answer.kind for answer in answers}


@pytest.mark.parametrize(("standardize", "kind"), [("true", "refused"), ("false", "here")])
def test_columns_of_numbers_are_taken_as_they_are_or_not_at_all(tmp_path, standardize, kind):
    folder, grid = written(tmp_path / "fed", "fedavg()")
    place = files.client_folder(folder, 0)
    rows = "\n".join(f"{20 + 7 * i % 50},{'yes' if i % 3 else 'no'}" for i in range(20))
    (place / "data.csv").write_text(f"age,sold\n{rows}\n")
    extra = (
        f'label_column = "sold"\nnumbers = ["age"]\nclasses = ["no", "yes"]\nstandardize = {standardize}\n'
    )
    (place / files.CLIENT).write_text((place / files.CLIENT).read_text() + extra)
    grid.configs[NODES[0]]["data"] = str(place / "data.csv")
    carrier = GridCarrier(grid, CLIENTS, lambda *event: None, pause=0.01)
    about = {"version": eh.__version__, "method": files.read_server(folder).text}
    answer = decode(carrier.ask({0: encode(Packet("hello", about))}, 20.0).answers[0])
    assert answer.kind == kind
    assert ("standardize = false" in answer.fields.get("sentence", "")) == (kind == "refused")


def test_a_client_whose_data_cannot_be_read_says_so_at_home_alone(tmp_path):
    folder, grid = written(tmp_path / "fed", "fedavg()")
    node = NODES[0]
    grid.configs[node]["data"] = str(tmp_path / "secret-name.csv")
    carrier = GridCarrier(grid, CLIENTS, lambda *event: None, pause=0.01)
    answers = carrier.ask({0: b"anything"}, 5.0).answers
    assert b"its client.log has the reason" in answers[0] and b"secret-name" not in answers[0]
    assert "secret-name" in (files.client_folder(folder, 0) / "client.log").read_text()
