"""What is said about a failed run and not about a sound one: each rule on both sides of its threshold."""

from __future__ import annotations

import html
import math
import re
from typing import Any, TypeVar

import numpy as np
import pytest
from rich.console import Console

from evenhand.cli._terminal import overview
from evenhand.data import FederatedDataset, Split, load
from evenhand.evaluation import (
    ClassMetrics,
    Finding,
    blank_loss,
    diverged_clients,
    feature_scales,
    findings,
    headline_of,
    unmeasured,
    untrained_clients,
)
from evenhand.report import RunView, compare, latest, may_be_starred, swing, verdict, write_report

T = TypeVar("T")
BLANK = math.log(10)
SCALES = Finding("scales", "Features are on very different scales.")


def history(*train, test=None, rounds=None):
    rounds = np.arange(len(train)) if rounds is None else np.array(rounds)
    return {"round": rounds, "train_loss": np.array(train, float)} | (
        {} if test is None else {"test_loss": np.array(test, float)}
    )


def found(history, *, per_round=None, classes=None, blank=BLANK, names=None, scales=None, may_rise=False):
    result = findings(
        history,
        per_round=per_round or {},
        classes=classes or {},
        blank=blank,
        class_names=names,
        scales=scales,
        may_rise=may_rise,
    )
    assert all(finding.sentence.endswith(".") for finding in result)
    return result


def present(finding: T | None) -> T:
    assert finding is not None
    return finding


def kinds(*args, **kwargs):
    return [finding.kind for finding in found(*args, **kwargs)]


# --- diverged ----------------------------------------------------------------------------------------------------


def test_a_loss_that_stays_not_finite_is_a_divergence():
    nan, inf = math.nan, math.inf
    (finding,) = found(history(2.3, 1.0, nan, 5.0, nan, nan, rounds=[0, 10, 20, 30, 40, 50]))
    assert finding.kind == "diverged"
    assert "training loss is not a finite number from round 40 on; at round 30 it was 5" in finding.sentence
    assert "Try a smaller client step size" in finding.sentence
    (finding,) = found(history(2.3, inf))
    assert "a hundred times smaller" in finding.sentence
    assert kinds(history(2.3, nan, 1.0)) == []
    (finding,) = found(history(2.3, 1.0, test=[2.3, nan]))
    assert "the test loss is not" in finding.sentence and finding.split == "test"
    assert "Training diverged" not in finding.sentence


def test_training_that_diverged_is_not_hidden_by_a_test_loss_that_is_not_finite():
    """Whether its loss is not finite or too high; of validation and test examples, the former choose."""
    for last in (math.nan, 1e9):
        (finding,) = found(history(2.3, last, last, last, test=[2.3, math.inf, math.inf, math.inf]))
        assert (finding.split, finding.sentence[:17]) == ("train", "Training diverged")
    both = history(2.3, 1.0, test=[2.3, math.nan]) | {"valid_loss": np.array([2.3, math.nan])}
    assert found(both)[0].split == "valid"


def test_a_loss_that_rises_is_a_divergence_from_three_times_the_floor_on():
    least = 3 * BLANK
    assert kinds(history(2.3, least, least, least)) == ["diverged"]
    assert kinds(history(2.3, least, least, 0.999 * least)) == []
    # One that starts high must rise from there; one that falls first, from where it was lowest.
    assert kinds(history(24.0, 60.0, 70.0, 71.9)) == []
    assert kinds(history(24.0, 72.0, 400.0, 8326.0)) == ["diverged"]
    assert kinds(history(24.0, 4.0, 12.0, 13.0, 12.0)) == ["diverged"]
    assert kinds(history(24.0, 4.0, 11.9, 13.0, 12.0)) == []


def test_a_mean_loss_that_a_method_does_not_minimise_may_rise_but_must_be_finite():
    assert kinds(history(2.3, 1e9, 1e9, 1e9), may_rise=True) == []
    assert kinds(history(2.3, 1e9, math.nan), may_rise=True) == ["diverged"]
    assert kinds(history(2.3, 1.0, test=[2.3, math.inf]), may_rise=True) == ["diverged"]


def test_under_attack_a_divergence_calls_for_a_robust_aggregator():
    """Only where one upload can move the model as far as it likes; what is not needed is not found out."""
    rising = history(1.0, 9.0, 99.0)
    (finding,) = findings(rising, per_round={}, classes={}, blank=1.0, is_exposed=lambda: True)
    assert "one upload can move the model as far as it likes: use a robust aggregator" in finding.sentence
    assert "step size" not in finding.sentence and "diverged" in finding.sentence
    (finding,) = findings(rising, per_round={}, classes={}, blank=1.0, is_exposed=lambda: False)
    assert "step size" in finding.sentence and "robust" not in finding.sentence

    def never() -> bool:
        raise AssertionError("nothing diverged")

    assert findings(history(1.0, 0.5), per_round={}, classes={}, blank=1.0, is_exposed=never) == ()


def test_one_bad_evaluation_is_a_swing_unless_it_is_a_hundred_times_the_floor():
    assert kinds(history(2.3, 1.0, 1.0, 100.1 * BLANK)) == ["diverged"]
    assert kinds(history(2.3, 1.0, 1.0, 99.9 * BLANK)) == []
    assert kinds(history(2.3, 1e9, 1.0, 0.9)) == []


