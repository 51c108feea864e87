"""A federation by its files, in one process: what ``evenhand deploy`` runs, without Flower in between."""

import json
import sys
import time
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from rich.console import Console

import evenhand as eh
from evenhand import EvenhandError
from evenhand.cli import main
from evenhand.cli._deploy import builder, own_data, train
from evenhand.network import certificates, deployed, files, summing
from evenhand.network.deployed import _moments, client_node, event_log, read_status, serve_run
from evenhand.network.in_process import LocalCarrier
from evenhand.network.keeping import FileStore
from evenhand.network.terms import as_deployed
from evenhand.watch import Watched, Watcher
from evenhand.wire import Packet, PacketError, decode, encode
from evenhand.wire.secure_sums import secure_total
from evenhand.wire.sum_messages import Occasion, sum_terms

CLIENTS = 5
LOCAL = ("--lr", "0.02", "--batch-size", "5")
MASKED = ("--method", "fedavg(aggregator=secure(mean()))")


def federation(folder, *options, data=True):
    """The folder of a federation, with the examples of its clients."""
    words = ("--clients", str(CLIENTS), "--rounds", "3", "--eval-every", "2", *LOCAL, *options)
    assert main(["deploy", "init", str(folder), *words]) == 0
    if data:
        assert (
            main(["deploy", "split", str(folder), "--data", "synthetic:1,1", "--clients", str(CLIENTS)]) == 0
        )
    return folder


def events(folder):
    path = folder / "server.log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def nodes_of(folder, data="data.npz"):
    made = []
    for number in files.roster(folder):
        place = files.client_folder(folder, number)
        file = files.read_client(place)
        log = event_log(place / "client.log", lambda sentence: None)
        build = builder(file.method, file.options)
        made.append(client_node(place, file, build, own_data(str(place / data), file), log))
    return made


def trained(folder, nodes=None, data="data.npz", answers=None):
    """The last result of a run of the federation, with clients that answer as given."""
    if answers is None:
        answers = [node.answer for node in (nodes_of(folder, data) if nodes is None else nodes)]
    file = files.read_server(folder)
    log = event_log(folder / "server.log", lambda sentence: None)
    carrier = LocalCarrier(dict(enumerate(answers)))
    *_, last = serve_run(folder, builder(file.method, file.options), carrier, log, pause=0.0)
    return last


