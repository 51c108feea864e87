"""A process that is forked after JAX started refuses to run Evenhand, in place of waiting for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

from nursery import Nursery

PROGRAM = """
import multiprocessing, time, warnings
warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # JAX's own warning
import jax
import numpy as np
import optax
import evenhand as eh

DATA = eh.testing.toy_data()
MODEL = eh.testing.toy_model()
WORK = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4)
FEDAVG = eh.algorithms.fedavg(WORK)
COUNTING = eh.privacy.histogram(8, largest=1.0, sigma=0.0)
X = np.ones((3, 2), np.float32)

def run():
    return eh.simulate(FEDAVG, DATA, rounds=1)

def fit():
    solver = eh.centralized.batch(MODEL, eh.risks.mean(), optimiser=optax.sgd(0.1))
    return eh.centralized.fit(solver, DATA.test.x, DATA.test.y, steps=1)

def load():
    return np.sum(DATA.train.x), eh.data.load("digits", clients=5), eh.testing.toy_data()

def child(action, answers):
    try:
        action()
        answers.put("done")
    except Exception as error:
        answers.put(f"{error}")

def ask(actions):
    # All children at once: each waits for ever, or hardly at all.
    context, asked = multiprocessing.get_context("fork"), []
    for action in actions:
        answers = context.SimpleQueue()
        process = context.Process(target=child, args=(action, answers))
        process.start()
        asked.append((process, answers))
    end = time.monotonic() + 60
    for process, answers in asked:
        process.join(max(1.0, end - time.monotonic()))
        alive = process.is_alive()
        process.kill()
        print("waits for ever" if alive else answers.get(), flush=True)
"""

AFTER_A_RUN = """
ask([run])
DITTO = eh.simulate(eh.personalization.ditto(FEDAVG, WORK, lam=1.0), DATA, rounds=1)
REFUSED = {
    "simulate": run,
    "study": lambda: eh.study({"a": FEDAVG}, DATA, rounds=1, seeds=1),
    "prepare": lambda: eh.evaluation.prepare(DATA.test),
    "fit": fit,
    "mlp": lambda: eh.models.mlp(features=4, classes=3),
    "personal_params": lambda: DITTO.personal_params(1),
    "personal_models": lambda: list(DITTO.personal_models()),
    "predict": lambda: DITTO.predict(DATA.test.x),
    "serve": lambda: DITTO.serve(DATA),
    "aggregate": lambda: eh.aggregators.aggregate(eh.aggregators.mean(), X),
    "check_aggregator": lambda: eh.testing.check_aggregator(eh.aggregators.mean()),
    "check_algorithm": lambda: eh.testing.check_algorithm(FEDAVG),
    "check_attack": lambda: eh.testing.check_attack(eh.attacks.sign_flip(0.2)),
    "check_risk": lambda: eh.testing.check_risk(eh.risks.mean()),
    "mocha": lambda: eh.personalization.mocha(DATA.train, lam=0.1, outer=1, inner=2),
    "token_frequencies": lambda: eh.privacy.token_frequencies(MODEL, np.ones((2, 4))),
    "quantile": lambda: eh.privacy.quantile(COUNTING, X[0], None, theta=0.5),
}
ask([load, *REFUSED.values()])
"""

SENTENCE = "was forked from one in which JAX had already started"


class Answers(Protocol):
    def __call__(self, program: str) -> list[str]: ...


@pytest.fixture
def answers_to(nursery: Nursery, tmp_path: Path) -> Answers:
    """What a program prints in a process in which JAX has not started yet."""

    def answers(program: str) -> list[str]:
        shown = tmp_path / "shown"
        assert nursery.start("program", source=PROGRAM + program, shown=shown).wait() == 0
        return shown.read_text().splitlines()

    return answers


def test_a_forked_process_may_load_data_but_not_run(answers_to: Answers) -> None:
    before, load, *refused = answers_to(AFTER_A_RUN)
    assert (before, load) == ("done", "done")
    assert len(refused) == 17
    for sentence in refused:
        assert SENTENCE in sentence, refused
        assert 'multiprocessing.get_context("spawn")' in sentence


@pytest.mark.parametrize(
    "first",
    [
        "eh.testing.check_aggregator(eh.aggregators.mean())",
        "MODEL.init(jax.random.key(0))",
    ],
)
def test_it_does_not_matter_what_started_jax(first: str, answers_to: Answers) -> None:
    """The first use of JAX is no run here; the second one is not even a function of Evenhand that could note it."""
    answers = answers_to(
        f"{first}\nask([run, load, lambda: ask([run])])"
    )  # a child's child answers at any time
    assert answers.count("done") == 2 and len(answers) == 4, answers
    assert sum(SENTENCE in answer for answer in answers) == 2, answers
