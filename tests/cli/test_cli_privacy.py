"""``--epsilon`` finds the noise for a budget, or says what would afford it; files tell what was spent."""

import json

import numpy as np
import pytest

import evenhand as eh
from evenhand.cli import main
from evenhand.cli._options import Budget, _least_noise
from evenhand.privacy import epsilon

pytestmark = pytest.mark.usefixtures("no_figures", "shared_programs")

QUICK = ["--data", "digits", "--rounds", "4", "--quiet", "--checkpoint", "0"]


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def config(folder):
    return json.loads((folder / "config.json").read_text())


def test_the_least_noise_that_a_budget_allows_is_found_and_recorded(tmp_path):
    out = tmp_path / "a"
    command = ["run", "ditto(dp_fedavg(clip=0.5, rate=0.2), lam=1)", "--epsilon", "4", "--out", str(out)]
    assert main([*command, *QUICK]) == 0
    method = config(out)["method"]
    noise = float(method.partition("noise_multiplier=")[2].partition(")")[0])
    told = summary(out)["privacy"]
    assert 3.9 < told["epsilon"] <= 4.0 and told["unit"] == "client"
    exact = epsilon(noise_multiplier=noise, rate=0.2, steps=4, delta=told["delta"])
    assert abs(exact - told["epsilon"]) < 1e-6
    assert any("personal models" in each for each in told["unprotected"])
    assert epsilon(noise_multiplier=noise * 0.98, rate=0.2, steps=4, delta=told["delta"]) > 4.0


def test_what_was_found_in_the_rows_without_noise_is_not_covered(tmp_path):
    """The scale of columns and their categories, which go with the model, and the choice of a round."""
    table, out = tmp_path / "t.csv", tmp_path / "a"
    rows = [f"{'abcd'[i % 4]},{i % 7},{'xy'[i % 2]},{i % 3 == 0:d}" for i in range(80)]
    table.write_text("\n".join(["client,size,job,label", *rows]))
    command = ["run", "dp_fedavg(clip=0.5, rate=0.5)", "--epsilon", "20", "--rounds", "2", "--quiet"]
    command += [
        "--valid-fraction",
        "0.2",
        "--keep",
        "best:valid:mean",
        "--out",
        str(out),
        "--data",
        str(table),
    ]
    assert main(command) == 0
    for told in (
        summary(out)["account"]["unprotected"],
        eh.load_run(out).view().info["privacy"]["unprotected"],
    ):
        assert any(words.endswith("the means and deviations of columns, their categories") for words in told)
        assert any("goes with the model: the classes of the label, " in words for words in told)
        assert any(words.startswith("the choice of the round that is kept") for words in told)
    for options, is_fitted in (({"standardize": False, "drop": ["job"]}, False), ({}, True)):
        data = eh.data.load(table, **options)
        features = data.features
        assert features is not None and bool(features.fitted) == is_fitted
        # A class that one row alone has is an output of the model, whatever is done to the columns.
        [words] = features.fitted_with(data.train.y)
        assert "the classes of the label" in words and ("the means" in words) == is_fitted
        assert features.fitted_with(data.train.y.astype(np.float32)) == features.fitted


def test_noise_that_does_not_suffice_is_refused_with_the_clients_that_would_afford_it(tmp_path, capsys):
    out = tmp_path / "a"
    command = ["run", "dp_fedavg(clip=0.5, noise_multiplier=0.5)", "--epsilon", "4", "--out", str(out)]
    assert main([*command, *QUICK]) == 2
    said = capsys.readouterr().err
    assert "does not suffice" in said and "leave its noise_multiplier out" in said
    needed = int(said.partition("of this size from ")[2].partition(" clients")[0].replace(",", ""))
    digits = len(str(needed - 1))
    rate = 0.1 * 30 / needed
    assert epsilon(noise_multiplier=0.5, rate=rate, steps=4, delta=10.0**-digits) <= 4.0
    assert not out.exists()


def test_enough_noise_is_left_as_it_is(tmp_path):
    out = tmp_path / "a"
    command = ["run", "dp-fedavg", "--clip", "0.5", "--noise-multiplier", "2", "--epsilon", "4"]
    assert main([*command, "--out", str(out), *QUICK]) == 0
    assert "noise_multiplier=2" in config(out)["method"]
    assert summary(out)["privacy"]["epsilon"] < 4.0


def test_what_was_spent_is_told_for_the_delta_of_the_budget(tmp_path):
    out = tmp_path / "a"
    command = ["run", "dp_fedavg(clip=0.5, rate=0.2)", "--epsilon", "4", "--delta", "1e-6", "--out", str(out)]
    assert main([*command, *QUICK]) == 0
    told = summary(out)["privacy"]
    assert told["delta"] == 1e-6 and 3.98 < told["epsilon"] <= 4.0
    assert main(["resume", str(out), "--rounds", "5", "--quiet"]) == 2  # at the usual delta it would do