def gap(a, b):
    return max(
        float(np.max(np.abs(x - y))) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def simulated(tmp_path, method, *options):
    words = (
        "--data",
        "synthetic:1,1",
        "--clients",
        str(CLIENTS),
        "--rounds",
        "3",
        "--eval-every",
        "2",
        "--quiet",
    )
    assert main(["run", method, *words, *LOCAL, *options, "--out", str(tmp_path / "simulated")]) == 0
    return eh.load_run(tmp_path / "simulated")


@pytest.mark.parametrize("method", ["fedavg", "ditto(delta_fl(theta=0.5), lam=0.5)"])
def test_a_federation_by_its_files_is_the_run_of_the_command_line(tmp_path, method):
    """The run folder has the numbers of the simulated one, without seeds that the server knows of noise."""
    folder = federation(tmp_path / "fed", "--method", method, "--metrics", "numbers", "--seed", "7")
    trained(folder)
    saved, other = eh.load_run(folder / "run"), simulated(tmp_path, method, "--seed", "7")
    assert saved.seed == other.seed == 7
    assert gap(saved.params, other.params) < 1e-6
    ours, theirs = saved.summary(), other.summary()
    assert ours.keys() == theirs.keys()
    assert all(ours[name] == pytest.approx(theirs[name], abs=1e-6) for name in ours)
    assert saved.summary("train") == pytest.approx(dict(other.summary("train")), abs=1e-6)
    assert main(["report", str(folder / "run")]) == 0
    assert main(["compare", str(folder / "run"), str(tmp_path / "simulated")]) == 0
    status = read_status(folder)
    assert (status["activity"], status["round"], status["waiting"]) == ("done", 3, [])


def test_a_client_keeps_its_personal_model_to_itself(tmp_path, capsys):
    """``evenhand predict`` applies it on the client's machine; the server's folder has none."""
    method = "ditto(fedavg(), lam=0.5)"
    folder = federation(tmp_path / "fed", "--method", method, "--metrics", "numbers")
    trained(folder)
    assert not (folder / "run" / "personal").exists()
    own = files.client_folder(folder, 2) / "run"
    arrays = np.load(files.client_folder(folder, 2) / "data.npz")
    np.savez(tmp_path / "new.npz", x=arrays["x_test"], client=np.full(len(arrays["x_test"]), "2"))
    capsys.readouterr()
    assert main(["predict", str(own), "--data", str(tmp_path / "new.npz")]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= len(arrays["x_test"])
    words = ("--data", "synthetic:1,1", "--clients", str(CLIENTS), "--rounds", "3", "--quiet", *LOCAL)
    assert main(["run", method, *words, "--out", str(tmp_path / "sim")]) == 0
    simulated_run, saved = eh.load_run(tmp_path / "sim"), eh.load_run(own)
    outputs = saved.predict(arrays["x_test"], client="2")
    wanted = simulated_run.predict(arrays["x_test"], client=str(simulated_run.facts.client_ids[2]))
    np.testing.assert_allclose(outputs, wanted, atol=1e-5)
    assert np.max(np.abs(outputs - saved.predict(arrays["x_test"]))) > 1e-3


def test_metrics_that_may_not_leave_are_counted_in_secret(tmp_path):
    """The server has percentiles with their bounds and no client's number; the exact ones lie within."""
    folder = federation(tmp_path / "fed", "--metrics", "histogram")
    run = trained(folder)
    assert not any("accuracy" in name or "loss" in name for name in run.history)
    [summary] = json.loads((folder / "run" / "summary.json").read_text())["private_metrics"][
        "metrics"
    ].values()
    statistics = summary["statistics"]
    exact = simulated(tmp_path, "fedavg").summary("test")
    assert statistics["clients"]["estimate"] == CLIENTS
    for name in ("mean", "worst10", "p50", "std"):
        assert abs(statistics[name]["estimate"] - exact[name]) <= statistics[name]["bound"] + 1e-9, name
    assert statistics["mean"]["bound"] < 0.01
    # Resumed once it is done, it measures nothing anew, which clients would refuse.
    (folder / "run" / "summary.json").unlink()
    trained(folder)
    [again] = json.loads((folder / "run" / "summary.json").read_text())["private_metrics"]["metrics"].values()
    assert again == summary


def test_fewer_clients_than_a_histogram_needs_have_no_statistics(tmp_path):
    folder = tmp_path / "fed"
    main(["deploy", "init", str(folder), "--clients", "3", "--rounds", "1", *LOCAL])
    main(["deploy", "split", str(folder), "--data", "synthetic:1,1", "--clients", "3"])
    trained(folder)
    private = json.loads((folder / "run" / "summary.json").read_text())["private_metrics"]
    assert private["metrics"] == {} and private["refused"].startswith("3 clients would be in the histogram")


def test_a_second_histogram_of_one_evaluation_is_refused(tmp_path):
    """Two of different clients would differ by a client's metric."""
    folder = federation(tmp_path / "fed")
    nodes = nodes_of(folder)
    trained(folder, nodes)
    kept = nodes[0]._loaded()
    assert kept is not None and kept.counted == 3
    state = folder / "server" / "state.bin"
    state.unlink()  # a server that begins the evaluations anew
    log = event_log(folder / "server.log", lambda sentence: None)
    file = files.read_server(folder)
    carrier = LocalCarrier({number: node.answer for number, node in enumerate(nodes)})
    next(iter(serve_run(folder, builder(file.method, file.options), carrier, log, pause=0.0)))
    assert any(event["event"] == "replayed" for event in events(folder))


def tables(folder, standardize=True):
    """A table for each client, with other numbers and categories at each."""
    rng = np.random.default_rng(0)
    for number in files.roster(folder):
        rows = [
            f"{rng.normal(40 + 5 * number, 10):.3f},{rng.integers(0, 2)},{'north' if number % 2 else 'south'},"
            f"{'yes' if rng.random() < 0.5 else 'no'}"
            for _ in range(20)
        ]
        place = files.client_folder(folder, number)
        (place / "data.csv").write_text("\n".join(["age,member,region,sold", *rows]) + "\n")
        text = (place / files.CLIENT).read_text()
        text += (
            'label_column = "sold"\nclasses = ["no", "yes"]\nnumbers = ["age", "member"]\n'
            f"standardize = {str(standardize).lower()}\n"
            '[data.categories]\nregion = ["north", "south"]\n'
        )
        (place / files.CLIENT).write_text(text)


def test_clients_agree_on_the_scale_of_columns_in_secret(tmp_path):
    """Means and deviations are those of all training rows together; zeros and ones, and categories, stay."""
    folder = federation(tmp_path / "fed", "--metrics", "numbers", data=False)
    tables(folder)
    nodes = nodes_of(folder, "data.csv")
    pooled = np.concatenate([node._raw.train.x for node in nodes])
    trained(folder, nodes)
    scale = json.loads((folder / "server" / "scale.json").read_text())["scale"]
    ages = pooled[:, 0].astype(np.float64)
    assert scale[0] == pytest.approx([ages.mean(), ages.std()], rel=1e-6)
    assert scale[1] == [0.0, 1.0]
    x = np.concatenate([node._data.train.x for node in nodes])
    assert abs(x[:, 0].mean()) < 1e-5 and abs(x[:, 0].std() - 1) < 1e-5
    np.testing.assert_array_equal(x[:, 1:], pooled[:, 1:])
    assert eh.load_run(files.client_folder(folder, 0) / "run").config["data"]["form"]["classes"] == 2
    # A client's own folder predicts from a table, on the agreed scale.
    assert (files.client_folder(folder, 0) / "run" / "features.json").is_file()


def test_a_table_of_numbers_needs_no_list_of_its_columns(tmp_path):
    """Each client's own scale would be another: the columns are as they are until all have agreed."""
    folder = federation(tmp_path / "fed", "--metrics", "numbers", data=False)
    rng = np.random.default_rng(1)
    for number in files.roster(folder):
        rows = [f"{rng.normal(10 * number, 2):.4f},{rng.normal(0, 0.1):.4f},{i % 2}" for i in range(12)]
        text = "\n".join(["a,b,label", *rows]) + "\n"
        (files.client_folder(folder, number) / "data.csv").write_text(text)
    nodes = nodes_of(folder, "data.csv")
    trained(folder, nodes)
    x = np.concatenate([node._data.train.x for node in nodes])
    np.testing.assert_allclose(x.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(x.std(axis=0), 1.0, atol=1e-5)
    means = [float(node._data.train.x[:, 0].mean()) for node in nodes]
    assert means == sorted(means) and means[-1] - means[0] > 2


def test_classes_that_one_client_lacks_are_a_sentence(tmp_path):
    """Else its labels would stand for other classes than those of the others."""
    folder = federation(tmp_path / "fed", data=False)
    for number in files.roster(folder):
        labels = ["no"] if number == 2 else ["no", "yes"]
        rows = [f"{i},{labels[i % len(labels)]}" for i in range(8)]
        (files.client_folder(folder, number) / "data.csv").write_text("\n".join(["a,label", *rows]) + "\n")
    with pytest.raises(
        EvenhandError, match=r"Client 2 has the classes \('no',\), and client 0 \('no', 'yes'\)"
    ):
        trained(folder, data="data.csv")


def test_columns_are_added_in_sums_of_the_same_clients_only(tmp_path):
    """The difference of two others would be what one client has, even across a restart of that client."""
    folder = federation(tmp_path / "fed", data=False)
    tables(folder)
    file = files.read_server(folder)
    sentences = []

    def scale_of(nodes, clients, number):
        carrier = LocalCarrier({k: node.answer for k, node in enumerate(nodes)})
        terms = sum_terms(Occasion(file.run, file.run, 0, number), clients, bits=64, size=2 * (1 + 3 * 2))
        log = lambda event, sentence, fields: sentences.append(sentence)  # noqa: E731
        ask = partial(_moments, file, carrier, len(clients), log)
        return secure_total(ask, terms, bytes.fromhex(file.authority)).numbers

    nodes = nodes_of(folder, "data.csv")
    total = scale_of(nodes, [0, 1, 2], 0)
    np.testing.assert_array_equal(scale_of(nodes, [0, 1, 2], 1), total)
    for again in (nodes, nodes_of(folder, "data.csv")):
        with pytest.raises(EvenhandError, match="have answered"):
            scale_of(again, [0, 1], 2)
    assert "added its columns in a sum of clients [0, 1, 2], and adds them in no other" in sentences[-1]


def scale_of(folder, answers, log=lambda event, sentence, fields: None):
    """What a process of the server agrees on with its clients before it trains."""
    file, carrier = files.read_server(folder), LocalCarrier(dict(enumerate(answers)))
    met = deployed._meet(folder, file, carrier, log, 0.0, deployed.Status(folder / "status.json", CLIENTS))
    return deployed._agreed_scale(folder, file, carrier, met, log, 0.0)


@pytest.mark.parametrize(
    ("place", "number"),
    [
        (0, lambda rows: rows - 5 * rows),  # the total of all is 0
        (0, lambda rows: -1000),
        (0, lambda rows: rows + 1),
        (2, lambda rows: 1e8),  # of the sums
        (4, lambda rows: -1e6),  # of the squares
        (6, lambda rows: -1000),  # of the numbers that are neither 0 nor 1
        (6, lambda rows: 1000),
    ],
)
def test_false_sums_of_columns_end_in_a_sentence(tmp_path, monkeypatch, place, number):
    """Else the scale would be no number, or would make zeros of a column; without them, the server goes on."""
    folder = federation(tmp_path / "fed", data=False)
    tables(folder)
    nodes, honest = nodes_of(folder, "data.csv"), summing.moments

    def false(data):
        values = honest(data)
        if data is nodes[1]._raw:
            values[place] = number(values[0])
        return values

    monkeypatch.setattr(summing, "moments", false)
    answers = [node.answer for node in nodes]
    with pytest.raises(EvenhandError, match="is not possible for their 80 training examples"):
        scale_of(folder, answers)
    monkeypatch.setattr(summing, "moments", honest)
    scale = scale_of(folder, answers)
    assert scale is not None and np.isfinite(scale).all()
    assert scale_of(folder, answers) == scale


def test_a_server_that_starts_again_goes_on_with_its_attempts_at_a_scale(tmp_path):
    """Clients take part in no attempt before the latest that they have seen."""
    folder = federation(tmp_path / "fed", data=False)
    tables(folder)
    answers, sentences = [node.answer for node in nodes_of(folder, "data.csv")], []

    def log(event, sentence, fields):
        sentences.append(sentence)
        if sum(text.startswith("The scale of the columns: ") for text in sentences) == 3:
            raise Ended

    def absent(data):
        return encode(Packet("refused", {"sentence": "away"})) if decode(data).kind != "hello" else last(data)

    *others, last = answers
    with pytest.raises(Ended):
        scale_of(folder, [*others, absent], log)
    sentences.clear()
    assert scale_of(folder, answers, log) is not None and sentences == []


@pytest.mark.parametrize(
    "scale", [[[None, 1.0], [0.0, 1.0]], [[0.0, 1.0]], [[0.0, -1.0]] * 2, "scale", [1, 2]]
)
def test_a_damaged_scale_is_a_sentence(tmp_path, scale):
    path = tmp_path / "scale.json"
    path.write_text(json.dumps({"scale": scale}))
    with pytest.raises(EvenhandError, match=r"scale.json does not hold the scale of 2 columns of numbers"):
        deployed._scale_in(path, 2)


def test_a_client_that_was_corrected_takes_part(tmp_path):
    """What it has said before is not kept before the first round."""
    folder = federation(tmp_path / "fed", data=False)
    tables(folder)
    place = files.client_folder(folder, 3) / files.CLIENT
    text = place.read_text()
    place.write_text(text.replace('["north", "south"]', '["north", "west"]'))
    with pytest.raises(EvenhandError, match="Client 3 has other columns"):
        trained(folder, data="data.csv")
    place.write_text(text)
    trained(folder, data="data.csv")


def test_a_client_that_claims_too_much_is_not_met(tmp_path):
    """Else all others would pad their examples to as many, or the server would end."""
    folder = federation(tmp_path / "fed")
    nodes = nodes_of(folder)
    log = event_log(folder / "server.log", lambda sentence: None)
    file = files.read_server(folder)

    said = []
    forms = [
        {"target": {"name": "y", "mean": 10**400, "deviation": 1.0}},
        {"classes": 10**9},
        {"classes": -5},
        {"tokens": 10**9},
        {"tokens": -1},
        {"targets": 10**9},
    ]

    def lies(answer):
        def changed(data):
            message = decode(answer(data))
            if message.kind != "here":
                return encode(message)
            fields = dict(message.fields)
            said.append(fields)
            if len(said) == 1:
                fields["sizes"] = [3_000_000, 0, 0]
            elif len(said) <= 1 + len(forms):
                fields["form"] = {**fields["form"], **forms[len(said) - 2]}
            return encode(message._replace(fields=fields))

        return changed

    handlers = {k: node.answer for k, node in enumerate(nodes)}
    carrier = LocalCarrier({**handlers, 1: lies(handlers[1])})
    *_, run = serve_run(folder, builder(file.method, file.options), carrier, log, pause=0.0)
    sentences = [event["sentence"] for event in events(folder) if event["event"] == "refused"]
    assert "3,000,000 examples, to which all others would have to pad theirs" in sentences[0]
    assert "too large" in sentences[1]
    assert "Client 1: It has 1,000,000,000 classes, for each of which" in sentences[2]
    assert "server.toml allows 100,000: raise most_classes there" in sentences[4] and "tokens" in sentences[4]
    assert "at least one class" in sentences[3] and "tokens below 0" in sentences[5]
    assert "another number of targets" in sentences[6]
    assert run.info["rounds"] == 3


def test_other_columns_at_one_client_are_a_sentence(tmp_path):
    folder = federation(tmp_path / "fed", data=False)
    tables(folder)
    place = files.client_folder(folder, 3) / files.CLIENT
    place.write_text(place.read_text().replace('["north", "south"]', '["north", "west"]'))
    with pytest.raises(
        EvenhandError, match=r"Client 3 has other columns, or other categories in them, than client 0"
    ):
        trained(folder, data="data.csv")


@pytest.mark.parametrize("odd", [0, 3])
def test_clients_that_do_not_all_standardise_are_a_sentence(tmp_path, odd):
    """Else some would train on numbers as they are; a client refuses such terms, too."""
    folder = federation(tmp_path / "fed", data=False)
    tables(folder)
    place = files.client_folder(folder, odd) / files.CLIENT
    place.write_text(place.read_text().replace("standardize = true", "standardize = false"))
    nodes = nodes_of(folder, "data.csv")
    with pytest.raises(
        EvenhandError, match=r"Client \d standardises . columns of numbers, and client 0 .: write"
    ):
        trained(folder, nodes)
    data = nodes[odd]._raw
    assert summing.scaled(data, None) is data
    with pytest.raises(
        PacketError, match="The scale has 0 columns of numbers, and the data have 2: write the same"
    ):
        summing.scaled(nodes[1]._raw, None)


def test_a_client_is_added_without_touching_the_others(tmp_path):
    folder = federation(tmp_path / "fed", "--metrics", "numbers")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["deploy", "add-client", str(folder)]) == 0
    assert all(path.read_bytes() == content for path, content in before.items())
    source = files.client_folder(folder, 0) / "data.npz"
    (files.client_folder(folder, CLIENTS) / "data.npz").write_bytes(source.read_bytes())
    run = trained(folder)
    assert run.data.num_clients == CLIENTS + 1 and run.info["cohort"] == CLIENTS + 1


def answering(folder, number):
    place = files.client_folder(folder, number)
    file = files.read_client(place)
    log = event_log(place / "client.log", lambda sentence: None)
    data = own_data(str(place / "data.npz"), file)
    return client_node(place, file, builder(file.method, file.options), data, log).answer


def test_a_client_that_is_added_while_the_server_waits_takes_part(tmp_path, monkeypatch):
    """Its key is admitted once it is in the roster; a key that is replaced, again; what is no key, never."""
    monkeypatch.setattr(deployed, "_LOOK", 0.02)
    folder = federation(tmp_path / "fed", "--metrics", "numbers")
    first = files.client_folder(folder, 0) / "data.npz"
    carrier = LocalCarrier({number: answering(folder, number) for number in range(CLIENTS - 1)})
    admitted = []

    def admit(number, key):
        admitted.append((number, certificates.public_pem(key)))
        if number == CLIENTS:  # the one that comes later, after which the one that was missing starts
            carrier.handlers[CLIENTS] = answering(folder, CLIENTS)
            carrier.handlers[CLIENTS - 1] = answering(folder, CLIENTS - 1)

    def told(sentence):
        if sentence.startswith(f"Waiting for clients {CLIENTS - 1}:"):
            (files.client_folder(folder, CLIENTS)).mkdir()
            (files.client_folder(folder, CLIENTS) / "data.npz").write_bytes(first.read_bytes())
            assert main(["deploy", "rotate", str(folder), "--client", "1"]) == 0
            assert main(["deploy", "add-client", str(folder)]) == 0

    file = files.read_server(folder)
    old = {number: certificates.public_pem(key) for number, key in files.roster(folder).items()}
    log = event_log(folder / "server.log", told)
    build = builder(file.method, file.options)
    runs = serve_run(folder, build, carrier, log, admit=admit, pause=0.05)
    first_run = next(runs)
    assert first_run.data.num_clients == CLIENTS + 1
    new = {number: certificates.public_pem(key) for number, key in files.roster(folder).items()}
    assert {*old.items(), *new.items()} == set(admitted) and len(admitted) == CLIENTS + 2
    (folder / "3.new").write_text("no key")
    (folder / "3.new").replace(folder / "roster" / "3.pub")  # at once, as a copy that ended is seen
    deadline = time.monotonic() + 20
    while not (refused := [event for event in events(folder) if "is not accepted" in event["sentence"]]):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    *_, last = runs
    assert last.info["rounds"] == 3 and last.info["cohort"] == CLIENTS + 1
    refused = [event for event in events(folder) if "is not accepted" in event["sentence"]]
    assert [(event["event"], event["client"]) for event in refused] == [("refused", 3)]  # once
    assert "holds no public key" in refused[0]["sentence"]
    status = read_status(folder)
    assert (status["clients"], status["connected"]) == (CLIENTS + 1, list(range(CLIENTS + 1)))


def test_a_key_whose_copy_is_under_way_is_not_refused(tmp_path):
    """The beginning of a key is none yet: it is refused, once, when a second look finds it unchanged."""
    folder = federation(tmp_path / "fed", data=False)
    key = files.roster(folder)[3]
    whole, admitted, sentences = key.read_bytes(), [], []

    def admit(number, path):
        certificates.public_pem(path)
        admitted.append(number)

    gate = deployed._Gate(folder, admit, lambda event, sentence, facts: sentences.append(sentence))
    for length in (0, 40, len(whole)):
        key.write_bytes(whole[:length])
        gate.look()
    assert sorted(admitted) == list(range(CLIENTS)) and admitted[-1] == 3 and sentences == []
    key.write_bytes(whole[:40])
    for looks, refusals in enumerate((0, 1, 1, 1), 1):
        gate.look()
        assert len(sentences) == refusals, looks
    assert sentences[0].startswith("The key of client 3 is not accepted") and len(admitted) == CLIENTS
    key.write_bytes(whole)
    gate.look()
    assert admitted.count(3) == 2


def test_a_client_that_is_added_to_a_run_that_has_begun_waits_for_the_next_one(tmp_path):
    folder = federation(tmp_path / "fed", "--metrics", "numbers")
    nodes = nodes_of(folder)
    carrier = LocalCarrier({number: node.answer for number, node in enumerate(nodes)})
    file = files.read_server(folder)
    log = event_log(folder / "server.log", lambda sentence: None)
    runs = serve_run(folder, builder(file.method, file.options), carrier, log, pause=0.0)
    next(runs)
    assert main(["deploy", "add-client", str(folder)]) == 0
    *_, last = runs
    assert last.data.num_clients == CLIENTS
    assert read_status(folder)["clients"] == CLIENTS


def test_rotating_the_server_gives_it_a_certificate_of_the_same_authority(tmp_path, capsys):
    folder = federation(tmp_path / "fed", "--host", "fed.example.org,10.0.0.1", data=False)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["deploy", "rotate", str(folder)]) == 0
    changed = {path.name for path, content in before.items() if path.read_bytes() != content}
    assert changed == {"server.crt", "server.key"}
    certificate = (folder / "server" / "server.crt").read_bytes()
    assert certificates.certificate_names(certificate) == ["fed.example.org", "10.0.0.1"]
    capsys.readouterr()
    # A request leaves what serves as it is, until the answer is there.
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["deploy", "rotate", str(folder), "--signing-request"]) == 0
    assert all(path.read_bytes() == content for path, content in before.items())
    added = {path for path in folder.rglob("*") if path.is_file()} - set(before)
    assert {path.relative_to(folder / "server" / "next").name for path in added} == {
        "server.csr",
        "server.key",
    }
    assert "restart the server" in capsys.readouterr().out
    (folder / "authority" / "authority.key").unlink()
    assert main(["deploy", "rotate", str(folder)]) == 2
    assert "give --signing-request" in capsys.readouterr().err


