"""Which runs are one method, which methods may be compared, and which of them is best by more than noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reported import view
from scipy.stats import permutation_test

from evenhand.errors import EvenhandError
from evenhand.evaluation import Finding
from evenhand.report import RunView, caution, compare, covered, may_win, verdict
from evenhand.report.tables import difference_table

OPTIONS = {"data": "digits", "alpha": 0.1, "data_seed": 0, "cohort": 10, "rounds": 50, "lr": 0.1, "lanes": 4}


def run(title: str = "fedavg", *, gain: float = 0.0, **changes: Any) -> RunView:
    """A run; changes go to its settings and to its info, under the same names."""
    made = view(title)
    accuracy = np.full(30, 0.5) + gain
    accuracy[:3] -= 0.2
    clients = {split: {**metrics, "accuracy": accuracy} for split, metrics in made.clients.items()}
    settings = {"seed": 0, **OPTIONS, **changes}
    info = {
        **made.info,
        "method": title,
        "fingerprint": f"{settings['data']}-{settings['alpha']}-{settings['data_seed']}",
    }
    info |= {name: settings[name] for name in ("seed", "cohort", "rounds", "fingerprint") if name in settings}
    config = {"method": {"name": title}, **{name: x for name, x in settings.items() if name != "fingerprint"}}
    return made._replace(clients=clients, info=info, config=config)


def test_seeds_are_one_method_and_settings_are_not() -> None:
    runs = [run(seed=2), run("fedprox", seed=0), run(seed=0), run(seed=1, lanes=8), run(seed=1, lr=0.5)]
    found = compare(runs)
    assert found.names == ["fedavg lr=0.1", "fedprox", "fedavg lr=0.5"]
    assert [[view.info["seed"] for view in method.runs] for method in found.methods] == [[0, 1, 2], [0], [1]]
    assert found.seeds == 3


@pytest.mark.parametrize(
    "change", [{"metrics": "auc"}, {"diagnostics": True}, {"keep_personal": True}, {"masks": True}]
)
def test_what_is_measured_or_kept_besides_makes_no_other_method(change: dict[str, Any]) -> None:
    plain = {name: type(value)() for name, value in change.items()}
    assert compare([run(seed=0, **plain), run(seed=1, **change), run(seed=2)]).seeds == 3


def test_data_drawn_anew_are_one_method_unless_they_changed_otherwise() -> None:
    drawn = [run(seed=i, data_seed=i) for i in range(3)]
    assert len(compare(drawn).methods) == 1
    assert not compare(drawn).same_clients
    assert not compare([*drawn, *(run("b", seed=i, data_seed=i) for i in range(3))]).obstacles
    assert compare([*drawn, *(run("b", seed=i, data_seed=2 - i) for i in range(3))]).obstacles == (
        "pairing of seeds with data",
    )
    changed = compare([run(seed=0), run(seed=1, fingerprint="edited")])
    assert changed.names == ["fedavg (1)", "fedavg (2)"]
    assert changed.obstacles[0] == "data"


def test_a_repeated_run_counts_once() -> None:
    found = compare([run(seed=0), run(seed=0), run(seed=1)])
    assert [len(method.runs) for method in found.methods] == [2, 1]


@pytest.mark.parametrize(
    ("change", "obstacle"),
    [
        ({"alpha": 0.5}, "data (alpha 0.1, 0.5)"),
        ({"data_seed": 1}, "data (data seed 0, 1)"),
        ({"fingerprint": "other"}, "data"),
        ({"seed": 1}, "seeds (0; 1)"),
        ({"cohort": 30}, "cohorts (10, 30)"),
        ({"rounds": 20}, "rounds (50, 20)"),
        ({"stragglers": 0.9}, "shares of stragglers (0, 0.9)"),
    ],
)
def test_methods_that_differ_in_what_must_be_equal_are_not_compared(
    change: dict[str, Any], obstacle: str
) -> None:
    found = compare([run(), run("fedprox", gain=0.1, **change)])
    assert found.obstacles == (obstacle,)
    assert (
        verdict(found) == f"These runs are shown side by side, not compared: they differ in their {obstacle}."
    )
    assert found.winners([np.array([0.5]), np.array([0.6])], ["1", "2"], 1) == set()
    assert caution(found) == ""


def test_evaluated_clients_must_be_equal() -> None:
    other = run("fedprox")
    other = other._replace(client_ids=[f"other {name}" for name in other.client_ids])
    assert compare([run(), other]).obstacles == ("evaluated clients",)
    unknown = [one._replace(info={}, config={}) for one in (run(), other)]
    assert compare(unknown).obstacles == ("data",)


@pytest.mark.parametrize("change", [{"lr": 0.5}, {"epochs": 5}, {"mu": 1.0}, {"model": "mlp"}])
def test_methods_that_differ_in_other_settings_are_compared(change: dict[str, Any]) -> None:
    found = compare([run(), run("b", gain=0.1, **change)])
    assert found.obstacles == ()
    assert "served best by b (test accuracy 5" in verdict(found)
    assert "One seed each proves little" in caution(found)


def test_one_seed_each_marks_the_best_shown_number() -> None:
    found = compare([run("a"), run("b"), run("c")])
    values = [np.array([x]) for x in (0.5, 0.51, 0.52)]
    assert found.winners(values, ["50", "51", "52"], 1) == {2}
    assert found.winners(values, ["50", "51", "52"], -1) == {0}
    assert found.winners(values, ["50", "52", "52"], 1) == {1, 2}
    assert found.winners(values, ["52", "52", "52"], 1) == set()
    assert compare([run("a")]).winners(values[:1], ["50"], 1) == set()


def test_several_seeds_need_an_interval_above_zero() -> None:
    """Seven of them, which two comparisons need; Student's interval by hand."""
    found = compare([run(title, seed=i) for title in "abc" for i in range(7)])
    noise = np.linspace(-0.1, 0.1, 7)
    shifted = [0.5 + noise, 0.6 + noise + np.array([0, 0.01, 0, 0, 0, 0, 0]), 0.4 - noise]
    assert found.winners(shifted[:2] + shifted[:1], ["", "", ""], 1) == {
        1
    }  # in pairs, the common noise cancels
    assert (
        found.winners([shifted[0], shifted[1], 0.5 - 9 * noise], ["", "", ""], 1) == set()
    )  # not the third's
    # Student's t with 6 degrees of freedom: differences of mean 1 and deviation s have the interval 1 -+ 0.9248 s.
    for deviation, winners in ((1.07, {1}), (1.09, set())):
        difference = 1 + deviation * np.array([-1.5, -1.0, -0.5, 0, 0.5, 1.0, 1.5]) / np.sqrt(7 / 6)
        assert found.winners([np.zeros(7), difference, np.zeros(7)], ["", "", ""], 1) == winners
        assert found.winners([np.zeros(7), -difference, np.zeros(7)], ["", "", ""], -1) == winners
    assert "no method is better than all others by more than the noise of 7 seeds" in verdict(found)
    assert "95 % interval" in caution(found)