def test_a_loss_near_zero_may_rise_to_what_a_model_without_knowledge_has():
    assert kinds(history(1e-9, 1e-3, 1.0, 2.0, 6.0)) == []
    assert kinds(history(0.0, 1e-12, 1e-7, 2.9e-6), blank=0.0) == []
    assert kinds(history(0.0, 3.1e-6, 3.1e-6, 3.1e-6), blank=0.0) == ["diverged"]
    assert kinds(history(1e-9, 0.1, 0.1, 0.1), blank=1e-3) == ["diverged"]


def test_a_divergence_says_when_how_far_and_what_to_try():
    (finding,) = found(history(24.0, 20.0, 90.0, 900.0, 8326.0, rounds=[0, 5, 10, 15, 20]))
    assert "from 20 at round 5 to 8,326 at round 20, and from round 10 on it stayed at 60" in finding.sentence
    assert "a smaller client step size" in finding.sentence
    (finding,) = found(history(2.3, 900.0, rounds=[0, 20]))  # it can stay nowhere after its last round
    assert "to 900 at round 20. Try" in finding.sentence
    assert "a hundred times smaller" in found(history(2.3, 1e9, 1e9))[0].sentence
    assert "one scale" not in finding.sentence
    first, second = found(history(2.3, 1e9, 1e9), scales=SCALES)
    assert "Bring the features to one scale first" in first.sentence
    assert second == SCALES


# --- never moved -------------------------------------------------------------------------------------------------


def test_a_model_has_not_moved_where_no_loss_has_changed_by_a_hundred_thousandth():
    assert kinds(history(2.0, 2.0 + 1.9e-5, 2.0)) == ["unmoved"]
    assert kinds(history(2.0, 2.0 + 2.1e-5, 2.0)) == []
    assert kinds(history(2.0, 2.0, test=[3.0, 3.0])) == ["unmoved"]
    assert kinds(history(2.0, 2.0, test=[3.0, 3.1])) == []
    assert kinds(history(0.0, 0.0)) == []  # nothing to learn
    assert kinds(history(2.0)) == kinds(history(2.0, 2.0, rounds=[0, 0])) == []  # nothing tried


def test_a_model_that_has_not_moved_is_explained_where_the_cause_is_known():
    unmoved = history(2.0, 2.0)
    no_reports = {"reported": np.zeros(4), "update_norm": np.zeros(0)}
    assert "no client reported in any of the 1 rounds" in found(unmoved, per_round=no_reports)[0].sentence
    zero_updates = {"reported": np.array([0.0, 1.0]), "update_norm": np.zeros(2)}
    assert "every update had norm 0" in found(unmoved, per_round=zero_updates)[0].sentence
    small = {"reported": np.ones(2), "update_norm (a)": np.full(2, 1e-12)}
    assert "Try a larger client or server step size" in found(unmoved, per_round=small)[0].sentence
    assert kinds(history(0.0, 0.0), per_round=no_reports) == ["unmoved"]
    assert kinds(history(2.0, 1.0), per_round=zero_updates) == []


def test_evaluations_before_the_first_number_are_left_out():
    """As of a network, on which nobody has answered: there is no number yet that could stay or rise."""
    nan = math.nan
    assert (
        kinds(history(nan, 1.1, 1.0)) == kinds(history(nan, 1.1)) == kinds(history(nan, 1.0, 0.9, 0.8)) == []
    )
    (finding,) = found(history(nan, nan, 1.1, 1.1, rounds=[0, 5, 10, 15]))
    assert finding.kind == "unmoved"
    assert "after 15 rounds the training loss is 1.1, as after 10. Try" in finding.sentence
    assert kinds(history(nan, 1.0, 4.0, 5.0, 6.0), blank=0.0) == ["diverged"]
    assert kinds(history(nan, nan)) == ["diverged"]  # where there is none at all, they are


def test_a_run_without_losses_has_no_finding_about_them():
    """Its clients have kept them."""
    rounds = {"round": np.arange(3)}
    assert kinds(rounds) == []
    assert kinds(rounds, per_round={"reported": np.zeros(2)}) == ["unmoved"]


# --- unmeasured --------------------------------------------------------------------------------------------------


def test_clients_without_test_examples_are_counted():
    def sentence(test, **how) -> Any:
        finding = unmeasured({"train": np.array([4, 4, 4]), "test": np.array(test)}, **how)
        return finding and finding.sentence.split(". ")

    assert sentence([1, 1, 1]) is None
    assert sentence([1, 0, 0])[0] == "2 of 3 clients have no test examples and are in none of these numbers"
    assert (
        sentence([1, 1, 0], noun="honest client", cure="")[0]
        == "1 of 3 honest clients has no test examples and is in none of these numbers."
    )
    told = sentence([1, 1, 0], metric="loss", train=np.array([0.5, 0.5, 2.0]))
    assert told[1] == "On training examples, its loss is 2, and the mean over all 3 clients is 1"
    assert (
        len(sentence([1, 1, 0], train=np.array([0.5, 0.5, math.nan]))) == 2
    )  # a client without training rows