def test_rotating_a_client_changes_its_keys_and_nothing_else(tmp_path, capsys):
    """Its new identity has a certificate of the authority; secure sums go on, from the state that it had."""
    folder = federation(tmp_path / "fed", "--method", "fedavg(aggregator=secure(mean()))")
    build, log = builder(*method_of(folder)), event_log(folder / "server.log", lambda sentence: None)
    carrier = LocalCarrier({number: node.answer for number, node in enumerate(nodes_of(folder))})
    runs = serve_run(folder, build, carrier, log, pause=0.0)
    next(runs)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["deploy", "rotate", str(folder), "--client", "2"]) == 0
    changed = {str(path.relative_to(folder)) for path, old in before.items() if path.read_bytes() != old}
    own = ("node.key", "node.pub", "identity.key", "identity.certificate")
    assert changed == {"roster/2.pub", *(f"clients/2/{name}" for name in own)}
    said = capsys.readouterr().out
    assert all(name in said for name in own) and "roster/2.pub" in said
    assert (folder / "roster" / "2.pub").read_text() == (folder / "clients" / "2" / "node.pub").read_text()
    carrier.handlers[2] = answering(folder, 2)
    *_, last = runs
    np.testing.assert_array_equal(last.per_round["reported"], [CLIENTS] * 3)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--client", "9"), "has no client 9: its clients are 0 to 4"),
        (("--client", "0", "--signing-request"), "is for the server's certificate"),
    ],
)
def test_what_cannot_be_rotated_is_said(tmp_path, capsys, words, sentence):
    folder = federation(tmp_path / "fed", data=False)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["deploy", "rotate", str(folder), *words]) == 2
    assert sentence in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def method_of(folder):
    file = files.read_server(folder)
    return file.method, file.options