def test_a_plain_name_needs_no_noise_where_there_is_a_budget(tmp_path, capsys):
    out = tmp_path / "a"
    assert main(["run", "dp-fedavg", "--clip", "0.5", "--epsilon", "4", "--out", str(out), *QUICK]) == 0
    assert main(["run", "dp-fedavg", "--clip", "0.5", "--out", str(tmp_path / "b"), *QUICK]) == 2
    assert "dp-fedavg needs --noise-multiplier" in capsys.readouterr().err


def test_training_further_may_not_exceed_the_budget(tmp_path, capsys):
    out = tmp_path / "a"
    assert main(["run", "dp_fedavg(clip=0.5)", "--epsilon", "4", "--out", str(out), *QUICK]) == 0
    assert main(["resume", str(out), "--rounds", "40", "--quiet"]) == 2
    assert "does not suffice" in capsys.readouterr().err
    assert summary(out)["rounds"] == 4


def test_the_most_rounds_that_a_resumed_run_affords_are_named_and_are_the_most(tmp_path, capsys):
    out = tmp_path / "a"
    command = ["run", "dp_fedavg(clip=0.5, noise_multiplier=1)", "--epsilon", "4", "--out", str(out)]
    assert main([*command, *QUICK]) == 0
    assert main(["resume", str(out), "--rounds", "900", "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "start a new run in another folder without a noise_multiplier" in said and "leave" not in said
    most = int(said.partition("allows at most ")[2].partition(" ")[0])
    spent = [epsilon(noise_multiplier=1.0, rate=0.1, steps=steps, delta=0.01) for steps in (most, most + 1)]
    assert spent[0] <= 4.0 < spent[1] and most > 4


def test_a_study_keeps_each_private_run_within_the_budget(tmp_path, capsys):
    """The noise depends on the rate, so each setting gets another; a method without privacy is named."""
    out = tmp_path / "a"
    methods = ["fedavg", "dp_fedavg(clip=0.5, rate={0.1, 0.4})"]
    budget = ["--epsilon", "4", "--delta", "0.001", "--seeds", "1", "--out", str(out)]
    assert main(["study", *methods, *budget, *QUICK]) == 0
    results = [json.loads(path.read_text()) for path in out.glob("runs/*/result.json")]
    spent = {each["setting"]: each["view"]["info"].get("privacy") for each in results}
    assert spent.pop("fedavg(lr=0.1)") is None and len(spent) == 2
    assert all(3.9 < each["epsilon"] <= 4.0 and each["delta"] == 0.001 for each in spent.values())
    page = (out / "study.html").read_text()
    assert (
        "Each run of dp_fedavg(clip=0.5) stays within epsilon 4. No privacy is guaranteed by fedavg." in page
    )
    assert main(["study", "fedavg", "fedprox(mu=1)", *budget[:-1], str(tmp_path / "b"), *QUICK]) == 2
    assert "none of fedavg, fedprox(mu=1) does" in capsys.readouterr().err
    assert main(["study", methods[1], "--delta", "0.1", "--out", str(tmp_path / "c"), *QUICK]) == 2
    assert "--delta needs --epsilon" in capsys.readouterr().err


@pytest.mark.parametrize(
    "method",
    [
        "dp_fedavg(clip=adaptive_clip(0.5, noise=3), rate=0.2)",  # bears a noise multiplier below 6
        "dp_delta_fl(theta=0.5, largest_loss=3, clip=0.5, rate=0.5)",  # whose histograms bear only so much
        "dp_term(t=1, largest_loss=3, clip=0.5, rate=0.5)",
        "dp_fed2(step_sizes=(1.0, 0.1), clips=(0.5, 5.0), delay=2, rate=0.5)",
    ],
)
def test_noise_is_found_for_settings_that_do_not_bear_any_amount(method, tmp_path, capsys):
    out = tmp_path / "a"
    assert main(["run", method, "--epsilon", "4", "--out", str(out), *QUICK]) == 0
    assert 3.98 < summary(out)["privacy"]["epsilon"] <= 4.0
    assert capsys.readouterr().err == ""  # nothing about epsilons of noise that was only tried


def test_a_count_of_clips_that_leaves_no_room_is_named(tmp_path, capsys):
    command = ["run", "dp_fedavg(clip=adaptive_clip(0.5, noise=0.6))", "--epsilon", "0.5"]
    assert main([*command, "--out", str(tmp_path / "a"), *QUICK]) == 2
    said = capsys.readouterr().err
    assert "cannot be reached" in said and "counting alone gives away more" in said


def test_clients_that_take_turns_are_not_told_to_be_more(tmp_path, capsys):
    """No sampling hides them, so that the formula for samples does not hold."""
    command = ["run", "dp_ftrl(clip=0.5, noise_multiplier=1, cohort=10, clients=30)", "--epsilon", "2"]
    assert main([*command, "--out", str(tmp_path / "a"), *QUICK]) == 2
    said = capsys.readouterr().err
    assert "does not suffice" in said and "out of" not in said


def test_a_budget_of_examples_is_for_their_number(tmp_path):
    out = tmp_path / "a"
    command = ["run", "alone(dp_sgd(0.1, clip=1, rate=0.05, steps=5))", "--clients", "1", "--epsilon", "4"]
    assert main([*command, "--out", str(out), *QUICK]) == 0
    told = summary(out)["privacy"]
    assert (told["unit"], told["delta"]) == ("example", 1e-4) and 3.98 < told["epsilon"] <= 4.0


def test_more_clients_afford_it_at_the_delta_of_so_many():
    promise = eh.privacy.promise(lambda rounds: (eh.types.Release(0.7, 0.1, times=rounds),))
    needed = Budget(1.0, None, 50)._clients(promise, 30)
    assert needed is not None
    spends = {
        clients: epsilon(
            noise_multiplier=0.7, rate=3 / clients, steps=50, delta=eh.privacy.usual_delta(clients)
        )
        for clients in (needed, int(0.98 * needed))
    }
    assert needed > 100 and spends[needed] <= 1.0 < spends[int(0.98 * needed)]


@pytest.mark.parametrize("least", [0.0021, 0.999, 1.0, 1.0005, 3.33339, 17.0, 9000.0])
def test_noise_is_never_rounded_below_what_is_enough(least):
    found = _least_noise(lambda noise: noise >= least)
    assert least <= found <= least * 1.002
    assert _least_noise(lambda noise: False) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fedavg", "--epsilon", "4"], "guarantee privacy"),
        (["dp_fedavg(clip=1)", "--epsilon", "-1"], "above 0"),
        (["dp_fedavg(clip=1)", "--epsilon", "inf"], "finite epsilon"),
        (["dp_fedavg(clip=1, noise_multiplier=1)", "--delta", "0.1"], "needs --epsilon"),
        (["dp_fedavg(clip=1)", "--epsilon", "1", "--delta", "2"], "between 0 and 1"),
        (["dp_fedavg(clip=1)", "--epsilon", "1e-6", "--delta", "1e-9"], "cannot be reached"),
        (["private(fedavg())"], "sampling=poisson(rate) and aggregator=noisy_mean(clip,"),
        (["private(fedavg(aggregator=caf(2)))"], "every upload, and what one client changes"),
        (
            ["term(dp_sgd(0.1, clip=1, noise_multiplier=1, rate=0.1, steps=2), t=1)"],
            "give this work to fedavg",
        ),
        (
            ["ditto(fedavg(), dp_sgd(0.1, clip=1, noise_multiplier=1, rate=0.1, steps=2))"],
            "as in ditto(fedavg(dp_sgd(...)), sgd(...))",
        ),
        (["dp_fedavg(clip=1, noise_multiplier=1)", "--cohort", "5"], "--cohort 5: this method draws"),
    ],
)
def test_what_cannot_be_is_one_sentence(words, said, tmp_path, capsys):
    assert main(["run", *words, "--out", str(tmp_path / "a"), *QUICK]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


def test_any_composition_that_python_can_write(tmp_path):
    out = tmp_path / "a"
    noisy = "noisy_mean(adaptive_clip(0.5, noise=3), noise_multiplier=1, rate=0.3)"
    method = f"private(fedprox(mu=0.1, aggregator={noisy}, sampling=poisson(0.3)))"
    assert main(["run", method, "--out", str(out), *QUICK]) == 0
    assert summary(out)["privacy"]["unit"] == "client"
    assert main(["report", str(out)]) == 0
    assert "Privacy" in (out / "report.html").read_text()


def test_what_was_spent_is_printed(tmp_path, capsys):
    quick = [word for word in QUICK if word != "--quiet"]
    command = ["run", "dp_fedavg(clip=0.5, noise_multiplier=1)", "--out", str(tmp_path / "a")]
    assert main([*command, *quick]) == 0
    shown = capsys.readouterr()
    assert "Privacy: epsilon" in shown.out
    assert "A round draws 3 of 30 clients on average, each with probability 0.1." in shown.err