def test_without_test_examples_the_split_in_their_place_is_named():
    sizes = {"train": np.array([4, 4]), "valid": np.array([1, 0]), "test": np.array([0, 0])}
    assert headline_of(sizes) == "valid" and headline_of(sizes | {"test": np.array([0, 1])}) == "test"
    begin = "None of 2 clients has test examples: there are no test numbers, and the numbers shown are of"
    assert present(unmeasured(sizes)).sentence.startswith(
        f"{begin} validation examples, which 1 of 2 clients lacks. "
    )
    assert present(unmeasured({"train": sizes["train"]})).sentence.startswith(f"{begin} training examples. ")
    assert present(unmeasured({"train": np.array([4])})).sentence.startswith(
        "The only client has no test examples: "
    )


def test_one_example_each_leaves_none_for_testing():
    single = present(unmeasured({"train": np.ones(9, int), "test": np.zeros(9, int)})).sentence
    assert "Each has one example, which is for training: test numbers need clients with several." in single
    several = present(
        unmeasured({"train": np.array([1, 2]), "test": np.zeros(2, int)}, noun="group")
    ).sentence
    assert "Test numbers need groups with more examples, or a larger share of test examples." in several


def test_findings_of_groups_do_not_name_clients():
    of_groups = {"per_round": {}, "classes": {}, "blank": 1.0, "noun": "group"}
    diverged = findings(history(1, 1e9, 1e9), scales=SCALES, **of_groups)
    unmoved = findings(history(1, 1, 1), **of_groups)
    lacking = unmeasured({"train": np.array([4, 4]), "test": np.array([1, 0])}, noun="group")
    for finding in (diverged[0], *unmoved, lacking):
        assert "client" not in present(finding).sentence and "--unseen" not in present(finding).sentence
    assert "then try a hundred times smaller step size or fewer steps." in diverged[0].sentence


def test_validation_examples_choose_and_are_no_headline():
    sizes = {"train": np.array([4, 4]), "valid": np.array([1, 0]), "test": np.array([1, 1])}
    finding = present(unmeasured(sizes, split="valid"))
    assert finding.kind == "unmeasured" and finding.split == "valid"
    assert (
        "1 of 2 clients has no validation examples and is in none of the numbers that choose"
        in finding.sentence
    )
    assert "--unseen" not in finding.sentence


# --- guessing ----------------------------------------------------------------------------------------------------


def cells(counts, accuracy):
    """Two clients with half of the rows each."""
    counts, accuracy = np.array(counts), np.array(accuracy, float)
    number = np.arange(len(counts))
    both = (np.repeat([0, 1], len(counts)), np.tile(number, 2), np.tile(counts / 2, 2), np.tile(accuracy, 2))
    return ClassMetrics(*both)


LEARNT = history(2.3, 1.0)


def test_one_answer_for_all_examples_is_found_from_twenty_examples_on():
    one = {"test": cells([6, 14], [0, 1])}
    (finding,) = found(LEARNT, classes=one)
    assert finding.kind == "guessing"
    assert "one answer, class 1 (the most frequent), for all 20 test examples" in finding.sentence
    assert "“sold”" in found(LEARNT, classes=one, names=("kept", "sold"))[0].sentence
    rare = found(LEARNT, classes={"test": cells([6, 14], [1, 0])})[0].sentence
    assert "class 0" in rare
    assert "most frequent" not in rare
    assert kinds(LEARNT, classes={"test": cells([6, 12], [0, 1])}) == []
    assert kinds(LEARNT, classes={"test": cells([10, 14], [0.1, 1])}) == []
    assert kinds(LEARNT, classes={"test": cells([0, 40], [0, 1])}) == []  # one class only
    assert kinds(history(2.3), classes=one) == []  # not trained


def test_training_examples_of_one_class_are_found_from_twenty_on():
    one = {"train": cells([0, 20], [0, 1]), "test": cells([4, 4], [0, 1])}
    (finding,) = found(LEARNT, classes=one)
    assert finding.kind == "guessing"
    assert "All 20 training examples are of one class, class 1: there is nothing to learn" in finding.sentence
    assert "“sold”" in found(LEARNT, classes=one, names=("kept", "sold"))[0].sentence
    assert kinds(LEARNT, classes={"train": cells([0, 18], [0, 1])}) == []
    assert kinds(LEARNT, classes={"train": cells([2, 18], [1, 1])}) == []


def test_no_better_than_the_most_frequent_class_within_the_noise_of_a_hundred_examples():
    # The most frequent class has a share of 0.6, with a standard error of 0.049: up to 0.649 it may be a guess.
    assert kinds(LEARNT, classes={"test": cells([40, 60], [0.10, 1.0])}) == ["guessing"]
    assert kinds(LEARNT, classes={"test": cells([40, 60], [0.14, 1.0])}) == []
    assert kinds(LEARNT, classes={"test": cells([36, 54], [0.10, 1.0])}) == []  # 90 rows
    (finding,) = found(LEARNT, classes={"test": cells([400, 600], [0.5, 0.5])})
    assert "50.0 %, and always answering class 1, their most frequent class, gives 60.0 %" in finding.sentence


def test_a_fair_model_that_gives_up_examples_for_the_rare_class_is_not_said_to_guess():
    assert kinds(LEARNT, classes={"test": cells([50, 950], [0.8, 0.9])}) == []
    # The classes' accuracies come to 1.2 times those of a guess, 0.5.
    assert kinds(LEARNT, classes={"test": cells([500, 500], [0.19, 0.8])}) == ["guessing"]
    assert kinds(LEARNT, classes={"test": cells([50, 950], [0.31, 0.9])}) == []
    assert kinds(LEARNT, classes={"test": cells([50, 950], [0.29, 0.9])}) == ["guessing"]