@pytest.mark.parametrize(("methods", "least"), [(2, 6), (3, 7), (4, 7), (5, 8)])
def test_no_star_where_the_test_by_signs_cannot_come_to_its_level(methods: int, least: int) -> None:
    """SciPy's exact test by signs of the clearest differences, raised by Holm, says how many seeds are needed."""
    for seeds in (2, least - 1, least):
        of = compare([run(f"m{i}", seed=seed) for i in range(methods) for seed in range(seeds)])
        clear = 1 + 1e-3 * np.arange(seeds)
        how = {"permutation_type": "samples", "n_resamples": 2**12}
        test = permutation_test((clear,), lambda x: np.mean(x), **how)  # type: ignore[call-overload]
        able = (methods - 1) * test.pvalue <= 0.05
        assert able == (seeds >= least)
        values = [clear, *[np.zeros(seeds)] * (methods - 1)]
        assert of.winners(values, [""] * methods, 1) == ({0} if able else set())
        words = f"With {seeds} seeds no difference can be significant: use at least {least}."
        assert (words in caution(of)) != able


def test_methods_that_guess_count_among_the_comparisons() -> None:
    """The table of differences tests them, too: one page names one number of seeds."""
    for seeds in (6, 7):
        runs = [run(title, seed=i) for title in "abc" for i in range(seeds)]
        guesses = (Finding("guessing", "It guesses."),)
        of = compare([x._replace(findings=guesses) if x.title == "c" else x for x in runs])
        assert [method.name for method in of.candidates] == ["a", "b"]
        values = [1 + 1e-3 * np.arange(seeds), *[np.zeros(seeds)] * 2]
        able = of.winners(values, [""] * 3, 1) == {0}
        assert able == of.may_mark == (seeds == 7)
        for text in (caution(of), difference_table(of)):
            assert ("no difference can be significant: use at least 7" in text) != able


