"""A server and a client of a network, as processes of their own: ``python party.py server|client SETTINGS``.

Settings are JSON.  A client answers small commands; a server obeys lines of JSON on its standard input.  Both append
their events, and the client the requests that it got, to a file, a line of JSON each.
"""

import hashlib
import json
import os
import random
import sys
import time
from pathlib import Path

from evenhand.errors import EvenhandError
from evenhand.network.carriers.flower import link, serve
from evenhand.network.certificates import Certificates


def log_to(path):
    def log(event, sentence, fields):
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, "sentence": sentence, **fields}) + "\n")

    return log


def content(text):
    """``random SIZE SEED`` is that many random bytes; any other text is itself."""
    match text.split():
        case ["random", size, seed]:
            return random.Random(int(seed)).randbytes(int(size))
        case _:
            return text.encode()


def client(number, folder, port, host, poll):
    home = Path(folder)
    log = log_to(home / "events.jsonl")

    def handler(request):
        log("request", "", {"bytes": len(request)})
        match request[:100].split():
            case [b"sleep", seconds]:
                time.sleep(float(seconds))
            case [b"fail"]:
                raise ValueError("the patient's name is Jo")
            case [b"die"]:
                os.kill(os.getpid(), 9)
            case _:
                pass
        return b"%d:" % number + request

    serve(
        handler,
        address=f"{host}:{port}",
        authority=home / "authority.crt",
        key=home / "node.key",
        folder=home / "flower",
        log=log,
        poll=poll,
    )


def server(folder, port, roster):
    home = Path(folder)
    log = log_to(home / "events.jsonl")
    files = Certificates(home / "authority.crt", home / "server.crt", home / "server.key")
    keys = {int(number): Path(key) for number, key in roster.items()}
    with link(home / "flower", "127.0.0.1", port, files, keys, log=log, largest=30_000_000) as carrier:
        say("ready")
        for line in sys.stdin:
            match json.loads(line):
                case {"asks": asks, "deadline": deadline}:
                    start = time.monotonic()
                    answers, absent = carrier.ask({int(k): content(asks[k]) for k in asks}, deadline)
                    reply = {
                        "answers": {number: described(answer) for number, answer in answers.items()},
                        "absent": absent,
                        "seconds": time.monotonic() - start,
                    }
                case {"register": number, "key": key}:
                    try:
                        reply = carrier.register(number, Path(key))
                    except EvenhandError as error:
                        reply = str(error)
                case "connected":
                    reply = sorted(carrier.connected())
                case "link":
                    reply = carrier.process()
            say(reply)


def say(reply):
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


def described(answer):
    """Short bytes as text, long ones as their length and hash."""
    return answer.decode() if len(answer) < 1000 else [len(answer), hashlib.sha256(answer).hexdigest()]


if __name__ == "__main__":
    {"client": client, "server": server}[sys.argv[1]](**json.loads(sys.argv[2]))