def test_guesses_are_looked_for_in_the_test_split_or_its_substitute():
    good, bad = cells([100, 100], [0.9, 0.9]), cells([100, 100], [0, 1])
    assert kinds(LEARNT, classes={"train": bad, "test": good}) == []
    assert kinds(LEARNT, classes={"train": good, "valid": bad}) == ["guessing"]
    assert "training examples" in found(LEARNT, classes={"train": bad, "test": cells([], [])})[0].sentence
    nan = cells([100, 100], [math.nan, 1])
    assert kinds(LEARNT, classes={"test": nan}) == []


def test_only_the_first_cause_is_given():
    bad = {"test": cells([100, 100], [0, 1])}
    assert kinds(history(2.3, 2.3), classes=bad) == ["unmoved"]
    assert kinds(history(2.3, 1e9), classes=bad, scales=SCALES) == ["diverged", "scales"]
    assert kinds(LEARNT, classes=bad, scales=SCALES) == ["guessing", "scales"]
    assert kinds(LEARNT, scales=SCALES) == ["scales"]


# --- features and labels -----------------------------------------------------------------------------------------


def data(x, y=None):
    x = np.asarray(x)
    y = np.zeros(len(x), int) if y is None else np.asarray(y)
    none = Split(x[:0], y[:0], np.array([0, 0]))
    return FederatedDataset(Split(x, y, np.array([0, len(x)])), none, none, ("a",))


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ((1.0, 999.0), None),
        ((1.0, 1001.0), "different scales, from column 0 (about 1) to column 1 (about 1,001)"),
        ((0.1, 99.0), None),
        ((0.1, 101.0), "from column 0 (about 0.1) to column 1 (about 101)"),
        ((500.0, 1001.0), "far from a scale of 1: column 1 (about 1,001)"),
        ((0.5, 0.00099), "far from a scale of 1: column 1 (about 0.00099)"),
        ((0.5, 0.00101), None),
        ((0.0, 5.0), None),
    ],
)
def test_scales_a_thousand_apart_or_away_from_one_are_found(columns, sentence):
    finding = feature_scales(data(np.tile(columns, (8, 1)) * np.array([[1], [-1]] * 4)))
    assert (finding is None) == (sentence is None)
    if finding is not None:
        assert finding.kind == "scales"
        assert sentence in finding.sentence


def test_columns_are_called_by_their_names_and_rare_values_are_no_small_scale():
    x = np.ones((1000, 2))
    assert (
        "from age (about 1) to income"
        in present(feature_scales(data(x * [1, 5e4]), ("age", "income"))).sentence
    )
    x[1:, 1] = 0.0
    assert feature_scales(data(x)) is None


def test_images_are_one_feature_and_tokens_have_no_scale():
    image = np.ones((4, 2, 2))
    image[:, 0, 0] = 1e-5
    assert feature_scales(data(image)) is None
    assert "the features (about 2,000)" in present(feature_scales(data(np.full((4, 2, 2), 2e3)))).sentence
    assert feature_scales(data(np.full((4, 2), 5000))) is None


def test_only_a_sample_of_many_rows_is_read():
    class Counted(np.ndarray):
        taken = 0

        def __getitem__(self, item):
            found = super().__getitem__(item)
            Counted.taken += found.size
            return found

    whole = data(np.ones((50_000, 3), np.float32))
    x = whole.train.x.view(Counted)
    object.__setattr__(whole, "train", whole.train._replace(x=x))
    assert feature_scales(whole) is None
    assert 0 < Counted.taken <= 1024 * 3


def test_the_loss_of_a_model_without_knowledge():
    x = np.ones((4, 1))
    assert blank_loss(data(x, [0, 1, 9, 3])) == pytest.approx(math.log(10))
    assert blank_loss(data(x, [0, 0, 0, 0])) == pytest.approx(math.log(2))
    assert blank_loss(data(x, [2.0, -2.0, 2.0, -2.0])) == pytest.approx(4.0)
    assert blank_loss(data(x, np.zeros(4))) == 0.0


def test_without_knowledge_of_the_labels_a_loss_must_rise_above_where_it_began():
    assert kinds(history(2.0, 1e-9, 1e-5, 1e-5, 1e-5), blank=0.0) == []
    assert kinds(history(2.0, 5.9, 5.9, 5.9), blank=0.0) == []
    assert kinds(history(2.0, 6.1, 6.1, 6.1), blank=0.0) == ["diverged"]


# --- the last rounds ---------------------------------------------------------------------------------------------


def accuracy(*values, name="test_accuracy"):
    return {"round": np.arange(len(values)) * 10, name: np.array(values, float)}


def test_a_swing_goes_up_and_comes_down():
    result = present(swing(accuracy(0.1, 0.5, 0.80, 0.76, 0.83), "test", "accuracy"))
    assert (result.first, result.last) == (20, 40)
    assert result.size == pytest.approx(0.04)
    assert swing(accuracy(0.1, 0.5, 0.6, 0.7, 0.8), "test", "accuracy") is None  # a trend
    assert swing(accuracy(0.1, 0.8, 0.7, 0.6, 0.5), "test", "accuracy") is None
    assert swing(accuracy(0.1, 0.5, 0.800, 0.791, 0.83), "test", "accuracy") is None  # below a point
    assert swing(accuracy(0.1, 0.5, 0.800, 0.789, 0.83), "test", "accuracy") is not None
    assert swing(accuracy(0.9, 0.1, 0.9), "test", "accuracy") is None  # two evaluations after round 0
    assert swing(accuracy(0.1, 0.8, math.nan, 0.8), "test", "accuracy") is None
    assert swing(accuracy(0.1, 0.2, 0.1), "test", "loss") is None  # not known


