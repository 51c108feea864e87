"""A server and a client of several federations that share one network: ``python resident.py server|client SETTINGS``.

Settings are JSON.  The server trains the federations whose folders it reads from its input, and keeps all bytes that
reach it.  A client takes part in all of them, and keeps what it has made before that is sent.
"""

import json
import sys
import threading
from pathlib import Path

import jax
import numpy as np

from evenhand.cli._deploy import builder, own_data
from evenhand.network import certificates, deployed, files
from evenhand.network.carriers import Answers
from evenhand.network.carriers.flower import link, serve
from evenhand.network.compiled import methods_of
from evenhand.network.terms import is_masked, sum_form_of
from evenhand.wire import decode

# --- the server -------------------------------------------------------------------------------------------------------


class Recorder:
    """A carrier that keeps what came from the clients, and counts what was asked."""

    def __init__(self, carrier, path):
        self.carrier, self.path, self.asked = carrier, path, 0

    def ask(self, asks, deadline):
        self.asked += 1
        came = self.carrier.ask(asks, deadline)
        with self.path.open("ab") as file:
            file.write(b"".join(came.answers.values()))
        return Answers(*came)

    def connected(self):
        return self.carrier.connected()


def server(home, port, pause):
    """Trains the federations of the lines of its input, those of one line at the same time."""
    home = Path(home)
    place = home / "server"
    files_of_server = certificates.Certificates(
        certificates.authority_file(home / files.AUTHORITY), place / "server.crt", place / "server.key"
    )
    log = deployed.event_log(home / "link.log", lambda sentence: None)
    with link(place / "flower", "127.0.0.1", port, files_of_server, files.roster(home), log=log) as carrier:
        say("ready")
        for line in sys.stdin:
            folders, replies = list(map(Path, json.loads(line))), {}

            def train(folder, replies=replies):
                replies[str(folder)] = trained(folder, carrier, pause)

            threads = [threading.Thread(target=train, args=(folder,)) for folder in folders]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            say(replies)


def trained(folder, carrier, pause):
    """Trains one federation; what that took."""
    file = files.read_server(folder)
    recorder = Recorder(carrier, folder / "transcript.bin")
    log = deployed.event_log(folder / "server.log", lambda sentence: None)
    runs = deployed.serve_run(folder, builder(file.method, file.options), recorder, log, pause=pause)
    run = list(runs)[-1]
    return {"asked": recorder.asked, "bytes": run.info["bytes"], "seconds": run.info["seconds"]}


# --- a client ---------------------------------------------------------------------------------------------------------


def client(folders, poll):
    """Takes part in the federations of these folders, over the node of the first one."""
    by_run, by_method = {}, {}
    for folder in map(Path, folders):
        file = files.read_client(folder)
        build, data = builder(file.method, file.options), own_data(str(folder / "data.npz"), file)
        log = deployed.event_log(folder / "client.log", lambda sentence: None)
        deployed.methods_of = lambda build, folder=folder: keeping_updates(methods_of(build), folder)
        by_run[file.run] = by_method[file.text] = deployed.client_node(folder, file, build, data, log)

    def handler(request):
        fields = decode(request).fields
        run = fields["terms"]["run"] if "terms" in fields else fields.get("run")
        return (by_method[fields["method"]] if run is None else by_run[run]).answer(request)

    first = Path(folders[0])
    serve(
        handler,
        address=files.read_client(first).server,
        authority=certificates.authority_file(first),
        key=first / "node.key",
        folder=first / "flower",
        log=deployed.event_log(first / "node.log", lambda sentence: None),
        poll=poll,
    )


def keeping_updates(methods, folder):
    """Methods whose clients write each update to their folder, in the forms that it has before it is sent."""
    made = {}

    def method(terms):
        built = methods(terms)

        def keeping(part, index):
            aggregator = built.agreed.algorithm.phases[index].aggregator

            def lift(upload, public, round, key):
                lifted = part.lift(upload, public, round, key)
                update = flat(upload.delta)
                forms = {
                    "update": update,
                    "weighted": np.float32(upload.weight) * update,
                    "lifted": flat(lifted),
                }
                if is_masked(aggregator):
                    forms["words"] = sum_form_of(built.agreed, index).flat(lifted)
                made.update({f"{len(made)} {name}": array for name, array in forms.items()})
                np.savez(folder / "made.npz", **made)
                return lifted

            return part._replace(lift=lift)

        return built._replace(parts=tuple(map(keeping, built.parts, range(len(built.parts)))))

    return method


def flat(tree):
    return np.concatenate([np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(tree)])


def say(reply):
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    {"client": client, "server": server}[sys.argv[1]](**json.loads(sys.argv[2]))