class Ended(Exception):
    """The end of the server's process."""


def test_a_client_learns_once_that_the_run_is_done(tmp_path):
    """Also a client whose metrics never leave it, and where the server ends before it writes its last evaluation."""
    folder = federation(tmp_path / "fed", "--metrics", "none")
    nodes, ended, evaluated = nodes_of(folder), [], []
    place = files.client_folder(folder, 4)
    file = files.read_client(place)
    nodes[4] = client_node(
        place,
        file,
        builder(file.method, file.options),
        own_data(str(place / "data.npz"), file),
        event_log(place / "client.log", lambda sentence: None),
        on_end=lambda: ended.append(read_status(folder)["round"]),
    )

    def last_answer(data):
        answer, message = nodes[4].answer(data), decode(data)
        if message.kind == "evaluate" and message.fields["round"] == 3:
            evaluated.append(message.fields["tag"])
            if len(evaluated) == 1:
                raise Ended
        return answer

    answers = [node.answer for node in nodes[:4]]
    with pytest.raises(Ended):
        trained(folder, answers=[*answers, last_answer])
    assert len(evaluated) == len(ended) == 1
    trained(folder, answers=[*answers, last_answer])
    assert len(set(evaluated)) > 1
    assert len(ended) == 1


def test_a_pause_between_questions_is_a_number_of_seconds(tmp_path, capsys):
    folder = federation(tmp_path / "fed", data=False)
    place = folder / "clients" / "0"
    assert main(["deploy", "client", str(place), "--data", str(place / "data.npz"), "--poll", "0"]) == 2
    assert "--poll 0: give a number of seconds above 0" in capsys.readouterr().err