def test_a_swing_is_that_of_the_last_fifth_and_of_the_mean_over_clients_where_known():
    early = [0.0, 0.2, 0.9, 0.1, *[0.8] * 16]
    assert swing(accuracy(*early), "test", "accuracy") is None
    late = [0.0, *[0.8] * 16, 0.5, 0.8, 0.8]  # of 19 evaluations after round 0, the last three
    assert swing(accuracy(*late), "test", "accuracy") is None
    late = [0.0, *[0.8] * 16, 0.7, 0.5, 0.8, 0.8]  # of 20, the last four
    result = present(swing(accuracy(*late), "test", "accuracy"))
    assert (result.first, result.size) == (170, pytest.approx(0.2))
    both = accuracy(0.1, 0.8, 0.6, 0.8) | accuracy(0.1, 0.5, 0.4, 0.5, name="test_accuracy_mean")
    assert present(swing(both, "test", "accuracy")).size == pytest.approx(0.1)


def test_the_swing_of_a_loss_counts_from_a_twentieth_of_it():
    assert swing(accuracy(9, 1.00, 0.96, 1.00, name="test_loss"), "test", "loss") is None
    assert present(swing(accuracy(9, 1.00, 0.94, 1.00, name="test_loss"), "test", "loss")).text.startswith(
        "went up and down by 0.06 between"
    )


def test_latest_shows_the_accuracy_of_the_test_split_or_its_substitute():
    assert latest({"train_loss": 0.5}) == "loss 0.5"
    assert latest({"train_loss": 0.5, "train_accuracy": 0.25}) == "loss 0.5, training accuracy 25.0 %"
    row = {"train_loss": 0.5, "train_accuracy": 0.25, "valid_accuracy": 0.5, "test_accuracy": 0.125}
    assert latest(row) == "loss 0.5, test accuracy 12.5 %"


# --- where they are shown ----------------------------------------------------------------------------------------


def view(title, accuracy, *notices):
    values = np.array(accuracy, float)
    metrics = {"loss": 1 - values, "accuracy": values}
    past = {"round": np.array([0, 1]), "test_accuracy": np.array([0.1, values.mean()])}
    sizes = {"train": np.full(len(values), 9), "test": np.full(len(values), 9)}
    ids = [f"c{k}" for k in range(len(values))]
    return RunView(title, past, sizes, ids, {"train": metrics, "test": metrics}, {}, {}, {}, notices)


LOST = Finding("diverged", "Training diverged: from <2> & on.")
CARE = Finding("guessing", "The model is no better than a guess.")


def words(path, *views):
    text = write_report(path, views).read_text().split("</style>")[1]
    return text, html.unescape(re.sub(r"<[^>]+>", " ", text))


def test_a_page_begins_with_what_is_wrong_and_says_nothing_of_a_sound_run(tmp_path):
    text, _ = words(tmp_path / "a.html", view("x", [0.9, 0.8], LOST, SCALES))
    box = text.index('<aside class="notice">')
    assert text.index("</header>") < box < text.index('class="lead"')
    assert "Do not rely on these numbers" in text
    assert "from &lt;2&gt; &amp; on." in text
    assert SCALES.sentence in text
    text, _ = words(tmp_path / "a.html", view("x", [0.9, 0.8], CARE))
    assert "Read these numbers with care" in text
    assert "notice" not in words(tmp_path / "a.html", view("x", [0.9, 0.8]))[0]


def test_a_run_that_diverged_is_never_the_best(tmp_path):
    lost, sound, poor = view("lost", [0.9, 0.9], LOST), view("sound", [0.5, 0.7]), view("poor", [0.1, 0.6])
    text, shown = words(tmp_path / "a.html", lost, sound, poor)
    assert "best by sound" in shown
    assert "Do not rely on these numbers" in shown and f"lost: {LOST.sentence}" in shown
    assert not re.search(r"best by lost", shown)
    best = re.findall(r'class="number best">(?:<[^>]+>)*([^<]*)', text)
    assert best
    assert not [cell for cell in best if cell.startswith("90.0")]
    text, _ = words(tmp_path / "a.html", lost._replace(findings=()), sound, poor)
    assert [cell for cell in re.findall(r'best">(?:<[^>]+>)*([^<]*)', text) if cell.startswith("90.0")]
    # One method alone is never called the best.
    text, shown = words(tmp_path / "a.html", lost, sound)
    assert "All methods but sound diverged, so none is called the best." in shown
    assert 'class="number best"' not in text
    _, shown = words(tmp_path / "a.html", lost, lost._replace(title="too"))
    assert "All of these runs diverged, so none is called the best." in shown


