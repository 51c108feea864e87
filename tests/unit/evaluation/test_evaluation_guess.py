"""A loss is judged against the best constant answer, and an accuracy that cannot see a rare label says so."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.metrics import log_loss, roc_auc_score

import evenhand as eh
from evenhand.data import FederatedDataset, Split
from evenhand.evaluation import Baseline, ClassMetrics, baseline, findings, ranking
from evenhand.models import absolute_error, from_functions, squared_error
from evenhand.report import may_be_starred
from evenhand.report.formatting import value

Y = np.array([1.0, 2.0, 2.5, 3.0, 4.0, 8.0, 9.0, 20.0, 30.0])
TESTED = np.array([2.0, 4.0, 10.0, 50.0, 3.0])
QUANTILE, DELTA = 0.8, 1.5


def split(x, y, sizes):
    return Split(np.asarray(x, np.float32), np.asarray(y), np.concatenate([[0], np.cumsum(sizes)]))


def targets(train=Y, test=TESTED, sizes=((4, 3, 2), (2, 0, 3))):
    none = split(np.zeros((0, 2)), np.asarray(train)[:0], (0, 0, 0))
    rows = [split(np.zeros((len(y), 2)), y, of) for y, of in zip((train, test), sizes, strict=True)]
    return FederatedDataset(rows[0], none, rows[1], ("a", "b", "c"))


def model(losses, width=1):
    return from_functions(
        init=lambda key: {"w": jnp.zeros((2, width))}, apply=lambda params, x: x @ params["w"], losses=losses
    )


def pinball(outputs, y):
    apart = y - outputs.reshape(-1)
    return jnp.maximum(QUANTILE * apart, (QUANTILE - 1) * apart)


def huber(outputs, y):
    apart = jnp.abs(outputs.reshape(-1) - y)
    return jnp.where(apart <= DELTA, 0.5 * apart**2, DELTA * (apart - 0.5 * DELTA))


def judged(losses, data=None, *, loss=(9.0, np.nan, 11.0), positions=(0, 1, 2), width=1, **metrics) -> Any:
    """The baseline of a run with these losses, or None."""
    clients = {"test": {"loss": np.array(loss), **metrics}}
    return baseline(model(losses, width), data or targets(), clients, np.array(positions))


def constants(losses, grid):
    """The best of many constants, by brute force in NumPy."""
    means = [np.mean(np.asarray(losses(jnp.full((len(Y), 1), c), jnp.asarray(Y)))) for c in grid]
    return grid[int(np.argmin(means))]


@pytest.mark.parametrize("losses", [squared_error, absolute_error, huber, pinball])
def test_the_best_constant_of_any_loss_is_that_of_its_definition(losses):
    """Squared errors have the mean, absolute ones the median; the Huber and pinball losses are searched on a grid."""
    found = judged(losses)
    best = {squared_error: np.mean(Y), absolute_error: np.median(Y)}.get(
        losses, constants(losses, np.linspace(0, 31, 3101))
    )
    assert found.answer == pytest.approx(best, abs=0.011)
    per_row = np.asarray(losses(jnp.full((5, 1), found.answer), jnp.asarray(TESTED)))
    assert found.constant == pytest.approx((np.mean(per_row[:2]) + np.mean(per_row[2:])) / 2, rel=1e-5)
    assert found.constant_per_row == pytest.approx(np.mean(per_row), rel=1e-5)
    assert found.constant != pytest.approx(found.constant_per_row, rel=0.05)
    assert (found.loss, found.loss_per_row) == (10.0, pytest.approx((2 * 9 + 3 * 11) / 5))
    assert (found.split, found.clients, found.rows, found.metric) == ("test", 2, 5, "loss")


def test_the_fits_of_the_losses_differ():
    answers = [judged(losses).answer for losses in (squared_error, absolute_error, huber, pinball)]
    assert min(abs(a - b) for i, a in enumerate(answers) for b in answers[:i]) > 0.2


def test_only_the_given_clients_are_measured_and_all_clients_fit():
    found = judged(squared_error, loss=(11.0,), positions=(2,))
    assert found.answer == pytest.approx(np.mean(Y), abs=0.01)
    assert found.constant == pytest.approx(np.mean((TESTED[2:] - np.mean(Y)) ** 2), rel=1e-3)
    assert (found.clients, found.rows) == (1, 3)


def test_few_rows_prove_a_loss_worse_where_every_client_agrees():
    """SciPy's paired t interval of the clients' differences to their constants."""
    tested = targets(test=np.full(6, 9.0), sizes=((4, 3, 2), (2, 2, 2)))
    constant = (9.0 - np.mean(Y)) ** 2
    for excess in ((50.0, 60.0, 70.0), (-5.0, 60.0, 125.0)):
        low, _ = stats.t.interval(0.95, 2, np.mean(excess), stats.sem(excess))
        found = judged(squared_error, tested, loss=np.add(constant, excess))
        assert found.is_worse == (low > 0) == (excess[0] > 0)
    assert not judged(squared_error, tested, loss=np.subtract(constant, (0.5, 0.6, 0.7))).is_worse
    assert not judged(squared_error, tested, loss=(math.nan, 1e9, 1e9)).is_worse
    assert not judged(squared_error, tested, loss=(1e9,), positions=(2,)).is_worse


def test_the_metric_is_named_where_it_equals_the_loss():
    same, other = np.array([9.0, np.nan, 11.0]), np.array([1.0, np.nan, 2.0])
    assert judged(squared_error, absolute_error=other, squared_error=same).metric == "squared_error"
    assert judged(squared_error, absolute_error=other).metric == "loss"


def test_runs_of_one_model_are_judged_by_one_program_and_other_losses_by_their_own():
    traced = []

    def half(outputs, y):
        traced.append(1)
        return 0.5 * squared_error(outputs, y)

    first, again = (judged(half) for _ in range(2))
    assert first == again and len(traced) == 2, "the labels for training and for testing"
    assert judged(squared_error).constant == pytest.approx(2 * first.constant)

    @dataclasses.dataclass
    class Half:  # has no hash
        factor: float

        def __call__(self, outputs, y):
            return self.factor * squared_error(outputs, y)

    assert judged(Half(0.5)) == first


def test_without_test_rows_the_training_rows_are_compared():
    untested = targets(test=TESTED[:0], sizes=((4, 3, 2), (0, 0, 0)))
    clients = {"test": {"loss": np.full(3, np.nan)}, "train": {"loss": np.array([1.0, 2.0, 3.0])}}
    found = baseline(model(squared_error), untested, clients, np.arange(3))
    assert found is not None
    assert (found.split, found.clients, found.rows, found.loss) == ("train", 3, 9, 2.0)


def test_several_targets_have_a_constant_each():
    pairs = targets(np.stack([Y, -Y], axis=1), np.stack([TESTED, -TESTED], axis=1))
    found = judged(squared_error, pairs, width=2)
    assert found.answer is None
    assert found.constant_per_row == pytest.approx(np.mean((TESTED - np.mean(Y)) ** 2), rel=1e-5)


@pytest.mark.parametrize(
    ("data", "width"),
    [
        (targets(np.zeros(9)), 1),  # placeholders
        (targets(), 3),  # outputs that are not like the targets
        (targets(np.zeros((9, 4), np.int32), np.zeros((5, 4), np.int32)), 3),  # tokens
    ],
)
def test_no_constant_is_known_of_placeholders_and_of_other_shapes(data, width):
    assert judged(lambda outputs, y: jnp.sum(outputs, axis=-1), data, width=width) is None


def test_the_baseline_of_classes_is_the_entropy_of_the_base_rate():
    """Scikit-learn's cross-entropy of the training shares on the test labels; the class without examples counts half
    an example."""
    train, test = np.array([0, 0, 0, 0, 0, 0, 1, 1, 3], np.int32), np.array([0, 1, 1, 3, 0], np.int32)
    shares = np.array([6, 2, 0.5, 1]) / 9.5
    found = judged(eh.models.cross_entropy, targets(train, test), width=4)
    assert found.constant_per_row == pytest.approx(
        log_loss(test, np.tile(shares, (5, 1)), labels=[0, 1, 2, 3]), rel=1e-3
    )
    assert found.of_classes and not judged(squared_error).of_classes
    binary = (train > 0).astype(np.int32), (test > 0).astype(np.int32)
    found = judged(eh.models.logistic, targets(*binary))
    assert found.answer == pytest.approx(np.log(3 / 6), abs=1e-3)
    expected = log_loss(binary[1], np.full(5, 3 / 9))
    assert found.constant_per_row == pytest.approx(expected, rel=1e-3)


# --- findings ----------------------------------------------------------------------------------------------------

HISTORY = {"round": np.array([0, 1]), "train_loss": np.array([400.0, 300.0])}


def against(loss, constant, *, rows=84, split="test"):
    return Baseline(split, "squared_error", 12.3, loss, constant, loss, constant, 20, rows)


def found(constant, classes=None, noun="client", **more):
    return findings(
        HISTORY,
        per_round={},
        classes=classes or {},
        blank=400.0,
        constant=lambda: constant,
        noun=noun,
        **more,
    )


def test_a_loss_above_that_of_the_best_constant_is_a_guess():
    (finding,) = found(against(9391.0, 360.0))
    assert finding.kind == "guessing"
    assert (
        "no better than a guess in squared error: mean 9,391; predicting 12.3, the best constant, gives 360 "
        "(means over the 20 clients with test examples" in finding.sentence
    )
    assert [f.kind for f in found(against(360.0, 360.0))] == ["guessing"]
    assert found(against(359.0, 360.0)) == ()
    assert found(against(9391.0, 360.0, rows=19)) == ()
    few = against(9391.0, 360.0, rows=19)._replace(is_worse=True)
    assert [f.kind for f in found(few)] == ["guessing"]
    assert found(None) == ()
    assert found(against(9391.0, 360.0)._replace(of_classes=True)) == ()


def cells(counts, accuracy):
    zeros = np.zeros(len(counts), int)
    return {"test": ClassMetrics(zeros, np.arange(len(counts)), np.array(counts), np.array(accuracy, float))}


@pytest.mark.parametrize("accuracy", [(1.0, 0.0), (0.995, 0.02)])
def test_an_accuracy_that_cannot_see_a_rare_label_says_so(accuracy):
    """500 rows, 40 of them positive: 3 nats, a likelihood ratio of 20, are .006 per row."""
    rare = cells([460, 40], accuracy)
    (finding,) = found(against(0.2, 0.2062, rows=500), rare)
    assert (
        'Accuracy cannot show a label this rare: use --metrics auc (Python: metrics="auc").'
        in finding.sentence
    )
    assert "92.0 %" in finding.sentence
    assert "step size" not in finding.sentence
    (finding,) = found(
        against(0.2, 0.2058, rows=500), rare
    )  # below the shares' loss, which 500 rows do not prove
    assert "too few to show that it has learnt" in finding.sentence
    assert (
        'Accuracy cannot show a label this rare: use --metrics auc (Python: metrics="auc"), or train for'
        in finding.sentence
    )
    assert "step size" not in finding.sentence and "learnt nothing" not in finding.sentence
    for constant in (against(0.2, 0.2, rows=500), against(0.2, 0.1, rows=500), None):
        (finding,) = found(constant, rare)
        assert "step size" in finding.sentence
        assert "auc" not in finding.sentence
    (finding,) = found(against(0.6, 0.7, rows=500), cells([260, 240], [1, 0]))
    assert 'Accuracy cannot show this: use --metrics auc (Python: metrics="auc").' in finding.sentence
    assert finding.kind == "base_rate"


@pytest.mark.parametrize("metric", ["auc", "balanced_accuracy", "macro_f1", "average_precision"])
def test_what_a_run_measures_besides_is_not_advised(metric):
    """Also before it is measured; where 500 rows do not show that the model has learnt, more rounds still are."""
    rare, learnt, unsure = (
        cells([460, 40], (1.0, 0.0)),
        against(0.2, 0.2062, rows=500),
        against(0.2, 0.2058, rows=500),
    )
    assert found(learnt, rare, asked=["mae", metric]) == ()
    assert [x.kind for x in found(learnt, rare, asked=["calibration_error"])] == ["base_rate"]
    (finding,) = found(unsure, rare, asked=[metric])
    assert finding.sentence.endswith(". Train for more rounds.") and "Accuracy cannot" not in finding.sentence
    assert found(unsure, rare, asked=[metric], aucs={"test": np.array([0.75])}) == ()
    assert [x.kind for x in found(against(0.3, 0.2, rows=500), rare, asked=[metric])] == ["guessing"]


def test_a_model_that_ranks_well_is_no_guess_though_its_probabilities_are_wrong():
    """Its loss is above that of the shares: it is told to mind its probabilities, not to train on."""
    rare, worse = cells([460, 40], (1.0, 0.0)), against(0.3, 0.2, rows=500)
    for constant in (worse, None):
        (finding,) = found(constant, rare, asked=["auc"], aucs={"test": np.array([0.756])})
        assert finding.kind == "base_rate"
        assert "ranks examples well (mean auc 0.756 over 1 client; a guess has 0.5)" in finding.sentence
        assert "92.0 %" in finding.sentence and "calibration_error" in finding.sentence
        assert "more rounds" not in finding.sentence and "no better than a guess" not in finding.sentence
        assert ("loss per example is 0.3" in finding.sentence) == (constant is worse)
    for auc in (0.54, math.nan):
        assert [x.kind for x in found(worse, rare, aucs={"test": np.array([auc])})] == ["guessing"]
    assert [x.kind for x in found(worse, rare, aucs={"train": np.array([0.9])})] == ["guessing"]


def test_an_auc_is_clearly_above_a_half_by_its_spread_under_random_scores():
    """The spread of the mean AUC of three clients, one of them of one class, by drawing scores 4000 times."""
    rng, counts = np.random.default_rng(0), ((30, 6), (12, 9), (20, 0))
    clients, classes = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 1, 0])
    held = ClassMetrics(clients, classes, np.array([30, 6, 12, 9, 20]), np.ones(5))
    drawn = [
        np.mean([roc_auc_score(np.repeat([0, 1], n), rng.normal(size=sum(n))) for n in counts[:2]])
        for _ in range(4000)
    ]
    edge = 0.5 + 2 * np.std(drawn)
    assert 0.05 < edge - 0.5 < 0.4
    for mean, clearly in ((edge - 0.02, False), (edge + 0.02, True)):
        got = ranking(held, np.array([mean, mean, np.nan]))
        assert (got is not None) == clearly
        assert got is None or (got.auc, got.clients) == (pytest.approx(mean), 2)
    many = ClassMetrics(np.array([0, 0]), np.array([0, 1]), np.array([10**5, 10**5]), np.ones(2))
    assert ranking(many, np.array([0.54])) is None and ranking(many, np.array([0.56])) is not None
    assert ranking(held, np.full(3, np.nan)) is None
    # Of two examples, one of each class, the AUC is 0 or 1 at random: its deviation is a half.
    pairs = ClassMetrics(np.repeat(np.arange(100), 2), np.tile([0, 1], 100), np.ones(200, int), np.ones(200))
    assert ranking(pairs, np.full(100, 0.59)) is None and ranking(pairs, np.full(100, 0.61)) is not None


def test_a_guess_is_said_to_be_of_the_clients_that_were_measured():
    """Four honest clients: in each sentence about fewer examples than all; every client's examples need no words."""
    zeros, who = np.zeros(4, int), np.arange(4)
    one_class = {"train": ClassMetrics(who, zeros, np.full(4, 9), np.ones(4))}
    one_answer = {"test": ClassMetrics(who, np.array([0, 1, 0, 1]), np.full(4, 12), np.array([1.0, 0, 1, 0]))}
    at_random = {"test": ClassMetrics(who, np.array([0, 1, 0, 1]), np.full(4, 50), np.full(4, 0.5))}
    cases = [
        (None, one_class, "All 36 training examples of 4 honest clients are of one class"),
        (None, one_answer, "for all 48 test examples of 4 honest clients: it has"),
        (None, at_random, "its accuracy over all test examples of 4 honest clients is 50.0 %"),
        (against(0.2, 0.3, rows=500), one_answer, "% of the 500 test examples of 4 honest clients, but"),
        (against(9391.0, 360.0), {}, "means over the 20 honest clients with test examples"),
    ]
    for constant, classes, words in cases:
        (finding,) = found(constant, classes, "honest client")
        assert words in finding.sentence
        (finding,) = found(constant, classes)
        assert "honest" not in finding.sentence and "of 4 clients" not in finding.sentence


