"""A failed run says what went wrong, in Python, in its repr and in a notebook; a sound run says nothing."""

import dataclasses
import io
import json
import pickle
import re
import warnings
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich.console import Console

import evenhand as eh
from evenhand.errors import EvenhandWarning
from evenhand.simulation._simulate import Progress
from evenhand.types import Attack

MODEL = eh.testing.toy_model()
DATA = eh.testing.toy_data()


@cache  # the same method each time, whose rounds are then traced once
def method(step):
    return eh.algorithms.fedavg(eh.local.sgd(MODEL, step, epochs=2, batch_size=4))


def run_of(algorithm, data=DATA, **changes):
    """The run and its warnings."""
    options: dict[str, Any] = {"rounds": 6, "cohort": 4, "eval_every": 2, "seed": 2} | changes
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
        "The model never changed. The server rejected 24 uploads in 6 of 6 rounds, first in round 1"
    )
    assert "hundred times smaller" in warned[0]
    spoil = Attack(clients=(0,), upload=lambda delta, key: jax.tree.map(lambda leaf: leaf * jnp.nan, delta))
    run, warned = run_of(method(0.1), attack=spoil)
    assert [finding.kind for finding in run.findings] == ["rejected"]
    count = int(run.per_round["rejected"].sum())
    assert 0 < count <= 6 and f"rejected {count} uploads" in warned[0] and "never changed" not in warned[0]


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
    assert "Test loss over 6 clients<" in run.summary(metric="loss")._repr_html_()


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
    monkeypatch.setattr("rich.console.Console", lambda stderr: console())
    eh.simulate(method(0.1), DATA, rounds=2, cohort=4, seed=2, progress=True)
    assert re.search(r"loss \d\.\d+, test accuracy \d+\.\d %", screen.getvalue())


def test_rounds_are_not_cut_into_pieces_for_a_bar_that_nobody_sees(monkeypatch):
    """A file gets no bar, so that the rounds up to the next evaluation are one call."""
    screen = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda stderr: Console(file=screen))
    with Progress(10, show=True) as bar:
        assert bar.next_count() >= 10
    monkeypatch.setattr("rich.console.Console", lambda stderr: Console(file=screen, force_terminal=True))
    with Progress(10, show=True) as bar:
        assert bar.next_count() == 1


# --- which clients the numbers cover -----------------------------------------------------------------------------


def sized(train, test, valid=None):
    """Clients of these sizes, with the rows of the toy data over and over."""

    def split(sizes):
        rows = np.arange(sum(sizes)) % DATA.train.rows
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return eh.data.Split(DATA.train.x[rows], DATA.train.y[rows], offsets)

    ids = tuple(f"c{k}" for k in range(len(train)))
    valid = [0] * len(train) if valid is None else valid
    return eh.data.FederatedDataset(split(train), split(valid), split(test), ids)


def unmeasured(run):
    return [(finding.split, finding.sentence) for finding in run.findings if finding.kind == "unmeasured"]


def test_clients_without_test_rows_are_counted_and_warned_of():
    """The training accuracies in the sentence are those of the clients, by NumPy."""
    run, warned = run_of(method(0.1), sized([9, 1, 1], [3, 0, 0]), cohort=3)
    [(split, sentence)] = unmeasured(run)
    assert split == "test" and warned == [sentence]
    assert sentence.startswith("2 of 3 clients have no test examples and are in none of these numbers. ")
    accuracy = run.client_metrics("train")["accuracy"]
    assert np.mean(accuracy[1:]) != np.mean(accuracy)
    assert f"their mean accuracy is {100 * np.mean(accuracy[1:]):.1f} %" in sentence
    assert f"mean over all 3 clients is {100 * np.mean(accuracy):.1f} %" in sentence
    assert "--unseen" in sentence and "eh.data.hold_out_clients" in sentence
    assert "Test accuracy over 1 of 3 clients, those with test examples" in run.summary()._repr_html_()
    assert "Training accuracy over 3 clients<" in run.summary("train")._repr_html_()
    assert "1 of 3 clients, those with test examples, 6 rounds" in run._repr_html_()
    assert unmeasured(run_of(method(0.1), sized([9, 1, 1], [3, 1, 1]), cohort=3)[0]) == []


