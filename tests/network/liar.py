"""The command ``evenhand`` for a client that lies: ``python liar.py PLAN deploy client ...``.

PLAN is JSON: ``lies``, from rounds to what is wrong with the client's answer in them; and ``gate``, a file with a round
at which the client waits, so that a test knows that the round is in progress.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

from evenhand.network.carriers import flower
from evenhand.wire import decode, encode
from evenhand_command import main


class Liar:
    """Answers like an honest client, but for what the plan says."""

    def __init__(self, handler, lies, gate):
        self.handler, self.lies, self.gate = handler, lies, Path(gate)
        self.replayed, self.previous = set(), None

    def answer(self, request):
        message = decode(request)
        if message.kind != "work":
            return self.handler(request)
        round = int(message.fields["round"])
        if round >= int(self.gate.read_text()):
            self.gate.with_suffix(".waiting").write_text(str(round))
        while round >= int(self.gate.read_text()):
            time.sleep(0.1)
        lie = self.lies.get(str(round))
        if lie == "replay" and round not in self.replayed:
            self.replayed.add(round)
            return self.handler(self.previous)  # as if it came to this client a second time
        self.previous = request
        answer = decode(self.handler(request))
        return encode(answer._replace(arrays=changed(answer.arrays, lie)))


def changed(arrays, lie):
    largest = max(range(len(arrays)), key=lambda place: arrays[place].size)
    made = {
        "shape": lambda array: array[:-1],
        "nan": lambda array: np.where(
            np.arange(array.size).reshape(array.shape) == 5, np.float32(np.nan), array
        ),
        "huge": lambda array: np.full_like(array, 1e30),
    }
    change = made.get(lie, lambda array: array)
    return tuple(change(array) if place == largest else array for place, array in enumerate(arrays))


if __name__ == "__main__":
    plan = json.loads(sys.argv.pop(1))
    honest = flower.serve
    flower.serve = lambda handler, **words: honest(Liar(handler, **plan).answer, **words)
    sys.exit(main())
