"""Training that begins from given parameters."""

from typing import Any

import jax
import numpy as np
import pytest

import evenhand as eh
from evenhand.simulation import Job, identify, iterate_many

MODEL, DATA = eh.testing.toy_model(), eh.testing.toy_data()
WORK = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4)
A, P = eh.algorithms, eh.personalization
METHODS = {
    "fedavg": A.fedavg(WORK),
    "scaffold": A.scaffold(WORK),
    "ditto": P.ditto(A.fedprox(WORK, mu=0.1), WORK, lam=0.5),
    "private parts": P.fedalt(WORK, personal="b"),
}
SETTINGS: dict[str, Any] = {"rounds": 4, "cohort": 2, "eval_every": 2, "seed": 1}


def bits(run):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(run.state)]


def are_equal(one, other):
    return all(np.array_equal(a, b) for a, b in zip(bits(one), bits(other), strict=True))


@pytest.fixture(scope="module")
def start():
    """The model of a run with another seed, as NumPy arrays."""
    other = eh.simulate(METHODS["fedavg"], DATA, **{**SETTINGS, "seed": 7, "rounds": 2})
    return jax.tree.map(np.array, other.params)


@pytest.mark.parametrize("name", METHODS)
def test_the_seeds_own_parameters_are_no_other_start(name, start):
    run, begin = (eh.simulate(METHODS[name], DATA, **{**SETTINGS, "rounds": rounds}) for rounds in (4, 0))
    assert are_equal(eh.simulate(METHODS[name], DATA, start=begin.params, **SETTINGS), run)
    assert not are_equal(eh.simulate(METHODS[name], DATA, start=start, **SETTINGS), run)


def test_a_run_begins_with_it_and_so_do_its_clients(start):
    before = jax.tree.map(np.array, start)
    run = eh.simulate(METHODS["ditto"], DATA, start=start, untrained="initial", **SETTINGS)
    first = next(eh.simulation.iterate(METHODS["ditto"], DATA, start=start, **SETTINGS))
    never = int(np.flatnonzero(run.last_round == 0)[0])
    for params in (first.params, first.personal_params(0), run.personal_params(never), before):
        for leaf, given in zip(jax.tree.leaves(params), jax.tree.leaves(start), strict=True):
            np.testing.assert_array_equal(leaf, given)
    assert (
        first.history["train_loss"][0]
        != next(eh.simulation.iterate(METHODS["ditto"], DATA, **SETTINGS)).history["train_loss"][0]
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda start: start | {"w": start["w"].T}, r"float32\[3, 4\] at \['w'\].*float32\[4, 3\]"),
        (lambda start: {"w": start["w"]}, r"nothing at \['b'\].*float32\[3\]"),
        (lambda start: start | {"v": start["b"]}, r"float32\[3\] at \['v'\].*nothing"),
        (lambda start: start | {"b": np.zeros(3, np.int32)}, r"int32\[3\] at \['b'\]"),
        (lambda start: start["b"], r"nothing at \['b'\]"),
    ],
    ids=["transposed", "missing", "more", "whole numbers", "an array"],
)
def test_a_start_of_another_form_is_refused_with_its_first_leaf(change, words, start):
    with pytest.raises(eh.EvenhandError, match=rf"start=.*{words}.*run\.params"):
        eh.simulate(METHODS["fedavg"], DATA, start=change(start), **SETTINGS)


def test_checkpoints_know_the_start(start, tmp_path):
    how: dict[str, Any] = {**SETTINGS, "start": start}
    whole = eh.simulate(METHODS["scaffold"], DATA, **{**how, "rounds": 6})
    eh.simulate(METHODS["scaffold"], DATA, checkpoint=tmp_path, **how)
    moved = jax.tree.map(lambda leaf: leaf + 1, start)
    for other in (None, moved):
        with pytest.raises(eh.EvenhandError, match=r"another run \(its start is"):
            eh.simulate(METHODS["scaffold"], DATA, checkpoint=tmp_path, **{**how, "start": other})
    longer = eh.simulate(METHODS["scaffold"], DATA, checkpoint=tmp_path, **{**how, "rounds": 6})
    assert are_equal(longer, whole)
    eh.simulate(METHODS["scaffold"], DATA, checkpoint=tmp_path / "own", **SETTINGS)
    with pytest.raises(eh.EvenhandError, match=r"its start is the model's own, not"):
        eh.simulate(METHODS["scaffold"], DATA, checkpoint=tmp_path / "own", **how)


def test_runs_side_by_side_have_their_own_starts(start):
    """One method, one seed, two starts, and one program."""
    jobs = [Job(METHODS["fedavg"], DATA, rounds=4, cohort=2, seed=1, start=each) for each in (None, start)]
    runs = dict(iterate_many(jobs))
    assert identify(jobs[0]) != identify(jobs[1]) and "start" not in identify(jobs[0])
    for run, job in zip((runs[0], runs[1]), jobs, strict=True):
        alone = eh.simulate(job.algorithm, DATA, rounds=4, cohort=2, seed=1, start=job.start)
        for a, b in zip(bits(run), bits(alone), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert not are_equal(runs[0], runs[1])


@pytest.mark.parametrize("unit", ["client", "example", None])
def test_a_guarantee_does_not_cover_the_start(unit, start):
    private = {
        "client": lambda: eh.privacy.dp_fedavg(WORK, clip=0.5, noise_multiplier=1.0, rate=0.5),
        "example": lambda: A.fedavg(
            eh.privacy.dp_sgd(MODEL, 0.1, clip=1.0, noise_multiplier=1.0, rate=0.5, steps=1)
        ),
        None: lambda: METHODS["fedavg"],
    }[unit]()
    begun, own = (eh.simulate(private, DATA, rounds=0, start=given) for given in (start, None))
    assert "unprotected" not in own.info and (begun.privacy is None) == (unit is None)
    if begun.privacy is None or own.privacy is None:
        assert "unprotected" not in begun.info
        return
    expected = f"the parameters that the run started from, if they were trained on the same {unit}s"
    assert begun.privacy.unprotected == (*own.privacy.unprotected, expected)