def test_without_test_rows_the_finding_names_the_split_that_takes_their_place():
    run, warned = run_of(method(0.1), sized([9, 3, 3], [0, 0, 0]), cohort=3)
    [(_, sentence)] = unmeasured(run)
    assert warned == [] and np.isnan(run.summary()["mean"])
    assert sentence.startswith(
        "None of 3 clients has test examples: there are no test numbers, and the numbers shown are of training "
        "examples."
    )
    run, _ = run_of(method(0.1), sized([9, 3, 3], [0, 0, 0], valid=[2, 2, 0]), cohort=3)
    assert (
        "the numbers shown are of validation examples, which 1 of 3 clients lacks." in unmeasured(run)[0][1]
    )


def test_only_evaluated_honest_clients_are_counted():
    """Of six clients five are evaluated; the malicious ones and the one that is not evaluated do not count."""
    data = sized([9] * 6, [3, 0, 3, 0, 3, 3])
    run, _ = run_of(method(0.1), data, eval_clients=5)
    assert run.evaluated is not None
    left_out = sum(k in run.evaluated for k in (1, 3))
    assert unmeasured(run)[0][1].startswith(f"{left_out} of 5 evaluated clients ha")
    assert f"over {5 - left_out} of the 5 clients drawn for evaluation from 6, those with" in (
        run.summary()._repr_html_()
    )
    attack = Attack(clients=(1, 2), upload=lambda delta, key: delta)
    run, _ = run_of(method(0.1), data, attack=attack)
    assert unmeasured(run)[0][1].startswith("1 of 4 honest clients has no test examples and is in none")
    assert "Test accuracy over 4 of 6 clients, those with test examples, malicious ones included" in (
        run.summary()._repr_html_()
    )
    assert (
        "over 3 of 6 clients, the honest ones with test examples<" in run.summary(who="honest")._repr_html_()
    )
    assert "over 1 malicious client<" in run.summary(who="malicious")._repr_html_()
    assert unmeasured(run_of(method(0.1), data, attack=attack._replace(clients=(1, 3)))[0]) == []


def test_unseen_clients_without_test_rows_are_counted_apart():
    run, _ = run_of(method(0.1), sized([9] * 3, [3] * 3), cohort=3)
    view = run.view(unseen=sized([5, 5], [2, 0]))
    [finding] = view.findings
    assert finding.sentence == ("1 of 2 unseen clients has no test examples and is in none of these numbers.")
    assert run.findings == ()
    run, _ = run_of(method(0.1), sized([9, 2, 2], [3, 0, 3]), cohort=3)
    of = eh.report.compare(run.view(unseen=sized([5, 5], [2, 0])))
    assert [each.finding.split for each in of.notices] == ["test", "unseen"], "neither hides the other"


def test_a_mean_that_an_attack_drives_apart_calls_for_a_robust_aggregator():
    """Gradient descent that is sound without the attack; with a robust aggregator it is sound under it."""
    attack = eh.attacks.model_replacement(0.34, boost=-1e6)
    kinds = [x.kind for x in run_of(method(0.1), attack=attack)[0].findings]
    (finding,) = [x for x in run_of(method(0.1), attack=attack)[0].findings if x.kind == "diverged"]
    assert kinds[0] == "diverged"
    assert "use a robust aggregator, such as aggregator=caf(malicious)" in finding.sentence
    assert "step size" not in finding.sentence
    robust = eh.algorithms.fedavg(
        eh.local.sgd(MODEL, 1e9, epochs=2, batch_size=4), aggregator=eh.aggregators.geometric_median()
    )
    (finding,) = [x for x in run_of(robust, attack=attack)[0].findings if x.kind == "diverged"]
    assert "step size" in finding.sentence and "robust" not in finding.sentence


def test_an_attack_whose_share_is_no_client_is_named_before_the_training():
    """Six clients: a tenth is rounded down to none.  Without a share, nobody was meant to be malicious."""
    run, warned = run_of(method(0.1), rounds=0, attack=eh.attacks.sign_flip(0.1))
    assert [finding.kind for finding in run.findings] == ["unattacked"] and not run.malicious.any()
    assert warned == [run.findings[0].sentence]
    assert (
        "its fraction 0.1 of 6 clients is rounded down to 0" in warned[0] and "0.166667 or more" in warned[0]
    )
    for attack in (eh.attacks.sign_flip(0.166667), eh.attacks.sign_flip(0.0)):
        assert run_of(method(0.1), rounds=0, attack=attack)[0].findings == ()