def test_a_model_with_classes_is_not_compared_by_its_loss():
    assert found(against(9391.0, 360.0), cells([50, 50], [0.9, 0.9])) == ()


# --- runs --------------------------------------------------------------------------------------------------------


def trained(data, model, step, rounds, **options):
    work = eh.local.sgd(model, step, epochs=1, batch_size=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eh.simulate(eh.algorithms.fedavg(work), data, rounds=rounds, eval_every=rounds, **options)


def test_a_regression_is_found_to_guess_until_it_beats_the_mean(tmp_path):
    """The diabetes targets of scikit-learn: their mean against too few rounds, and against enough of them."""
    table = cast(Any, load_diabetes())
    x, y = (20 * table.data).astype(np.float32), table.target.astype(float)
    data = eh.data.from_arrays(x, y, np.arange(len(y)) % 10)
    linear = eh.models.linear_regression(features=10)
    poor, good = trained(data, linear, 1e-3, 2), trained(data, linear, 0.05, 10)
    assert [finding.kind for finding in poor.findings] == ["guessing"]
    assert "predicting 151, the best constant," in poor.findings[0].sentence
    assert good.findings == ()
    errors = (data.test.y - data.train.y.mean(dtype=np.float64)) ** 2
    expected = np.mean(
        [errors[a:b].mean() for a, b in zip(data.test.offsets, data.test.offsets[1:], strict=False)]
    )
    guess = good.baseline
    assert guess is not None
    assert guess.constant == pytest.approx(expected, rel=1e-4)
    assert guess.loss == pytest.approx(good.summary()["mean"])
    fit = LinearRegression().fit(data.train.x, data.train.y)  # about what a linear model can reach
    assert guess.loss < 1.3 * np.mean((fit.predict(data.test.x) - data.test.y) ** 2)
    assert good.view().info["constant"] == {"metric": "loss", "split": "test", "mean": guess.constant}
    page = good.report(tmp_path / "report.html").read_text()
    assert f"the best constant gives {value(guess.constant, 'loss')}<" in page
    assert value(guess.loss, "loss") != value(guess.constant, "loss")
    attacked = trained(data, linear, 0.05, 2, attack=eh.attacks.sign_flip(fraction=0.3))
    honest = ~attacked.malicious
    guess = attacked.baseline
    assert guess is not None
    assert guess.clients == honest.sum() < 10
    assert guess.loss == pytest.approx(attacked.client_metrics()["loss"][honest].mean())
    sampled = trained(data, linear, 1e-3, 2, attack=eh.attacks.sign_flip(fraction=0.3), eval_clients=6)
    guess = sampled.baseline
    assert guess is not None and 0 < guess.clients < 6
    (sentence,) = [finding.sentence for finding in sampled.findings if finding.kind == "guessing"]
    assert f"means over the {guess.clients} evaluated honest clients with test examples" in sentence


def test_a_rare_label_that_is_learnt_is_not_blamed_on_the_step_size():
    """8 % positive; the model ranks them (AUC above .6, by scikit-learn) although it always answers 0."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 4)).astype(np.float32)
    y = (rng.random(3000) < 1 / (1 + np.exp(2.7 - 0.7 * x[:, 0]))).astype(np.int32)
    assert 0.07 < y.mean() < 0.1
    data = eh.data.from_arrays(x, y, np.arange(3000) % 10, test_fraction=0.4)
    run = trained(data, eh.models.softmax_regression(features=4, classes=2), 0.5, 10)
    logits = np.asarray(run.algorithm.model.apply(run.params, jnp.asarray(data.test.x)))
    assert roc_auc_score(data.test.y, logits[:, 1] - logits[:, 0]) > 0.6
    (finding,) = run.findings
    assert (
        'Accuracy cannot show a label this rare: use --metrics auc (Python: metrics="auc").'
        in finding.sentence
    )
    view = run.view()
    assert view.info["base_rate"] and view.info["constant"]["mean"] > run.summary(metric="loss")["mean"]
    assert may_be_starred(view, "loss") and not may_be_starred(view, "accuracy")
    seen = trained(data, eh.models.softmax_regression(features=4, classes=2), 0.5, 10, metrics="auc")
    assert seen.findings == () and not may_be_starred(seen.view(), "accuracy")
    assert run.history["test_accuracy"][-1] == pytest.approx(1 - data.test.y.mean(), abs=0.005)
    shuffled = eh.data.from_arrays(x, rng.permutation(y), np.arange(3000) % 10, test_fraction=0.4)
    (finding,) = trained(shuffled, eh.models.softmax_regression(features=4, classes=2), 0.5, 10).findings
    assert finding.kind == "guessing"
    assert "auc" not in finding.sentence
