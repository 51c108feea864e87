"""One network of Flower: bytes arrive, and whatever ends comes back; nobody waits for what does not.

The tests share a server and its clients, and run in order: what a test breaks it mends.
"""

import hashlib
import os
import random
import signal

import pytest
from stage import Network, alive, until


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    network = Network(tmp_path_factory.mktemp("network"), clients=4)
    try:
        network.start_server()
        network.clients = [network.start_client(number) for number in range(4)]
        network.ready()
        network.await_clients(0, 1, 2, 3)
        yield network
    finally:
        network.close()


def everyone(text, *numbers):
    return dict.fromkeys(numbers or range(4), text)


def test_each_client_answers_its_own_request(network):
    answers, absent, _ = network.ask({0: "a", 1: "b", 2: "", 3: "\x00\xff"})
    assert answers == {0: "0:a", 1: "1:b", 2: "2:", 3: "3:\x00\xff"}
    assert absent == {}


def test_megabytes_arrive_unchanged(network):
    size = 20_000_000
    answers, absent, _ = network.ask(
        {0: f"random {size} 7", 1: f"random {size} 7", 2: f"random {size} 8"}, 120
    )
    assert absent == {}
    for number, seed in ((0, 7), (1, 7), (2, 8)):
        expected = b"%d:" % number + random.Random(seed).randbytes(size)
        assert answers[number] == [len(expected), hashlib.sha256(expected).hexdigest()]


def test_an_answer_that_is_too_large_is_none(network):
    answers, absent, _ = network.ask({0: f"random {31_000_000} 1", 1: "small"}, 120)
    assert answers == {1: "1:small"}
    assert "more than 30,000,000 bytes" in absent[0]


def test_an_error_at_a_client_tells_the_server_its_type_alone(network):
    answers, absent, seconds = network.ask({0: "fail", 1: "fine"})
    assert answers == {1: "1:fine"}
    assert absent == {0: "its process failed (ValueError)"}
    assert seconds < 30
    [refused] = network.clients[0].events("refused")
    assert "the patient's name is Jo" in refused["sentence"]
    sent = b"patient"
    for file in ("output.txt", "events.jsonl", "flower/superlink.log"):
        path = network.folder / file
        assert file == "events.jsonl" or path.exists()  # there may have been none
        assert not path.exists() or sent not in path.read_bytes()


def test_a_late_answer_is_none_to_a_later_request(network):
    answers, absent, seconds = network.ask({0: "sleep 11", 1: "quick"}, 6)
    assert answers == {1: "1:quick"}
    assert absent == {0: "no answer within 6 seconds"}
    assert seconds < 10
    answers, absent, _ = network.ask(everyone("next"))
    assert answers == {number: f"{number}:next" for number in range(4)}
    assert [event["client"] for event in network.server.events("late")] == [0]
    assert len(network.clients[0].events("late")) == 1


def test_a_client_that_ends_with_a_request_in_hand_is_absent_at_once_and_comes_back(network):
    [node] = network.clients[2].children()
    answers, absent, seconds = network.ask({1: "fine", 2: "die"}, 60)
    assert answers == {1: "1:fine"}
    assert absent == {2: "its connection was lost"}
    assert seconds < 50
    until(lambda: not alive(node), 120, "the SuperNode ends with its client")
    _, absent, seconds = network.ask({2: "there?"}, 60)
    assert absent == {2: "it is not connected"}
    assert seconds < 20
    network.clients[2].end()
    network.clients[2] = network.start_client(2)
    network.await_clients(2)
    assert network.ask({2: "back"})[0] == {2: "2:back"}


def test_a_client_ends_its_node_when_it_is_told_to_end(network):
    [node] = network.clients[1].children()
    assert network.clients[1].end() == 128 + signal.SIGTERM
    assert not alive(node)
    network.clients[1] = network.start_client(1)
    network.await_clients(1)


def test_a_link_that_is_killed_is_started_again_and_the_clients_return(network):
    os.kill(network.order("link"), signal.SIGKILL)
    until(lambda: network.server.events("resumed"), 120, "a new SuperLink")
    network.await_clients(0, 1, 2, 3)
    answers, _, _ = network.ask(everyone("again"))
    assert answers == {number: f"{number}:again" for number in range(4)}
    until(lambda: network.clients[0].events("resumed"), 120, "the client says so")


def test_a_server_that_is_killed_takes_its_link_along_and_a_new_one_finds_the_clients(network):
    link = network.order("link")
    network.server.kill()
    network.start_server()
    network.ready()
    assert not alive(link)
    network.await_clients(0, 1, 2, 3)
    answers, _, _ = network.ask(everyone("anew"))
    assert answers == {number: f"{number}:anew" for number in range(4)}


def test_a_link_that_is_killed_during_a_request_does_not_hold_up_the_server(network):
    requests = len(network.clients[0].events("request"))
    network.tell({0: "sleep 3", 1: "sleep 3"}, 60)
    until(lambda: len(network.clients[0].events("request")) > requests, 120, "the request arrives")
    [link] = network.server.children()
    os.kill(link, signal.SIGKILL)
    _, absent, seconds = network.reply()
    assert absent == dict.fromkeys((0, 1), "the SuperLink was started again")
    assert seconds < 50
    network.await_clients(0, 1, 2, 3)
    assert set(network.ask(everyone("on"))[0]) == {0, 1, 2, 3}


def test_a_node_that_is_killed_comes_back_once_the_server_has_missed_it(network):
    """Flower lets a node in again only when it has missed its heartbeats for as long as it is patient."""
    [node] = network.clients[3].children()
    os.kill(node, signal.SIGKILL)
    until(
        lambda: "still counts this client" in str(network.clients[3].events("absent")),
        30,
        "the client says why",
    )
    network.await_clients(0, 1, 2)
    until(lambda: 3 not in network.order("connected"), 120, "the server misses it")
    network.await_clients(3)
    assert network.ask({3: "back"})[0] == {3: "3:back"}