class Linked(LocalCarrier):
    """Clients of this process in place of those behind Flower."""

    def __init__(self, nodes):
        super().__init__({number: node.answer for number, node in enumerate(nodes)})
        self.keys = {}

    def register(self, number, key):
        self.keys[number] = key


def test_a_tracker_follows_a_deployed_run(tmp_path, monkeypatch, capsys):
    """Its files are beside the run folder, which is replaced at each evaluation."""
    pytest.importorskip("tensorboardX")
    from tests.unit.watch.test_watch_tensorboard import numbers

    folder = federation(tmp_path / "fed", "--metrics", "numbers")
    carrier = Linked(nodes_of(folder))
    flower = SimpleNamespace(link=lambda *arguments, log: nullcontext(carrier))
    monkeypatch.setitem(sys.modules, "evenhand.network.carriers.flower", flower)
    capsys.readouterr()
    assert main(["deploy", "server", str(folder), "--watch", "tensorboard"]) == 0
    assert carrier.keys == files.roster(folder)
    assert [
        line.split(",")[0] for line in capsys.readouterr().err.splitlines() if "test accuracy" in line
    ] == [f"round {done} of 3" for done in (0, 2, 3)]
    [place] = (folder / "tensorboard").iterdir()
    logged = numbers(place)
    history = eh.load_run(folder / "run").history
    for column in ("train_loss", "test_accuracy"):
        wanted = list(zip(history["round"].tolist(), history[column].tolist(), strict=True))
        assert logged[column] == [(done, pytest.approx(number)) for done, number in wanted]


