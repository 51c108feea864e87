"""One network of Flower trains six methods, each as a simulation with the same seed does.

One server with its SuperLink, four clients with their SuperNodes, TLS and keys, on real processes; each method is a
federation of its own, which ``evenhand deploy init`` makes.
"""

import json

import jax
import numpy as np
import pytest
from federation import CLIENTS, DATA, RESIDENT, gap, kept, made
from stage import Programs, free_port

import evenhand as eh
from evenhand.cli._deploy import builder
from evenhand.network import files
from tests.transcripts import traced

ROUNDS, SEED = 3, 3
METHODS = {
    "FedAvg": "fedavg()",
    "SCAFFOLD": "scaffold()",
    "Ditto": "ditto(delta_fl(theta=0.7), lam=1)",
    "geometric median": "fedavg(aggregator=geometric_median(passes=3))",
    "DP-FedAvg": "dp_fedavg(clip=1.0, noise_multiplier=0.2, rate=0.75)",
    "secure mean": "fedavg(aggregator=secure(mean()))",
}
# Fewer than all are drawn where the method does not say how many: who is drawn must be the same, too.
COHORTS = {"FedAvg": 3, "SCAFFOLD": 2}
# Two runs at once: neither gets what is the other's.
TOGETHER = ("SCAFFOLD", "Ditto")


class Network:
    """The processes, and what each federation has come to; trained when it is first asked for."""

    def __init__(self, home, programs):
        self.home, self.folders, port = home, {}, free_port()
        for name, method in METHODS.items():
            self.folders[name] = made(
                home / name,
                method,
                port,
                rounds=ROUNDS,
                seed=SEED,
                deadline=20.0,
                cohort=COHORTS.get(name, "all"),
            )
        first = next(iter(self.folders.values()))
        settings = {"home": str(first), "port": port, "pause": 0.2}
        self.server = programs.start(
            RESIDENT, "server", json.dumps(settings), output=home / "server.txt", talks=True
        )
        for number in range(CLIENTS):
            places = [str(files.client_folder(folder, number)) for folder in self.folders.values()]
            settings = {"folders": places, "poll": 0.25}
            programs.start(RESIDENT, "client", json.dumps(settings), output=home / f"client{number}.txt")
        self.measured = {}

    def trained(self, name):
        """The folder of a federation that has trained."""
        if not self.measured:
            assert self.server.reply() == "ready"
        if name not in self.measured:
            names = TOGETHER if name in TOGETHER else (name,)
            took = self.server.ask([str(self.folders[name]) for name in names])
            self.measured |= {name: took[str(self.folders[name])] for name in names}
        return self.folders[name]


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    programs = Programs()
    try:
        network = Network(tmp_path_factory.mktemp("methods"), programs)
        yield network
        for name, took in network.measured.items():
            print(line_of(name, took))  # noqa: T201  (for docs/performance.md: pytest -s)
    finally:
        programs.close()


def line_of(name, took):
    seconds = took["seconds"]["train"] / ROUNDS
    down, up = (took["bytes"][way] / ROUNDS / CLIENTS / 1000 for way in ("down", "up"))
    return f"| {name} | {seconds:.2f} | {took['asked'] / ROUNDS:.1f} | {down:.1f} | {up:.1f} |"


def simulated(folder, seed=SEED):
    file, data = files.read_server(folder), DATA.load()
    algorithm = builder(file.method, file.options)(data.form)
    cohort = (file.cohort or CLIENTS) if algorithm.sampling.rate is None else None
    return eh.simulate(algorithm, data, rounds=file.rounds, cohort=cohort, seed=seed, eval_every=1)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_on_a_network_equals_its_simulation(network, name):
    folder = network.trained(name)
    run, oracle = eh.load_run(folder / "run"), simulated(folder)
    tolerance = 0.0 if name == "secure mean" else 1e-6
    assert gap(run.params, oracle.params) <= tolerance
    assert run.info["rounds"] == ROUNDS

    # What clients keep, as it is on their disks once the last evaluation has told them what counted.
    for number in range(CLIENTS):
        record = kept(folder, number)
        assert record.fields["pending"] is None
        assert gap(record.arrays, jax.tree.leaves(oracle.kept.client(number))) <= tolerance

    # What each client has measured, and what all have measured in each round.
    assert set(run.clients) == set(oracle.clients) >= {"train", "test"}
    for split, metrics in oracle.clients.items():
        assert set(run.clients[split]) == set(metrics)
        for metric, values in metrics.items():
            np.testing.assert_allclose(run.clients[split][metric], values, rtol=1e-6, atol=1e-6)
    measures = [name for name in oracle.history if name.startswith(("train_", "test_"))]
    assert len(measures) > 10
    for measure in measures:
        np.testing.assert_allclose(run.history[measure], oracle.history[measure], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["FedAvg", "DP-FedAvg"])
def test_another_seed_gives_another_model(network, name):
    """The control: what is equal above depends on the seed."""
    folder = network.trained(name)
    assert gap(eh.load_run(folder / "run").params, simulated(folder, SEED + 1).params) > 1e-3


@pytest.mark.parametrize(("name", "states"), [("SCAFFOLD", True), ("Ditto", True), ("FedAvg", False)])
def test_clients_keep_what_their_method_keeps(network, name, states):
    """The control of the states: those that are compared are there, and differ between clients."""
    first, second = (kept(network.trained(name), number).arrays for number in (0, 1))
    assert bool(first) == states
    if states:
        assert gap(first, second) > 1e-3


def test_nothing_of_an_update_reaches_the_server_under_a_secure_sum(network):
    assert traces_in(network.trained("secure mean")) == {}


def test_the_search_for_updates_finds_those_of_a_plain_mean(network):
    """The control: the same search in the bytes of a federation that adds in the clear."""
    assert traces_in(network.trained("FedAvg"))["lifted"] == ROUNDS * COHORTS["FedAvg"]


def traces_in(folder):
    """In what form, and how many times, updates of clients are in the bytes that have reached the server."""
    transcript, counts = (folder / "transcript.bin").read_bytes(), {}
    updates = 0
    for number in range(CLIENTS):
        with np.load(files.client_folder(folder, number) / "made.npz") as made_there:
            forms = {name: made_there[name] for name in made_there}
        updates += sum(name.endswith(" update") for name in forms)
        for name in traced(forms, transcript):
            form = name.split()[1]
            counts[form] = counts.get(form, 0) + 1
    assert updates == ROUNDS * (files.read_server(folder).cohort or CLIENTS)
    return counts
