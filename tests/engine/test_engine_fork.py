"""A process that is forked after the first run refuses to run Evenhand, in place of waiting for ever."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import multiprocessing, sys, warnings
warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # JAX's own warning
import numpy as np
import optax
import evenhand as eh

DATA = eh.testing.toy_data()

def run():
    work = eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4)
    return eh.simulate(eh.algorithms.fedavg(work), DATA, rounds=1)

def study():
    work = eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4)
    return eh.study({"a": lambda: eh.algorithms.fedavg(work)}, DATA, rounds=1, seeds=1)

def evaluate():
    return eh.evaluation.prepare(DATA.test)

def fit():
    solver = eh.centralized.batch(eh.testing.toy_model(), eh.risks.mean(), optimiser=optax.sgd(0.1))
    return eh.centralized.fit(solver, DATA.test.x, DATA.test.y, steps=1)

def build():
    return eh.models.mlp(features=4, classes=3)

def load():
    return float(np.sum(DATA.train.x))

def child(action, answers):
    try:
        action()
        answers.put("done")
    except Exception as error:
        answers.put(f"{error}")

def ask(action):
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=child, args=(action, answers))
    process.start()
    process.join(30)
    alive = process.is_alive()
    process.kill()
    return "waits for ever" if alive else answers.get()

before = ask(run)
run()
print(before, *(ask(action) for action in (run, study, evaluate, fit, build, load)), sep="\\n")
"""


def test_a_forked_process_may_load_data_but_not_run() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=500)
    before, *refused, load = done.stdout.splitlines()
    assert (before, load) == ("done", "done"), done.stderr
    assert len(refused) == 5
    for sentence in refused:
        assert "was forked from one in which Evenhand had already run" in sentence, sentence
        assert 'multiprocessing.get_context("spawn")' in sentence
