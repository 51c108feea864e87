"""A server that waits takes clients that are added, and refuses keys that are rotated out, by the commands alone."""

import shutil

import pytest
from stage import Programs, await_events, free_port, until

import evenhand as eh
from evenhand.cli import main
from evenhand.cli._data import DataOptions
from evenhand.cli._deploy import InitCommand, SplitCommand
from evenhand.network import certificates, files
from evenhand.network.deployed import read_status


@pytest.fixture
def programs():
    programs = Programs()
    try:
        yield programs
    finally:
        programs.close()


def test_a_waiting_server_takes_an_added_client_and_refuses_a_rotated_key(tmp_path, programs):
    folder = tmp_path / "fed"
    InitCommand(folder, clients=2, rounds=1, metrics="numbers", port=free_port()).execute()
    SplitCommand(folder, DataOptions(data="digits", clients=2)).execute()

    def start(place, output):
        command = ("-m", "evenhand", "deploy", "client", place, "--data", place / "data.npz")
        return programs.start(*command, "--poll", "0.25", output=tmp_path / output)

    old = tmp_path / "old"  # the client whose key is to be rotated, with the old one
    shutil.copytree(files.client_folder(folder, 1), old)
    server = programs.start("-m", "evenhand", "deploy", "server", folder, output=tmp_path / "server.txt")
    thief = start(old, "old.txt")
    status = folder / "server" / "status.json"
    until(lambda: status.exists() and 1 in read_status(folder)["connected"], 120, "the old key is let in")

    assert main(["deploy", "rotate", str(folder), "--client", "1"]) == 0
    assert main(["deploy", "add-client", str(folder), "--metrics", "numbers"]) == 0
    shutil.copy(files.client_folder(folder, 0) / "data.npz", files.client_folder(folder, 2))
    [stranger] = await_events(folder / "server.log", "stranger", 120)
    assert stranger["key"] == certificates.fingerprint(old / "node.pub")
    assert stranger["key"] != certificates.fingerprint(files.roster(folder)[1])
    assert 1 not in read_status(folder)["connected"]
    until(lambda: 2 in read_status(folder)["waiting"], 60, "the added client is waited for")

    parts = [start(files.client_folder(folder, number), f"{number}.txt") for number in range(3)]
    assert server.process.wait(180) == 0, (tmp_path / "server.txt").read_text()[-3000:]
    run = eh.load_run(folder / "run")
    assert len(run.facts.client_ids) == 3 and run.per_round["reported"].tolist() == [3.0]
    until(lambda: "is done" in (tmp_path / "0.txt").read_text(), 20, "the client says that the run is done")
    assert all(part.process.poll() is None for part in (thief, *parts))