def test_findings_of_many_runs_are_shown_once_per_kind(tmp_path, capsys):
    """24 runs of 8 methods: one paragraph per kind, with the methods that have it, or their seeds where not all do."""
    runs = []
    for i in range(8):
        for seed in range(3):
            care = CARE._replace(sentence=f"The model is no better than a guess: {i}, {seed}.")
            notices = [care] if i < 5 else [LOST] if (i, seed) == (6, 1) else []
            runs.append(view(f"m{i}", [0.5, 0.7], *notices)._replace(info={"seed": seed}))
    of = compare(runs)
    guessing, lost = of.notices
    assert (guessing.runs, guessing.total, lost.runs) == (15, 24, 1)
    assert guessing.text == (
        "15 of 24 runs (m0, m1, m2 and 2 more), for example: The model is no better than a guess: 0, 0."
    )
    assert lost.text == f"m6, seed 1: {LOST.sentence}"
    text, shown = words(tmp_path / "a.html", *runs)
    assert text.count('<aside class="notice">') == 2
    assert text.index("Do not rely on these numbers") < text.index("Read these numbers with care")
    assert shown.count("no better than a guess") == 1 and shown.count(LOST.sentence) == 1
    some = compare([run for run in runs if (run.title == "m0" and run.info["seed"]) or run.title == "m7"])
    assert [each.names for each in some.notices] == [("m0",)]
    some = compare([*runs[:2], runs[2]._replace(findings=())])
    assert [each.names for each in some.notices] == [("m0, seeds 0 and 1",)]
    assert compare(runs[:3]).notices[0].text.startswith("All 3 runs, for example: The model")
    same = [run._replace(findings=(CARE, SCALES)) for run in runs[:3]]
    assert [each.text for each in compare(same).notices] == [
        f"All 3 runs: {CARE.sentence}",
        f"All 3 runs: {SCALES.sentence}",
    ]
    assert compare(runs[0]).notices[0].text == runs[0].findings[0].sentence


def test_findings_of_one_kind_that_say_opposite_things_are_apart():
    """As "no better than a guess" and "accuracy cannot see that it has learnt"; other numbers are no difference."""
    learnt = CARE._replace(
        sentence="Its accuracy is no higher than 97.5 %, but it has learnt. Use --metrics auc."
    )
    other = learnt._replace(
        sentence="Its accuracy is no higher than 91 %, but it has learnt. Use --metrics auc."
    )
    runs = [
        view(name, [0.5, 0.7], finding) for name, finding in zip("abc", (learnt, other, CARE), strict=True)
    ]
    notices = compare(runs).notices
    assert [notice.runs for notice in notices] == [2, 1]
    assert notices[0].text == f"2 of 3 runs (a and b), for example: {learnt.sentence}"
    assert compare(runs[:2]).notices[0].text.startswith("Both runs, for example: ")


def test_marks_are_explained_only_where_one_can_be(capsys):
    poor, other = view("poor", [0.5, 0.9], CARE), view("other", [0.5, 0.7], CARE)
    assert not compare([poor, other]).may_mark and compare([view("a", [0.5]), view("b", [0.7])]).may_mark
    assert verdict(compare([poor, other])) == (
        "All of these runs are no better than one constant answer, so none is called the best in test accuracy."
    )
    seeds = [view(name, [0.5, 0.7], *care)._replace(info={"seed": seed})
             for name in "ab" for seed, care in ((0, []), (1, [CARE]))]  # fmt: skip
    assert verdict(compare(seeds)) == (
        "All of these methods have runs that are no better than one constant answer, so none is called the best in "
        "test accuracy."
    )


def test_a_test_loss_alone_drops_no_method_and_its_findings_are_apart(tmp_path):
    """Its number is not finite, so that it is not the best; the verdict does not say that training diverged."""
    lost = view("lost", [math.nan, 0.9], LOST._replace(split="test"))
    lost = lost._replace(clients={**lost.clients, "train": {"accuracy": np.array([0.9, 0.9])}})
    text = verdict(compare([lost, view("sound", [0.5, 0.7]), view("poor", [0.1, 0.6])]))
    assert "served best by sound" in text
    assert text.endswith("Left out (test accuracy not finite): lost.")
    both = [lost, view("other", [0.5, 0.7], LOST._replace(split="train"))]
    assert len(compare(both).notices) == 2
    _, shown = words(tmp_path / "a.html", lost)
    assert "The test accuracy is not a finite number." in shown


@pytest.mark.parametrize(("notices", "starred"), [([LOST], "sound"), ([], "lost"), ([CARE], "sound")])
def test_a_run_that_diverged_or_guesses_gets_no_star(capsys, notices, starred):
    runs = [view("lost", [0.9, 0.9], *notices), view("sound", [0.5, 0.7]), view("poor", [0.1, 0.6])]
    Console(width=80).print(overview(compare(runs)))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if "*" in line]
    assert lines
    assert [line.split()[0] for line in lines] == [starred]


def test_a_verdict_names_the_methods_that_guess():
    poor, sound, other = view("poor", [0.9, 0.9], CARE), view("sound", [0.5, 0.7]), view("other", [0.1, 0.6])
    assert verdict(compare([poor, sound, other])).endswith(
        "Left out (no better than one constant answer): poor."
    )
    words = "All methods but sound are no better than one constant answer, so"
    assert verdict(compare([poor, sound])).startswith(words)
    lost = view("lost", [0.9, 0.9], LOST)
    assert "diverged or are no better than one constant answer, so none" in verdict(
        compare([poor, sound, lost])
    )


METRICS = ("accuracy", "loss", "brier", "calibration_error", "auc", "macro_f1")


