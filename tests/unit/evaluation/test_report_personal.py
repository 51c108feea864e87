"""What clients gain by models of their own, in numbers, on the page and in clients.csv."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import evenhand as eh
from evenhand.report import RunView, compare, gains, in_words, read_clients_csv, write_clients_csv
from evenhand.report._families import _by_availability, attacked, available, personal
from evenhand.report.draw import edges

pytestmark = pytest.mark.draws

IDS = tuple("abcdefg")
NAN = float("nan")


def view(unseen: RunView | None = None) -> RunView:
    """Seven clients; the last has no test examples."""
    own = np.array([0.9, 0.5, 0.7, 0.2, 0.8, 0.6, NAN])
    alone = np.array([0.5, 0.5, 0.6, 0.3, 0.7, 0.1, NAN])
    sizes = {"train": np.array([60, 10, 20, 30, 40, 50, 70]), "test": np.array([5, 5, 5, 5, 5, 5, 0])}
    clients = {"test": {"accuracy": own, "global_accuracy": alone}}
    history = {"round": np.array([0])}
    return RunView("run", history, sizes, IDS, clients, {}, {}, unseen=unseen)


NEW = view()._replace(
    client_ids=("x", "y"),
    sizes={"train": np.array([3, 4]), "test": np.array([2, 2])},
    clients={"test": {"accuracy": np.array([1.0, 0.5]), "global_accuracy": np.array([0.5, 1.0])}},
)


def test_gains_by_size_and_among_the_unseen() -> None:
    found = {gain.group: gain for gain in gains(view(NEW), "test", "accuracy")}
    assert list(found) == ["all", "smallest third", "middle third", "largest third", "unseen in training"]
    every = found["all"]
    assert (every.clients, every.gained, every.lost) == (6, 4, 1)
    assert every.own == pytest.approx(3.7 / 6)
    assert every.alone == pytest.approx(2.7 / 6)
    smallest = found["smallest third"]  # b and c
    assert (smallest.clients, smallest.gained, smallest.lost) == (2, 1, 0)
    assert (smallest.own, smallest.alone) == pytest.approx((0.6, 0.55))
    largest = found["largest third"]  # f and a
    assert (largest.own, largest.alone) == pytest.approx((0.75, 0.3))
    new = found["unseen in training"]
    assert (new.clients, new.gained, new.lost) == (2, 1, 1)


def test_a_lower_loss_is_a_gain() -> None:
    loss = {"test": {"loss": np.array([1.0, 3.0]), "global_loss": np.array([2.0, 2.5])}}
    [found] = gains(NEW._replace(clients=loss), "test", "loss")
    assert (found.gained, found.lost) == (1, 1)
    assert found.own == 2.0


def test_malicious_clients_do_not_count() -> None:
    attacked = view()._replace(malicious=np.array([True] + [False] * 6))
    found = gains(attacked, "test", "accuracy")[0]
    assert (found.group, found.clients, found.gained) == ("honest", 5, 3)


def test_without_personal_models_there_is_nothing_to_tell() -> None:
    plain = view()._replace(clients={"test": {"accuracy": np.ones(7)}})
    assert gains(plain, "test", "accuracy") == []
    assert in_words(plain, "test", "accuracy") == ""


def test_clients_that_are_not_measured_are_not_said_to_have_no_model() -> None:
    """g has no test examples; it trained in the second case, in which a and d did not."""
    assert in_words(view(), "test", "accuracy").startswith(
        "Of 6 clients with test examples, 4 are served better"
    )
    some = view()._replace(last_round=np.array([0, 2, 1, 0, 3, 3, 1]))
    assert in_words(some, "test", "accuracy").startswith(
        "Of 4 clients that trained and have test examples, 3 are served better"
    )


def test_only_clients_that_trained_count() -> None:
    """a, d and g never trained: b, c, e and f are left, of which c, e and f gain; b is as well served by both."""
    some = view(NEW)._replace(last_round=np.array([0, 2, 1, 0, 3, 3, 0]))
    found = {gain.group: gain for gain in gains(some, "test", "accuracy")}
    assert list(found) == ["all", "unseen in training"], "too few for thirds"
    every = found["all"]
    assert (every.clients, every.gained, every.lost) == (4, 3, 0)
    assert (every.own, every.alone) == pytest.approx((2.6 / 4, 1.9 / 4))
    told = in_words(some, "test", "accuracy")
    assert told.startswith("Of 4 clients that trained, 3 are served better")
    assert told.endswith("3 clients never trained and are left out.")
    attacked = some._replace(malicious=np.array([True] + [False] * 5 + [True]))
    told = in_words(attacked, "test", "accuracy")
    assert told.startswith("Of 4 honest clients that trained, 3 are served better")
    assert told.endswith("1 honest client never trained and is left out.")


def test_all_clients_count_where_they_adapt_or_it_is_not_known_who_trained() -> None:
    some = view()._replace(last_round=np.array([0, 2, 1, 0, 3, 3, 0]))
    whole = gains(view(), "test", "accuracy")
    for same in (
        some._replace(info={"adapts": True}),
        some._replace(last_round=None),
        some._replace(last_round=np.zeros(7)),
        some._replace(last_round=np.ones(7)),
    ):
        assert gains(same, "test", "accuracy") == whole
        assert "trained" not in in_words(same, "test", "accuracy")
    assert gains(some, "test", "accuracy") != whole


def test_the_page_and_the_figure_leave_out_clients_that_never_trained(tmp_path: Path) -> None:
    history = {"round": np.array([0, 3])} | {
        name: np.array([0.4, 0.5])
        for name in ("test_accuracy", "test_accuracy_mean", "test_accuracy_worst10")
    }
    some = view()._replace(last_round=np.array([0, 2, 1, 0, 3, 3, 0]), history=history)
    axes = eh.report.figures.personal_scatter(some).axes[0]
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    np.testing.assert_allclose(np.asarray(marks[0].get_xdata()), [50.0, 60.0, 70.0, 10.0])
    pages = [
        eh.report.write_report(tmp_path / "page.html", [each]).read_text(encoding="utf-8")
        for each in (some, some._replace(last_round=np.ones(7)))
    ]
    for page, expected in zip(pages, (True, False), strict=True):
        assert ("; clients that never trained are left out" in page) == expected
        assert ("Clients that never trained are left out." in page) == expected
        assert (">trained<" in page) == expected


def test_in_words() -> None:
    told = in_words(view(NEW), "test", "accuracy")
    assert told.startswith(
        "Of 6 clients with test examples, 4 are served better by their personal model than by the global model, 1 worse"
    )
    assert "Of 2 unseen clients, 1 is served better by its personal model" in told


def test_clients_csv_keeps_the_unseen_apart(tmp_path: Path) -> None:
    write_clients_csv(tmp_path / "clients.csv", view(NEW))
    table = read_clients_csv(tmp_path / "clients.csv")
    new = table.unseen
    assert new is not None
    assert table.client_ids == tuple(IDS) and new.client_ids == ("x", "y")
    np.testing.assert_array_equal(new.clients["test"]["global_accuracy"], [0.5, 1.0])
    np.testing.assert_array_equal(new.sizes["train"], [3, 4])
    write_clients_csv(tmp_path / "plain.csv", view())
    assert read_clients_csv(tmp_path / "plain.csv").unseen is None


def test_clients_csv_says_when_a_client_last_trained(tmp_path: Path) -> None:
    some = view(NEW._replace(last_round=np.zeros(2)))._replace(last_round=np.array([0, 2, 1, 0, 3, 3, 0]))
    write_clients_csv(tmp_path / "clients.csv", some)
    table = read_clients_csv(tmp_path / "clients.csv")
    assert table.last_round is not None and table.unseen is not None
    assert table.last_round.tolist() == [0, 2, 1, 0, 3, 3, 0]
    assert table.unseen.last_round is not None and table.unseen.last_round.tolist() == [0, 0]
    assert "last_round" not in table.clients["test"]
    write_clients_csv(tmp_path / "old.csv", view())
    assert "last_round" not in (tmp_path / "old.csv").read_text()
    assert read_clients_csv(tmp_path / "old.csv").last_round is None


def test_the_page_shows_table_and_figure(tmp_path: Path) -> None:
    work = eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4)
    fedavg = eh.algorithms.fedavg(work)
    seen, unseen = eh.data.hold_out_clients(eh.testing.toy_data(), 0.3)
    run = eh.simulate(eh.personalization.finetune(fedavg, work), seen, rounds=2)
    text = run.report(tmp_path / "page.html", unseen=unseen).read_text(encoding="utf-8")
    assert "What clients gain from personal models" in text
    assert "unseen in training" in text
    assert "Hollow: clients unseen in training." in text
    plain = eh.simulate(fedavg, seen, rounds=2).report(tmp_path / "plain.html").read_text(encoding="utf-8")
    assert "gain from personal models" not in plain


def test_the_figure_needs_personal_models() -> None:
    plain = view()._replace(clients={"test": {"accuracy": np.ones(7)}})
    with pytest.raises(eh.errors.EvenhandError, match="no personal models"):
        eh.report.figures.personal_scatter(plain)
    axes = eh.report.figures.personal_scatter(view(NEW)).axes[0]
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    assert len(marks) == 2
    np.testing.assert_allclose(np.asarray(marks[0].get_xdata())[0], 50.0)
    np.testing.assert_allclose(np.asarray(marks[0].get_ydata())[0], 90.0)
    assert [line.get_markerfacecolor() == "none" for line in marks] == [False, True]


@pytest.mark.parametrize(
    ("metric", "side", "gain"), [("accuracy", "above", ">20.00<"), ("loss", "below", ">1.000<")]
)
def test_a_gain_is_positive_where_clients_gain_and_its_side_of_the_line_is_named(
    metric: str, side: str, gain: str, tmp_path: Path
) -> None:
    """A higher accuracy is above the line of equal values; a lower loss is below it."""
    own, alone = (
        (np.array([0.7, 0.5]), np.array([0.4, 0.4]))
        if metric == "accuracy"
        else (np.array([1.0, 2.0]), np.array([2.5, 2.5]))
    )
    run = NEW._replace(
        clients={"test": {metric: own, f"global_{metric}": alone}},
        config={"method": "ditto"},
        info={"rounds": 0},
    )
    text = eh.report.write_report(tmp_path / "page.html", run, metric=metric).read_text(encoding="utf-8")
    assert f"{side} the line, the personal model serves it better." in text
    table = text.partition("What clients gain from personal models")[2].partition("</table>")[0]
    assert gain in table


@pytest.mark.parametrize("rows", [1, 2, 10])
def test_each_accuracy_over_few_examples_has_a_bin_of_its_own(rows: int) -> None:
    """Over n examples there are n + 1 of them."""
    values = np.arange(rows + 1) / rows
    counts, _ = np.histogram(values, edges(values, "accuracy", 500, rows))
    np.testing.assert_array_equal(counts, np.ones(rows + 1))


# --- how many clients a row covers -----------------------------------------------------------------------------------


def rows(section: str) -> list[list[str]]:
    """The cells of each row of the section's table, without its head."""
    lines = re.findall(r"<tr.*?</tr>", section, re.S)[1:]
    return [
        [re.sub("<[^>]+>", "", cell).strip() for cell in re.findall(r"<t[dh].*?</t[dh]>", line, re.S)]
        for line in lines
    ]