def test_a_server_that_cannot_listen_says_only_why(tmp_path, monkeypatch, capsys):
    def link(*arguments, log):
        raise eh.EvenhandError("A deployment needs the package flwr.")

    folder = federation(tmp_path / "fed", data=False)
    monkeypatch.setitem(sys.modules, "evenhand.network.carriers.flower", SimpleNamespace(link=link))
    capsys.readouterr()
    assert main(["deploy", "server", str(folder)]) == 2
    assert capsys.readouterr().err == "evenhand: A deployment needs the package flwr.\n"


@pytest.mark.parametrize(("rate", "status"), [("0.02", "done"), ("1e5", "diverged")])
def test_a_tracker_learns_how_a_deployed_run_ended(tmp_path, monkeypatch, rate, status):
    monkeypatch.setattr(sys.modules[__name__], "LOCAL", ("--lr", rate, "--batch-size", "5"))
    folder = federation(tmp_path / "fed", "--metrics", "numbers")
    carrier, file, ends = Linked(nodes_of(folder)), files.read_server(folder), []
    watcher = Watcher(lambda name, config: Watched(lambda round, numbers: None, ends.append))
    build = builder(file.method, file.options)
    train(folder, build, carrier, lambda *event: None, Console(quiet=True), [watcher], pause=0.0)
    assert ends == [status]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--method", "fit()"), "trains on the examples of all clients in one place"),
        (("--method", "nothing()"), "nothing"),
        (("--min-answers", "9"), "--min-answers 9: give a whole number from 1 to 3"),
        (("--cohort", "0"), "--cohort 0"),
        (("--port", "99999"), "--port 99999"),
        (("--method", "no.such.module:make"), "cannot be imported"),
        (("--deadline", "inf"), "--deadline inf: give a number of seconds above 0"),
        (("--seed", "-1"), "--seed -1: give a whole number from 0"),
        (("--eval-every", "-3"), "--eval-every -3: give a whole number from 1"),
        (("--colluding", "-1"), "--colluding -1: give a whole number from 0"),
        (("--host", " , "), "--host ' , ': give the server's name"),
    ],
)
def test_what_cannot_be_deployed_is_said_before_anything_is_written(tmp_path, capsys, words, sentence):
    assert main(["deploy", "init", str(tmp_path / "fed"), *words]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "fed").exists()