def starred(run):
    return [metric for metric in METRICS if may_be_starred(run, metric)]


def test_a_guess_is_the_best_in_no_metric_and_what_accuracy_hides_may_be_in_others():
    """A constant that reaches the loss of .1 takes away the metrics of probabilities."""
    hidden = CARE._replace(kind="base_rate", sentence="Accuracy cannot show this.")
    assert starred(view("guess", [0.9, 0.9], CARE)) == []
    assert starred(view("lost", [0.9, 0.9], LOST)) == []
    assert starred(view("sound", [0.9, 0.9])) == list(METRICS)
    assert starred(view("hidden", [0.9, 0.9], hidden)) == list(METRICS[1:])
    saved = hidden._replace(kind="guessing")  # as earlier versions did
    assert starred(view("saved", [0.9, 0.9], saved)) == list(METRICS[1:])
    for constant, others in ((0.09, METRICS[4:]), (0.11, METRICS[1:])):
        about = {"base_rate": True, "constant": {"metric": "loss", "split": "test", "mean": constant}}
        assert starred(view("shown by auc", [0.9, 0.9])._replace(info=about)) == list(others)
    regression = view("guess", [0.9, 0.9], CARE)._replace(clients={"train": {"loss": np.ones(2)}})
    assert not may_be_starred(regression, "r2")


def test_of_real_targets_a_guess_in_the_loss_may_be_the_best_in_other_errors():
    """The loss of 4 is that of the constant; with an absolute error as the loss, that error is not the best either."""
    errors = {"squared_error": 4.0, "absolute_error": 1.0}
    wide, constant = ("loss", "squared_error", "r2"), {"metric": "loss", "split": "test", "mean": 4.0}
    for loss, blocked in (("squared_error", wide), ("absolute_error", (*wide, "absolute_error"))):
        clients = {name: np.full(2, x) for name, x in {**errors, "loss": errors[loss], "r2": 0.1}.items()}
        run = view("x", [0.5, 0.5])._replace(clients={"train": clients, "test": clients}, info={})
        about = {"constant": {**constant, "mean": errors[loss]}}
        assert all(may_be_starred(run, metric) for metric in clients)
        for guess in (run._replace(findings=(CARE,)), run._replace(info=about)):
            assert {metric for metric in clients if not may_be_starred(guess, metric)} == set(blocked)
        assert not may_be_starred(run._replace(findings=(LOST,)), "absolute_error")


def test_a_study_by_the_absolute_error_names_its_winner():
    """Outliers in the test rows give all runs the squared error of a constant."""
    about = {"metric": "loss", "split": "test", "mean": 9.0}
    runs = [
        view(name, [0.5, 0.5])._replace(
            clients={
                split: {"loss": np.full(2, 9.5), "absolute_error": np.full(2, x)}
                for split in ("train", "test")
            },
            info={"constant": about},
            findings=(CARE,),
        )
        for name, x in (("huber", 1.0), ("mean", 2.0))
    ]
    assert "average client is served best by huber" in verdict(compare(runs, "absolute_error"))
    assert verdict(compare(runs, "loss")).endswith("so none is called the best in test loss.")


def test_by_loss_runs_are_judged_by_the_loss_of_the_constant():
    """Losses of .2 and .1 where the classes' shares give .3; the accuracies are those of a guess."""
    about = {"base_rate": True, "constant": {"metric": "loss", "split": "test", "mean": 0.3}}
    runs = [view(name, [x, x])._replace(info=about) for name, x in (("a", 0.8), ("b", 0.9))]
    assert "served best by b (test loss 0.1000)" in verdict(compare(runs, "loss"))
    assert verdict(compare(runs)).endswith("so none is called the best in test accuracy.")


def test_no_run_that_a_constant_reaches_is_starred_whatever_its_rows():
    """Two honest clients of loss 4 and 6 with test rows, a malicious one, and one without test rows."""
    losses = {"loss": np.array([4.0, 6.0, 0.0, np.nan])}
    run = view("x", [0.5] * 4)._replace(
        clients={"train": {"loss": np.ones(4)}, "test": losses},
        sizes={"train": np.full(4, 9), "test": np.array([1, 1, 1, 0])},
        malicious=np.array([False, False, True, False]),
    )
    for constant, starred in ((4.9, False), (5.0, False), (5.1, True)):
        judged = run._replace(info={"constant": {"metric": "loss", "split": "test", "mean": constant}})
        assert may_be_starred(judged, "loss") is starred
    assert may_be_starred(run, "loss")


def test_the_headline_of_one_run_mentions_its_swing(tmp_path):
    noisy = view("x", [0.9, 0.7])
    noisy = noisy._replace(history=accuracy(0.1, 0.8, 0.7, 0.8))
    assert (
        "Training has not settled: the test accuracy went up and down by 10.0 points"
        in words(tmp_path / "a", noisy)[1]
    )
    steady = noisy._replace(history=accuracy(0.1, 0.7, 0.75, 0.8))
    assert "settled" not in words(tmp_path / "a", steady)[1]


def test_unlike_scales_are_named_by_the_columns_of_a_table(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"{'ab'[i % 2]},{i % 7},{50_000 + 9_000 * (i % 5)},{i % 2}" for i in range(40)]
    path.write_text("\n".join(["client,age,income,label", *rows]))
    assert "to income (about" in present(feature_scales(load(path, standardize=False))).sentence
    assert feature_scales(load(path)) is None


