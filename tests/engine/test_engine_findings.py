"""A failed run says what went wrong, in Python, in its repr and in a notebook; a sound run says nothing."""

import dataclasses
import io
import json
import pickle
import re
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich.console import Console

import evenhand as eh
from evenhand.errors import EvenhandWarning
from evenhand.simulation._progress import Progress
from evenhand.types import Attack

MODEL = eh.testing.toy_model()
DATA = eh.testing.toy_data()


def method(step, model=MODEL):
    return eh.algorithms.fedavg(eh.local.sgd(model, step, epochs=2, batch_size=4))


def run_of(algorithm, data=DATA, **options):
    """The run and its warnings."""
    options = {"rounds": 6, "cohort": 4, "eval_every": 2, "seed": 2} | options
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run = eh.simulate(algorithm, data, **options)
    assert all(w.category is EvenhandWarning and w.filename == __file__ for w in warned)
    return run, [str(w.message) for w in warned]


@pytest.fixture(scope="module")
def diverged():
    return run_of(method(1e9))


def test_divergence_gives_one_warning_of_a_class_that_can_be_filtered(diverged):
    run, warned = diverged
    assert [finding.kind for finding in run.findings] == ["diverged"]
    assert warned == [run.findings[0].sentence]
    with pytest.warns(EvenhandWarning, match="diverged"):
        eh.simulate(method(1e9), DATA, rounds=6, cohort=4, eval_every=2, seed=2)


def test_a_sound_run_says_nothing_and_neither_does_the_initial_model():
    run, warned = run_of(method(0.1))
    assert run.findings == ()
    assert warned == []
    assert run_of(method(1e9), rounds=0)[1] == []


def test_the_runs_of_a_generator_have_their_findings_and_warn_of_nothing():
    kinds = [
        [finding.kind for finding in run.findings]
        for run in eh.simulation.iterate(method(1e9), DATA, rounds=6, cohort=4, eval_every=2, seed=2)
    ]
    assert kinds == [[], ["diverged"], ["diverged"], ["diverged"]]


def test_a_model_that_never_moved_is_warned_of_with_its_cause():
    stalled, warned = run_of(method(0.1), systems=eh.systems.stragglers(1.0))
    assert [finding.kind for finding in stalled.findings] == ["unmoved"]
    assert "no client reported" in warned[0]
    zero_uploads = Attack(1.0, upload=lambda delta, key: jax.tree.map(jnp.zeros_like, delta))
    assert "norm 0" in run_of(method(0.1), attack=zero_uploads)[1][0]
    assert "larger client or server step size" in run_of(method(1e-9))[1][0]


def test_uploads_that_are_not_finite_are_rejected_and_warned_of():
    """If every client overflows, the model never moves; if only one does, the others still move it."""
    run, warned = run_of(method(1e38))
    assert [finding.kind for finding in run.findings] == ["rejected"]
    assert warned[0].startswith(
        "The model never moved. The server rejected 24 uploads in 6 of 6 rounds, first in round 1"
    )
    assert "hundred times smaller" in warned[0]
    spoil = Attack(clients=(0,), upload=lambda delta, key: jax.tree.map(lambda leaf: leaf * jnp.nan, delta))
    run, warned = run_of(method(0.1), attack=spoil)
    assert [finding.kind for finding in run.findings] == ["rejected"]
    count = int(run.per_round["rejected"].sum())
    assert 0 < count <= 6 and f"rejected {count} uploads" in warned[0] and "never moved" not in warned[0]


def test_an_accuracy_from_outputs_that_are_not_numbers_is_not_a_number():
    model = eh.models.softmax_regression(4, classes=3)
    overflowing = eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1), server_opt=optax.sgd(1e38))
    overflowing = overflowing._replace(
        global_params=lambda state: jax.tree.map(lambda leaf: 1e30 * leaf, state.params)
    )
    run, warned = run_of(overflowing)
    assert "not a finite number" in warned[0]
    assert np.isnan(run.summary()["mean"])
    assert np.isnan(run.client_metrics()["accuracy"]).any()
    assert np.isnan(run.history["test_accuracy"][-1])


def test_unlike_scales_are_warned_of_before_the_first_round():
    x = DATA.train.x * np.array([1, 1, 1, 5e4], np.float32)
    unlike = eh.data.FederatedDataset(DATA.train._replace(x=x), DATA.valid, DATA.test, DATA.client_ids)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(
            EvenhandWarning, match="very different scales"
        ):  # before the first of very many rounds
            eh.simulate(method(1e-9), unlike, rounds=10**7, cohort=4)
    first = next(eh.simulation.iterate(method(0.1), unlike, rounds=1))
    assert [finding.kind for finding in first.findings] == ["scales"]


def test_the_repr_fits_a_screen_and_says_what_is_wrong(diverged):
    text = repr(diverged[0])
    assert "Run(fedavg on data, round=6, train_loss=" in text
    assert "\n  Training diverged" in text
    assert len(text) < 1500
    many = {f"other{k}": np.ones(4) for k in range(200)}
    wide = dataclasses.replace(diverged[0], history={**diverged[0].history, **many})
    assert "more)" in repr(wide)
    assert len(repr(wide)) < 1500


def test_a_summary_is_a_dict_that_a_notebook_shows_with_the_reports_numbers(diverged):
    run = run_of(method(0.1))[0]
    summary = run.summary()
    assert isinstance(summary, dict)
    assert summary == dict(summary) == json.loads(json.dumps(summary))
    copied = pickle.loads(pickle.dumps(summary))
    assert (copied, copied.metric) == (summary, "accuracy")
    html = summary._repr_html_()
    assert "Mean over clients" in html
    assert f"{100 * summary['mean']:.1f}\u202f%" in html
    assert "Loss over clients" in run.summary(metric="loss")._repr_html_()


def test_a_run_in_a_notebook_says_what_is_wrong_and_is_escaped(diverged):
    html = diverged[0]._repr_html_()
    assert "<strong>Training diverged" in html
    named = eh.data.FederatedDataset(DATA.train, DATA.valid, DATA.test, DATA.client_ids, "<b>x</b>")
    run, _ = run_of(method(0.1), named)
    html = run._repr_html_()
    assert "&lt;b&gt;x&lt;/b&gt;" in html
    assert "<b>" not in html
    assert "strong" not in html
    assert f"{100 * run.summary()['worst10']:.1f}\u202f%" in html
    assert "test accuracy" in html
    assert "training loss" in html


def test_the_progress_bar_shows_loss_and_accuracy(monkeypatch):
    screen = io.StringIO()
    console = partial(Console, file=screen, force_terminal=True, width=120)
    monkeypatch.setattr("evenhand.live.Console", lambda stderr: console())
    eh.simulate(method(0.1), DATA, rounds=2, cohort=4, seed=2, progress=True)
    assert re.search(r"loss \d\.\d+, test accuracy \d+\.\d %", screen.getvalue())


def test_rounds_are_not_cut_into_pieces_for_a_bar_that_nobody_sees(monkeypatch):
    """A file gets no bar, so that the rounds up to the next evaluation are one call."""
    screen = io.StringIO()
    monkeypatch.setattr("evenhand.live.Console", lambda stderr: Console(file=screen))
    with Progress(10, show=True) as bar:
        assert bar.next_count() >= 10
    monkeypatch.setattr("evenhand.live.Console", lambda stderr: Console(file=screen, force_terminal=True))
    with Progress(10, show=True) as bar:
        assert bar.next_count() == 1