def test_a_federation_may_be_made_of_fewer_clients_than_it_will_have(tmp_path):
    """Clients are added before the server starts, which counts them: a secure sum of two may be one of five by then."""
    words = ["deploy", "init", str(tmp_path / "fed"), "--clients", "2", "--colluding", "1", *MASKED]
    assert main(words) == 0


@pytest.mark.parametrize("columns", [False, True])
def test_a_server_whose_secure_sums_no_clients_can_meet_ends_in_a_sentence(tmp_path, columns):
    """Each exchange would be repeated for ever."""
    folder = federation(tmp_path / "fed", *(() if columns else MASKED), data=not columns)
    if columns:
        tables(folder)
    path = folder / files.SERVER
    path.write_text(path.read_text().replace("colluding = 0", "colluding = 4"))
    title = "The common scale of the columns" if columns else "fedavg"
    with pytest.raises(
        EvenhandError, match=f"{title} takes secure sums of 5 clients, and with colluding = 4 they need"
    ):
        trained(folder, data="data.csv" if columns else "data.npz")


def test_a_server_some_of_whose_cohorts_cannot_meet_a_secure_sum_ends_in_a_sentence(tmp_path):
    method = "fedavg(aggregator=secure(mean()), sampling=poisson(0.9))"
    folder = federation(tmp_path / "fed", "--method", method, "--colluding", "1")
    with pytest.raises(EvenhandError, match="whose cohorts differ in size, takes secure sums of 2 clients"):
        trained(folder)