def test_a_deviation_over_seeds_that_is_only_rounding_is_shown_as_zero(tmp_path):
    runs = [
        view("x", [0.7 + shift, 0.7 + shift])._replace(info={"seed": seed})
        for seed, shift in enumerate((0.0, 1e-16, 2e-16))
    ]
    other = [view("y", [0.5, 0.6])._replace(info={"seed": seed}) for seed in range(3)]
    shown = words(tmp_path / "a.html", *runs, *other)[1]
    assert "70.0 ± 0" in shown and not re.search(r"±\s*\d[\d.]*e", shown)


# --- clients -----------------------------------------------------------------------------------------------------

NAMES = [f"c{k}" for k in range(8)]


def wild(own, alone=1.0, initial=2.0, trained: Any = True) -> Any:
    """Eight clients with these losses."""
    losses = {
        name: np.broadcast_to(value, 8).astype(float)
        for name, value in (("loss", own), ("global_loss", alone))
    }
    chosen = np.broadcast_to(trained, 8)
    return diverged_clients(losses, np.broadcast_to(initial, 8).astype(float), chosen, NAMES)


def test_a_personal_loss_diverged_from_ten_times_the_larger_of_two_others_on():
    for alone, initial in ((1.0, 2.0), (2.0, 1.0), (math.nan, 2.0)):
        assert wild([20.0] * 8, alone, initial) is None
        finding = wild([20.0] * 7 + [20.1], alone, initial)
        assert finding is not None and finding.kind == "client_diverged"
        assert "models of 1 of 8 clients diverged" in finding.sentence
        assert "By client: c7 (20.1, usually 2)." in finding.sentence
    for bad in (math.nan, math.inf):
        assert "c3 (" in wild([1.0] * 3 + [bad] + [1.0] * 4).sentence
    # A global model that diverged, too, is no measure, and neither is a loss of 0.
    assert wild([1e9] * 8, alone=math.inf) is None
    assert wild([9e-6] * 8, alone=0.0, initial=0.0) is None
    assert wild([1.1e-5] * 8, alone=0.0, initial=0.0) is not None


def test_at_most_five_diverged_clients_are_named_the_worst_first():
    finding = wild([30.0, 21.0, math.nan, 22.0, 40.0, 1.0, 23.0, 50.0])
    listed = finding.sentence.partition("By client: ")[2].partition(". Means")[0]
    assert [part.split(" (")[0] for part in listed.replace(" and ", ", ").split("), ")] == [
        *("c2", "c7", "c4", "c0", "c6"),
        "2 more",
    ]
    assert "of 7 of 8 clients" in finding.sentence
    one = wild([30.0, 1.0, 1.0, 22.0] + [1.0] * 4)
    assert "By client: c0 (30, usually 2) and c3 (22, usually 2). Means" in one.sentence


def test_only_clients_that_trained_can_diverge():
    assert wild([99.0] * 8, trained=[False] * 8) is None
    finding = wild([99.0] * 8, trained=[True] + [False] * 7)
    assert "of 1 of 1 client diverged" in finding.sentence
    assert diverged_clients({"loss": np.ones(8)}, np.ones(8), np.ones(8, bool), NAMES) is None


def test_the_sentence_on_clients_that_never_trained():
    past = history(2.3, 1.0, rounds=[0, 5]) | {"train_global_loss": np.array([2.3, 2.0])}

    def said(last_round, past=past, *, initial=False, adapts=False) -> Any:
        finding = untrained_clients(np.array(last_round), past, initial=initial, adapts=adapts)
        return None if finding is None else finding.sentence

    assert said([1, 2, 3, 5]) is None
    assert said([0, 0, 0, 0]) is None, "that is another finding"
    text = said([1, 2, 0, 5])
    assert text.startswith(
        "1 of 4 clients never trained in 5 rounds, and are served the current global model;"
    )
    assert "the personal model as it was initialised;" in said([1, 2, 0, 5], initial=True)
    still = past | {"train_global_loss": np.array([2.3, 2.3])}
    assert "the global model, which has not changed since the start;" in said([1, 2, 0, 5], still)
    assert "model, which they adapt to their examples;" in said([1, 2, 0, 5], adapts=True)


def test_clients_that_never_trained_are_counted_among_those_of_the_headline():
    past = history(2.3, 1.0, rounds=[0, 5])
    rounds = np.array([0, 0, 3, 0, 5])

    def said(*chosen, rounds=rounds):
        how = {"initial": False, "adapts": False, "noun": "evaluated honest client"}
        finding = untrained_clients(rounds, past, chosen=np.array(chosen, int), **how)
        return finding and finding.sentence.partition(" in ")[0]

    assert said(1, 2, 4) == "1 of 3 evaluated honest clients never trained"
    assert said(0, 1) == "2 of 2 evaluated honest clients never trained"
    assert said(2, 4) is None
    assert said(0, 1, rounds=np.zeros(5, int)) is None, "that is another finding"


def test_findings_about_clients_come_after_those_about_the_run():
    about = Finding("untrained", "Some never trained.")
    result = findings(
        history(2.3, math.nan), per_round={}, classes={}, blank=BLANK, scales=SCALES, clients=(None, about)
    )
    assert [finding.kind for finding in result] == ["diverged", "untrained", "scales"]