def test_a_run_that_is_not_finite_never_wins() -> None:
    lost = run("lost", gain=0.3)
    lost = lost._replace(clients={**lost.clients, "train": {"loss": np.full(30, np.inf)}})
    assert may_win(run()) and not may_win(lost)
    text = verdict(compare([run("a"), lost, run("b", gain=0.1)]))
    assert "served best by b" in text and text.endswith("Left out (training diverged): lost.")
    comparison = compare([run("a"), lost, run("b")])
    assert comparison.winners([np.array([0.5])] * 3, ["50", "50", "50"], 1) == {0, 2}
    assert verdict(compare([run(), lost])) == "All methods but fedavg diverged, so none is called the best."
    assert verdict(compare([lost, lost._replace(title="too")])).startswith("All of these runs diverged")


def test_a_malicious_client_does_not_keep_a_run_from_winning() -> None:
    """Neither by a number that is not finite nor by its own accuracy; an honest one does."""
    made, better = run("a"), run("b", gain=0.1)
    values = {split: dict(metrics) for split, metrics in better.clients.items()}
    for metrics in values.values():
        metrics["loss"] = np.where(np.arange(30) == 4, np.inf, 1.0)
    for malicious, best in ((4, "b"), (5, "")):
        attacked = better._replace(clients=values, malicious=np.arange(30) == malicious)
        assert may_win(attacked) == bool(best)
        other = made._replace(malicious=np.arange(30) == malicious)
        text = verdict(compare([other, attacked, run("c")._replace(malicious=np.arange(30) == malicious)]))
        assert ("served best by b" in text) == bool(best)


def test_verdicts_on_the_mean_and_the_tail() -> None:
    flat, spiky = run("flat"), run("spiky", gain=0.1)
    even = np.full(30, 0.5)
    flat = flat._replace(clients={"test": {"accuracy": even, "loss": even}, "train": {"loss": even}})
    text = verdict(compare([flat, spiky]))
    assert text.endswith("(test accuracy 57.9\u202f%), the worst tenth of the clients by flat (50.0\u202f%).")
    assert "served best by \u2068בית\u2069 (" in verdict(compare([flat, spiky._replace(title="בית")]))


def test_runs_without_settings_have_different_names() -> None:
    bare = [view("run")._replace(config={}, info={"seed": i}) for i in range(2)]
    assert compare(bare).names == ["run (1)", "run (2)"]
    assert compare({"fedavg": bare}).names == ["fedavg"]
    with pytest.raises(EvenhandError, match="no run"):
        compare({})


def test_runs_of_unlike_numbers_of_clients_are_said_to_cover_both() -> None:
    sizes = {"train": np.full(6, 9), "test": np.full(6, 3)}
    few, more = view("a", 6, sizes=sizes), view("b", 8, sizes={k: np.full(8, 9) for k in sizes})
    assert covered([few, more], "test").text == "6 to 8 clients"
    assert covered([more, more], "test").text == "8 clients"
    sizes = {"train": np.full(6, 9), "test": np.array([3, 3, 3, 3, 3, 0])}
    assert (
        covered([few._replace(sizes=sizes), more], "test").text
        == "5 to 8 of 6 to 8 clients, those with test examples"
    )