def test_a_factory_of_a_module_is_a_method(tmp_path, monkeypatch):
    (tmp_path / "ours.py").write_text(
        "import evenhand as eh\n\n\ndef make(work):\n    return eh.algorithms.fedprox(work, mu=0.5)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    folder = federation(tmp_path / "fed", "--method", "ours:make", "--metrics", "numbers")
    trained(folder)
    assert gap(eh.load_run(folder / "run").params, simulated(tmp_path, "fedprox(mu=0.5)").params) < 1e-6


def test_results_that_could_not_be_written_are_when_the_server_starts_again(tmp_path, capsys):
    """Because of a file that is not the run's, and because the server died; the training goes on meanwhile."""
    folder = federation(tmp_path / "fed")
    (folder / "run").mkdir()
    foreign = folder / "run" / "predictions.csv"
    foreign.write_text("not of the run")
    nodes = nodes_of(folder)
    assert trained(folder, nodes).info["rounds"] == 3
    said = [event["sentence"] for event in events(folder) if event["event"] == "disk"]
    assert (
        said[-1].startswith("The results after round 3 could not be written: ") and "move it away" in said[-1]
    )
    assert said[-1].endswith("They are written when the server starts again.")
    assert said[0].endswith("They are written at the next evaluation.")
    foreign.unlink()
    assert trained(folder, nodes).info["rounds"] == 3
    assert eh.load_run(folder / "run").history["round"].tolist() == [0, 2, 3]
    (folder / "run" / "summary.json").unlink()
    trained(folder, nodes)
    before = (folder / "run" / "summary.json").stat()
    assert eh.load_run(folder / "run").info["rounds"] == 3
    trained(folder, nodes)  # nothing is written anew that is there
    assert (folder / "run" / "summary.json").stat().st_ino == before.st_ino


def test_a_server_that_goes_on_counts_the_examples_of_its_own_seconds(tmp_path):
    folder = federation(tmp_path / "fed")
    nodes, file = nodes_of(folder), files.read_server(folder)
    log = event_log(folder / "server.log", lambda sentence: None)
    carrier = LocalCarrier(dict(enumerate(node.answer for node in nodes)))
    runs = serve_run(folder, builder(file.method, file.options), carrier, log, pause=0.0)
    before = next(run for run in runs if run.info["rounds"] == 2).info
    del runs  # the server ends there
    after = trained(folder, nodes).info
    assert after["examples"] > before["examples"] > 0
    counted = after["examples_per_second"] * after["seconds"]["train"]
    assert counted == pytest.approx(after["examples"] - before["examples"])


def test_an_absence_that_repeats_is_logged_once_in_a_while(tmp_path, monkeypatch):
    """An exchange is repeated every second until a client is back; other events are never left out."""
    shown, now = [], [100.0]
    monkeypatch.setattr("evenhand.network.deployed.time.monotonic", lambda: now[0])
    log = event_log(tmp_path / "server.log", shown.append)
    for event, sentence in [("absent", "Client 0."), ("absent", "Client 1."), ("absent", "Client 0.")]:
        log(event, sentence, {})
    assert shown == ["Client 0.", "Client 1."] == [event["sentence"] for event in events(tmp_path)]
    now[0] += 10.0
    for event in ("absent", "refused", "refused"):
        log(event, "Client 0.", {})
    assert [event["event"] for event in events(tmp_path)][2:] == ["absent", "refused", "refused"]
    # The sentence of a secure sum has another tag each time.
    for tag in range(5):
        for round in (1, 2):
            log("absent", f"Round {round}: 2 have answered in the sum of tag {tag}.", {"round": round})
    log("absent", "Client 0: no answer within 60 seconds.", {"client": 0})
    rounds = [
        "Round 1: 2 have answered in the sum of tag 0.",
        "Round 2: 2 have answered in the sum of tag 0.",
    ]
    assert shown[5:] == [*rounds, "Client 0: no answer within 60 seconds."]


def test_the_clip_of_a_file_holds_under_a_secure_sum(tmp_path):
    """A client with a lower limit than the others sends nothing, and says why; the sum is that of the others."""
    method = "fedavg(aggregator=secure(mean()))"
    folder = federation(tmp_path / "fed", "--method", method, "--metrics", "numbers")
    place = files.client_folder(folder, 1) / files.CLIENT
    place.write_text(place.read_text().replace("cohort = 1\n", "cohort = 1\nclip = 0.001\n"))
    run = trained(folder)
    sentences = [event["sentence"] for event in events(folder)]
    assert any("Client 1" in text and "this client sends at most 0.001" in text for text in sentences)
    np.testing.assert_array_equal(run.per_round["reported"], CLIENTS - 1.0)


def test_the_folders_of_a_private_run_state_one_guarantee(tmp_path):
    """A client's own one, too, which has one client; both name what clients gave away without noise."""
    clients, method = 11, "dp_fedavg(clip=0.5, noise_multiplier=2.0, rate=0.5)"
    folder = tmp_path / "fed"
    words = ("--clients", str(clients), "--rounds", "1", *LOCAL, "--method", method)
    assert main(["deploy", "init", str(folder), *words]) == 0
    tables(folder)
    nodes = nodes_of(folder, "data.csv")
    run = trained(folder, nodes)
    wanted = eh.privacy.epsilon(noise_multiplier=2.0, rate=0.5, steps=1, delta=0.01)
    for place in (folder, files.client_folder(folder, 3)):
        stated = eh.load_run(place / "run").privacy
        assert stated is not None
        assert (stated.epsilon, stated.delta, stated.rounds) == (pytest.approx(wanted), 0.01, 1)
        assert any(words.startswith("metrics that clients send") for words in stated.unprotected)
        assert any(words.startswith("the means and deviations of columns") for words in stated.unprotected)
    agreed = nodes[3]._method.agreed
    unscaled = as_deployed(agreed._replace(terms=agreed.terms._replace(scale=None)))
    assert unscaled.privacy is not None and run.privacy is not None
    assert unscaled.privacy.unprotected == run.privacy.unprotected[:-1]


def test_work_that_is_repeated_is_charged_in_the_folder_of_a_client(tmp_path):
    """Each time had new noise, as the limit of its file counts, too."""
    folder = federation(tmp_path / "fed", "--method", "dp_fedavg(clip=0.5, noise_multiplier=2.0, rate=0.5)")
    nodes, kept = nodes_of(folder), []
    show = nodes[2]._show
    nodes[2]._show = lambda evaluated: (kept.append(evaluated), show(evaluated))
    trained(folder, nodes)
    assert [evaluated.repeats for evaluated in kept] == [0] * len(kept)
    show(kept[-1]._replace(repeats=2))
    stated = eh.load_run(files.client_folder(folder, 2) / "run").privacy
    assert stated is not None and stated.rounds == 3 + 2


def test_secret_files_are_for_their_owner_alone(tmp_path):
    folder = federation(tmp_path / "fed", data=False)
    FileStore(folder / "server" / "state.bin").write(b"every client's metrics")
    tables(folder)
    scale_of(folder, [node.answer for node in nodes_of(folder, "data.csv")])
    secrets = [*folder.rglob("*.key"), *folder.rglob("state.bin"), *(folder / "server").glob("[cs]*.json")]
    assert len(secrets) >= 6 + 2 * CLIENTS
    assert {path.stat().st_mode & 0o777 for path in secrets} == {0o600}


def test_test_keys_are_the_simulation_to_the_noise(tmp_path):
    """With keys from the seed even noise is that of the simulation; without, it is not."""
    method = "dp_fedavg(clip=1.0, noise_multiplier=0.5, rate=0.6)"
    params = {}
    for name, options in {"test": ("--test-keys",), "secret": ()}.items():
        folder = federation(tmp_path / name, "--method", method, *options)
        trained(folder)
        params[name] = eh.load_run(folder / "run").params
    wanted = simulated(tmp_path, method).params
    assert gap(params["test"], wanted) < 1e-6 < 1e-3 < gap(params["secret"], wanted)


def test_a_client_that_is_absent_for_another_reason_is_logged_again(tmp_path):
    shown = []
    log = event_log(tmp_path / "log", shown.append)
    for sentence in ("Client 1: no answer.", "Client 1: its app failed.", "Client 1: no answer."):
        log("absent", sentence, {"client": 1})
    for tag in range(3):  # of a secure sum, whose tags differ
        log("absent", f"Round 4: too few in the sum {tag}.", {"round": 4})
    assert len(shown) == 3
