"""A run that dies goes on from its checkpoint, and ends with the same bits as one that never died."""

import itertools
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import optax
import pytest

import evenhand as eh

MODEL = eh.testing.toy_model()
DATA = eh.testing.toy_data()
METHOD = eh.algorithms.scaffold(MODEL, client_opt=optax.sgd(0.1), epochs=2, batch_size=4)
SETTINGS = {"rounds": 12, "cohort": 4, "eval_every": 2, "seed": 3}


@pytest.fixture(scope="module")
def whole():
    return eh.simulate(METHOD, DATA, **SETTINGS)


def assert_same_run(a, b):
    for x, y in zip(jax.tree.leaves(a.state), jax.tree.leaves(b.state), strict=True):
        np.testing.assert_array_equal(x, y)
    for columns in ("history", "per_round"):
        one, other = getattr(a, columns), getattr(b, columns)  # the test names the attribute
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("evaluations", [1, 3])
def test_an_interrupted_run_goes_on_to_the_same_bits(whole, tmp_path, evaluations):
    first = eh.simulation.iterate(METHOD, DATA, checkpoint=tmp_path, **SETTINGS)
    for _ in itertools.islice(first, evaluations):
        pass
    first.close()
    starts = []
    for run in eh.simulation.iterate(METHOD, DATA, checkpoint=tmp_path, **SETTINGS):
        starts.append(run.info["rounds"])
    assert starts[0] == 2 * (evaluations - 1) and starts[-1] == 12
    assert_same_run(run, whole)


def test_a_finished_run_trains_further_when_asked_for_more_rounds(whole, tmp_path):
    eh.simulate(METHOD, DATA, checkpoint=tmp_path, **{**SETTINGS, "rounds": 6})
    assert_same_run(eh.simulate(METHOD, DATA, checkpoint=tmp_path, **SETTINGS), whole)
    assert_same_run(eh.simulate(METHOD, DATA, checkpoint=tmp_path, **SETTINGS), whole)


def test_another_runs_checkpoint_is_refused(tmp_path):
    eh.simulate(METHOD, DATA, checkpoint=tmp_path, **{**SETTINGS, "rounds": 2})
    for other, words in (({"seed": 4}, "its seed is 3, not 4"), ({"cohort": 3}, "its cohort is 4, not 3")):
        with pytest.raises(eh.EvenhandError, match=words):
            eh.simulate(METHOD, DATA, checkpoint=tmp_path, **{**SETTINGS, **other})
    with pytest.raises(eh.EvenhandError, match="2 rounds done, more than rounds=1"):
        eh.simulate(METHOD, DATA, checkpoint=tmp_path, **{**SETTINGS, "rounds": 1})
    faster = eh.algorithms.scaffold(MODEL, client_opt=optax.sgd(0.2), epochs=2, batch_size=4)
    with pytest.raises(eh.EvenhandError, match=r"of another run .its method"):
        eh.simulate(faster, DATA, checkpoint=tmp_path, **SETTINGS)
    with pytest.raises(eh.EvenhandError, match=r"of another run .its method"):
        eh.simulate(METHOD, DATA, checkpoint=tmp_path, systems=eh.systems.stragglers(0.5), **SETTINGS)
    with pytest.raises(eh.EvenhandError, match="its data is"):
        eh.simulate(METHOD, eh.testing.toy_data(1), checkpoint=tmp_path, **SETTINGS)


PROGRAM = """
import sys
import jax, optax
import evenhand as eh
jax.config.update("jax_compilation_cache_dir", sys.argv[2])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
method = eh.algorithms.scaffold(eh.testing.toy_model(), client_opt=optax.sgd(0.1), epochs=2, batch_size=4)
settings = dict(rounds=80, cohort=4, eval_every=2, seed=3)
run = eh.simulate(method, eh.testing.toy_data(), checkpoint=sys.argv[1], **settings)
import numpy as np
print(np.array(run.params["w"]).tobytes().hex())
"""


def test_kill_at_any_moment_then_resume(tmp_path):
    """SIGKILL at random moments, those of writing among them; then the run ends as if nothing had been."""
    rng, cache = random.Random(0), str(tmp_path / "cache")
    steps = tmp_path / "run"

    def start(folder):
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), cache], stdout=subprocess.PIPE, text=True
        )

    kills = 0
    while kills < 3:
        process = start(steps)
        seen = len(list(steps.glob("*"))) if steps.exists() else 0
        while process.poll() is None and (not steps.exists() or len(list(steps.glob("*"))) <= seen - 1):
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 1.0))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
    resumed = start(steps).communicate(timeout=300)[0]
    whole = start(tmp_path / "whole").communicate(timeout=300)[0]
    assert kills >= 1
    assert resumed and resumed == whole