def test_groups_count_the_clients_with_examples_and_name_the_range_over_seeds() -> None:
    """g has no test examples; at the second seed a has none either."""
    first = view()._replace(info={"seed": 0}, config={"method": "f", "seed": 0, "data_seed": 0})
    second = first._replace(
        sizes={**first.sizes, "test": np.array([0, 5, 5, 5, 5, 5, 0])},
        clients={
            "test": {
                name: np.where(np.arange(7) == 0, NAN, values)
                for name, values in first.clients["test"].items()
            }
        },
        info={"seed": 1},
        config={"method": "f", "seed": 1, "data_seed": 1},
    )
    caption = "over clients with test examples; ± over seeds"

    text = personal(compare({"f": [first, second]}))
    assert caption in text and [row[1:3] for row in rows(text)] == [["all", "5 to 6"]], "five make no thirds"

    malicious = np.array([False] * 5 + [True] * 2)
    text = attacked(compare({"f": [run._replace(malicious=malicious) for run in (first, second)]}))
    assert caption in text
    assert [row[1:3] for row in rows(text)] == [["all", "5 to 6"], ["honest", "4 to 5"], ["malicious", "1"]]

    often = np.array([0.0, 0.5, 0.5, 0.5, 0.5, 0.0, 1.0])
    text = available(compare({"f": [run._replace(availability=often) for run in (first, second)]}))
    assert caption in text
    # g alone was always available: of the clients that count, all others were there as often as each other.
    assert [row[1:4] for row in rows(text)] == [["never", "1 to 2", "0 ± 0"], ["available", "4", "50.00 ± 0"]]
    assert "over 5 to 6 clients with test examples." in text


@pytest.mark.parametrize(
    ("often", "groups"),
    [
        ([0.25, 1, 1, 1, 1, 1], {"least often": 1, "most often": 5}),
        ([0.5, 0.5, 0.5, 0.5, 0.5, 1], {"least often": 5, "most often": 1}),
        ([1, 0.5, 0.5, 0.25, 0.5, 0, 0.25], {"never": 1, "least often": 2, "in between": 3, "most often": 1}),
        ([0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5], {"available": 7}),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], {"least often": 3, "in between": 2, "most often": 2}),
        ([0, 0, 0], {"never": 3}),
    ],
)
def test_clients_that_were_available_equally_often_are_in_one_group(
    often: list[float], groups: dict[str, int]
) -> None:
    share = np.array(often)
    found = _by_availability(view()._replace(availability=share))
    assert {name: int(some.sum()) for name, some in found.items()} == groups
    ranges = [share[some] for some in found.values()]
    assert all(a.max() < b.min() for a, b in itertools.pairwise(ranges))