def test_under_attack_seeds_with_other_malicious_clients_are_one_method():
    runs = [run_of(method(0.1), attack=eh.attacks.sign_flip(0.34), seed=seed)[0] for seed in (2, 3)]
    assert (runs[0].malicious != runs[1].malicious).any()
    of = eh.report.compare({"fedavg": runs})
    assert (of.names, of.seeds, of.same_clients) == (["fedavg"], 2, False)


def test_findings_on_classes_are_of_honest_clients():
    """All examples of honest clients are of one class, and those of the malicious client of another."""
    data = sized([12, 12, 12], [3, 3, 3])
    labels = [np.repeat([0, 0, 1], split.sizes).astype(split.y.dtype) for split in (data.train, data.test)]
    train, test = data.train._replace(y=labels[0]), data.test._replace(y=labels[1])
    data = eh.data.FederatedDataset(train, data.valid, test, data.client_ids, classes=("a", "b", "c"))
    attack = Attack(clients=(2,), upload=lambda delta, key: delta)
    kinds = [
        [f.kind for f in run_of(method(0.1), data, cohort=3, attack=a)[0].findings] for a in (attack, None)
    ]
    assert "guessing" in kinds[0] and "guessing" not in kinds[1]


def test_under_attack_the_history_is_of_honest_clients(tmp_path):
    """By NumPy from the metrics of each client; training is the same bit for bit, whomever the history is about."""
    attack = Attack(clients=(0, 3), upload=lambda delta, key: jax.tree.map(lambda leaf: -leaf, delta))
    run, _ = run_of(method(0.1), attack=attack)
    sizes, values = DATA.test.sizes, run.client_metrics()["accuracy"]
    honest = ~run.malicious
    assert run.history["test_accuracy_mean"][-1] == pytest.approx(values[honest].mean())
    assert values[honest].mean() != pytest.approx(values.mean())
    expected = np.average(values[honest], weights=sizes[honest])
    assert run.history["test_accuracy"][-1] == pytest.approx(expected)
    classes = run.summary(who="honest")
    for name in ("worst_class", "class_spread"):
        assert run.history[f"test_{name}"][-1] == pytest.approx(classes[name])
    assert run.summary()["class_spread"] != pytest.approx(classes["class_spread"])
    assert run.summary()["mean"] == pytest.approx(values.mean()), "all clients, as documented"
    assert "Run(fedavg on data, over the honest clients, round=6" in repr(run)
    of = eh.report.compare(run)
    assert of.covered.text == "4 of 6 clients, the honest ones"
    assert of.methods[0].statistics("test", "accuracy")["mean"][0] == pytest.approx(values[honest].mean())
    page = run.report(tmp_path / "a.html").read_text()
    assert "Over 4 of 6 clients, the honest ones, the average client gets" in page
    assert DATA.num_classes is not None
    assert [cells["clients"] for cells in run.view().info["by_class"]["test"]] == [
        int(np.sum(run.class_metrics().classes[honest[run.class_metrics().clients]] == c))
        for c in range(DATA.num_classes)
        if np.any(run.class_metrics().classes[honest[run.class_metrics().clients]] == c)
    ]


def test_where_each_client_is_malicious_all_of_them_count_and_the_report_says_so(tmp_path):
    attack = Attack(clients=tuple(range(6)), upload=lambda delta, key: delta)
    run, _ = run_of(method(0.1), attack=attack)
    values = run.client_metrics()["accuracy"]
    assert run.history["test_accuracy_mean"][-1] == pytest.approx(values.mean())
    page = run.report(tmp_path / "a.html").read_text()
    assert "Over 6 clients, all of them malicious, the average client gets" in page
    assert "No client is honest" in page


def test_the_bar_says_that_its_numbers_are_of_honest_clients(monkeypatch):
    screen = io.StringIO()
    console = partial(Console, file=screen, force_terminal=True, width=160)
    monkeypatch.setattr("rich.console.Console", lambda stderr: console())
    attack = Attack(clients=(0,), upload=lambda delta, key: delta)
    eh.simulate(method(0.1), DATA, rounds=2, cohort=4, seed=2, progress=True, attack=attack)
    assert re.search(r"test accuracy \d+\.\d % \(honest clients\)", screen.getvalue())
