"""The figures: what they draw, for one run, for a few methods and for many, and for many seeds of one."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from reported import view

from evenhand.errors import EvenhandError
from evenhand.report import RunView, figures
from evenhand.report.page import page as page_of


def bars(axes: Axes) -> list[Rectangle]:
    """What histograms draw, which matplotlib declares to be patches of any form."""
    return cast("list[Rectangle]", axes.patches)


def test_learning_curve_shows_the_history() -> None:
    run = view()
    (axes,) = figures.learning_curve(run, metric="accuracy", split="test").axes
    lines = {line.get_label(): line for line in axes.lines}
    np.testing.assert_allclose(np.asarray(lines["test"].get_ydata()), 100 * run.history["test_accuracy_mean"])
    np.testing.assert_allclose(np.asarray(lines["test"].get_xdata()), run.history["round"])
    assert {text.get_text() for text in axes.texts} == {"test", "training"}
    assert len(axes.collections) == 1  # the band
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "accuracy (%)")
    (axes,) = figures.learning_curve([run, view("b", seed=1)], metric="accuracy", split="test").axes
    assert len(axes.lines) == 4
    assert not axes.collections
    old = run._replace(history={k: v for k, v in run.history.items() if not k.endswith("_mean")})
    (axes,) = figures.learning_curve([old, run]).axes
    np.testing.assert_allclose(np.asarray(axes.lines[1].get_ydata()), 100 * run.history["test_accuracy"])


def spending(title: str = "a", *, seed: int = 0, up: float = 1e6, down: float = 2e6) -> RunView:
    """A run that counts bytes and seconds, so many in each round."""
    run = seeded(title, seed)
    rounds = run.history["round"]
    return run._replace(
        history={**run.history, "bytes_up": up * rounds, "bytes_down": down * rounds, "seconds": 0.5 * rounds}
    )


def test_a_metric_is_drawn_against_what_the_run_has_spent() -> None:
    run = spending()
    rounds, mean = run.history["round"], 100 * run.history["test_accuracy_mean"]
    (axes,) = figures.metric_against(run).axes
    thin, line = axes.lines
    np.testing.assert_allclose(np.asarray(line.get_xdata()), 3 * rounds)
    np.testing.assert_allclose(np.asarray(line.get_ydata()), mean)
    np.testing.assert_allclose(np.asarray(thin.get_ydata()), 100 * run.history["test_accuracy_worst10"])
    assert axes.get_xlabel() == "received and sent by clients (MB)"
    (axes,) = figures.metric_against(run, "bytes_up").axes
    np.testing.assert_allclose(np.asarray(axes.lines[-1].get_xdata()), rounds)
    assert axes.get_xlabel() == "sent by clients (MB)"
    (axes,) = figures.metric_against(run, "seconds").axes
    np.testing.assert_allclose(np.asarray(axes.lines[-1].get_xdata()), 0.5 * rounds)
    assert axes.get_xlabel() == "seconds" and axes.get_xscale() == "linear"
    with pytest.raises(EvenhandError, match=r"'joules'.*has not recorded it.*'bytes'.*'seconds'") as refused:
        figures.metric_against(run, "joules")
    assert "'time'" not in str(refused.value)  # of a run without systems
    with pytest.raises(EvenhandError, match="has not recorded it"):
        figures.metric_against([run, seeded("old", 0)])


def test_seeds_that_spend_unequally_are_averaged_in_both_directions() -> None:
    runs = [spending(seed=seed, up=up) for seed, up in ((0, 1e3), (1, 3e3))]
    (axes,) = figures.metric_against(runs, "bytes_up").axes
    np.testing.assert_allclose(np.asarray(axes.lines[-1].get_xdata()), 2 * runs[0].history["round"])
    assert axes.get_xlabel() == "sent by clients (kB)" and len(axes.collections) == 1


def test_methods_that_spend_many_times_as_much_have_a_logarithmic_axis() -> None:
    cheap = spending("cheap", up=1e4, down=0.0)
    for up, scale in ((7e4, "linear"), (9e4, "log")):
        (axes,) = figures.metric_against([cheap, spending("dear", up=up, down=0.0)]).axes
        assert axes.get_xscale() == scale
    assert not figures.has_recorded(spending(up=0.0, down=0.0), "bytes")
    assert not figures.has_recorded([cheap, seeded("old", 0)], "bytes")
    assert figures.has_recorded(cheap, "bytes") and figures.has_recorded(cheap, "seconds")


def test_long_histories_are_thinned_but_keep_their_ends() -> None:
    rounds = np.arange(20_000)
    (axes,) = figures.series([view(history={"round": rounds, "mu": rounds * 0.5})], "mu").axes
    x = np.asarray(axes.lines[0].get_xdata())
    assert len(x) <= 500
    assert (x[0], x[-1]) == (0, 19_999)


@pytest.mark.parametrize("clients", [1, 30, 400])
def test_histogram_holds_every_client(clients: int) -> None:
    for metric in ("accuracy", "loss"):
        run = view(clients=clients)
        (axes,) = figures.client_histogram([run], metric=metric, split="test").axes
        counted = sum(patch.get_height() for patch in bars(axes))
        assert counted == np.isfinite(run.clients["test"][metric]).sum()
    panels = figures.client_histogram(
        [view(), view("b", seed=1), view("c", seed=2)], metric="accuracy", split="test"
    ).axes
    assert len(panels) == 3


def test_published_bins_for_many_clients() -> None:
    (axes,) = figures.client_histogram([view(clients=400)], metric="accuracy", split="test").axes
    widths = [patch.get_width() / 0.92 for patch in bars(axes)]
    np.testing.assert_allclose(widths, 100 / 39)


def test_each_accuracy_of_a_typical_client_has_a_bin_and_no_bin_lies_between() -> None:
    """An accuracy over ten examples has eleven values, in steps of 10 points, and between these nothing can be."""
    run = view(clients=400)
    shares = np.tile(np.arange(11) / 10, 40)[:400]
    run = run._replace(
        sizes={**run.sizes, "test": np.full(400, 10)},
        clients={**run.clients, "test": {"accuracy": shares, "loss": 1 - shares}},
    )
    figure = figures.client_histogram([run], metric="accuracy", split="test")
    (axes,) = figure.axes
    widths = [patch.get_width() / 0.92 for patch in bars(axes)]
    np.testing.assert_allclose(widths, 100 / 11)
    assert [patch.get_height() for patch in bars(axes)] == [int(np.sum(shares == k / 10)) for k in range(11)]
    assert sum(patch.get_height() for patch in bars(axes)) == 400
    assert legend_of(figure) == ["mean", "worst tenth"]
    assert {line.get_linewidth() for line in axes.lines} == {1.0}


@pytest.mark.parametrize("methods", [1, 3, 5])
def test_a_histogram_has_a_tick_at_100_percent(methods: int) -> None:
    for low in (0.03, 0.31, 0.55, 0.79):
        run = view(clients=100)
        shares = np.linspace(low, 1.0, 100)
        run = run._replace(clients={**run.clients, "test": {"accuracy": shares, "loss": shares}})
        for axes in figures.client_histogram([run._replace(title=f"m{i}") for i in range(methods)]).axes:
            if axes.axison:
                ticks = axes.get_xticks()
                assert ticks[-1] == 100 and 2 <= len(ticks) <= 7 and axes.get_xlim()[1] >= 100


def test_client_curve_starts_with_the_worst() -> None:
    for metric, sign in (("accuracy", 1), ("loss", -1)):
        (axes,) = figures.client_curve([view()], metric=metric, split="test").axes
        y = sign * np.asarray(axes.lines[0].get_ydata())
        assert len(y) == 29
        assert (np.diff(y) >= 0).all()


def test_scatter_has_every_client_and_medians_of_many() -> None:
    (axes,) = figures.size_scatter([view()], metric="accuracy", split="test").axes
    assert [np.size(line.get_xdata()) for line in axes.lines] == [29]
    run = view(clients=80)
    (axes,) = figures.size_scatter(run, metric="accuracy", split="test").axes
    points, medians = axes.lines
    assert (np.size(points.get_xdata()), np.size(medians.get_xdata())) == (79, 8)
    assert axes.get_xscale() == "log"
    np.testing.assert_array_equal(points.get_xdata(), run.sizes["train"][:-1])
    equal_sizes = view(sizes={"train": np.full(30, 9), "test": np.full(30, 3)})
    figure = figures.size_scatter([equal_sizes], metric="accuracy", split="test")
    (axes,) = figure.axes
    figure.canvas.draw()
    assert axes.get_xscale() == "linear"
    low, high = axes.get_xlim()
    ticks = [tick.get_text() for tick in axes.get_xticklabels() if low <= tick.get_position()[0] <= high]
    assert "9" in ticks and len(set(ticks)) == len(ticks)


def test_shares_have_no_logarithmic_axis() -> None:
    """Accuracies from 0.4 to 90 % stay on a linear axis; losses over as wide a range do not."""
    wide = np.geomspace(0.004, 0.9, 30)
    run = view(clients=30)
    clients = {split: {"accuracy": wide, "loss": wide} for split in run.clients}
    history = {"round": np.arange(30), **{f"test_{name}_mean": wide for name in ("accuracy", "loss")}}
    run = run._replace(clients=clients, history=history, sizes=dict.fromkeys(clients, np.full(30, 5)))
    for metric, scale in (("accuracy", "linear"), ("loss", "log")):
        for figure in (figures.client_curve, figures.size_scatter, figures.learning_curve):
            (axes,) = figure([run], metric=metric, split="test").axes
            assert axes.get_yscale() == scale, (metric, figure)
        assert figures.series([run], f"test_{metric}_mean").axes[0].get_yscale() == scale


def seeded(title: str, number: int, factor: float = 1.0) -> RunView:
    """A run that differs from the others of its title by the seed, and by a factor of all it has recorded."""
    run = view(title)
    history = {key: values if key == "round" else factor * values for key, values in run.history.items()}
    clients = {split: {name: factor * x for name, x in m.items()} for split, m in run.clients.items()}
    return run._replace(history=history, clients=clients, info={**run.info, "seed": number})


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for made in figure.legends for text in made.get_texts()]


def test_legends_say_what_dashes_shades_and_bands_mean() -> None:
    one, three = seeded("a", 0), [seeded("b", seed, 0.8) for seed in range(3)]
    assert legend_of(figures.learning_curve(one, metric="accuracy")) == ["worst to best tenth"]
    assert legend_of(figures.learning_curve({"b": three}, metric="accuracy")) == ["range of seeds"]
    assert legend_of(figures.learning_curve({"a": one, "b": three})) == ["worst tenth", "range of seeds"]
    assert legend_of(figures.client_curve(one)) == ["worst tenth"]
    assert legend_of(figures.series(one, "test_loss")) == []
    several = {
        name: seeded(name, 0, factor) for name, factor in zip("abcd", (1.0, 0.8, 0.6, 0.4), strict=True)
    }
    for draw_figure in (figures.learning_curve, figures.client_curve):  # a panel each, with their names above
        assert legend_of(draw_figure(several)) == ["worst tenth"]


def test_few_methods_are_labelled_where_their_lines_end() -> None:
    runs = [seeded("a", 0), seeded("b", 0, 0.8), seeded("_c$x$", 0, 0.6)]
    figure = figures.learning_curve(runs)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["a", "b", r" _c\$x\$"]
    assert legend_of(figure) == ["worst tenth"]
    heights = [text.get_position()[1] for text in axes.texts]
    assert heights == sorted(heights, reverse=True) and min(-np.diff(heights)) >= 0.07 - 1e-9
    long = [seeded("a method with a long name", 0), seeded("b", 0, 0.8)]
    for crowded in (long, [seeded(name, 0) for name in "abc"]):  # names too long; lines that end in one place
        figure = figures.learning_curve(crowded)
        assert not figure.axes[0].texts
        names = [text.get_text() for text in figure.legends[0].get_texts()]
        assert names == [*(run.title for run in crowded), "worst tenth"]


def test_a_legend_of_long_names_takes_several_lines() -> None:
    """In one line, browsers with a wide font cut the last of these names off."""

    def height(titles: list[str]) -> float:
        return figures.client_curve([seeded(title, 0) for title in titles]).get_figheight()

    assert height(["fedprox_adaptive mu=1.0", "delta-fl theta=0.5", "qfedavg q=1.0"]) > height(
        ["a", "b", "c"]
    )


@pytest.mark.parametrize("draw", [figures.learning_curve, figures.client_curve, figures.client_histogram])
@pytest.mark.parametrize("count", [4, 5, 12])
def test_many_methods_get_a_panel_each(draw: Any, count: int) -> None:
    figure = draw([seeded(f"m{i}", 0, 1 - 0.05 * i) for i in range(count)])
    shown = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title(loc="left") for axes in shown] == [f"m{i}" for i in range(count)]
    assert len({axes.get_ylim() for axes in shown}) == len({axes.get_xlim() for axes in shown}) == 1
    if draw is not figures.client_histogram:
        widths = [sorted(line.get_linewidth() for line in axes.lines) for axes in shown]
        assert all(found[: count - 1] == [0.8] * (count - 1) and found[-1] == 1.8 for found in widths)


@pytest.mark.parametrize("draw", [figures.learning_curve, figures.client_curve])
def test_many_methods_share_axes_and_few_have_panels_if_asked_to(draw: Any) -> None:
    runs = [seeded(f"m{i}", 0, 1 - 0.05 * i) for i in range(5)]
    figure = draw(runs, panels=False)
    (axes,) = figure.axes
    shown = {text.get_text() for text in axes.texts} | set(legend_of(figure))
    assert {f"m{i}" for i in range(5)} <= shown
    assert [axes.get_title(loc="left") for axes in draw(runs[:2], panels=True).axes] == ["m0", "m1"]
    assert len(draw(runs[:1], panels=True).axes) == 1


def test_methods_have_the_colours_that_they_were_given() -> None:
    runs, colors = {"a": seeded("a", 0), "b": seeded("b", 0, 0.8)}, {"b": "black", "other": "red"}
    for figure in (
        figures.learning_curve(runs, colors=colors),
        figures.client_curve(runs, colors=colors),
        figures.series(runs, "test_loss", colors=colors),
    ):
        looks = {line.get_label(): line.get_color() for line in figure.axes[0].lines}
        assert looks["b"] == "black" and looks["a"] == "#0072b2"
    for figure in (figures.client_histogram(runs, colors=colors), figures.size_scatter(runs, colors=colors)):
        assert figure.axes[1]._left_title.get_color() == "black"  # type: ignore[attr-defined]
    with pytest.raises(EvenhandError, match="matplotlib knows no such colour"):
        figures.client_curve(runs, colors={"a": "blurple"})


def test_several_seeds_are_a_mean_and_a_band() -> None:
    runs = [seeded("a", i, factor) for i, factor in enumerate((1.0, 0.9, 0.5))]
    (axes,) = figures.learning_curve(runs).axes
    mean = 100 * 0.8 * runs[0].history["test_accuracy_mean"]
    np.testing.assert_allclose(np.asarray(axes.lines[-1].get_ydata()), mean)
    (band,) = axes.collections
    corners = np.asarray(band.get_paths()[0].vertices)[:, 1]
    last = 100 * runs[0].history["test_accuracy_mean"][-1]
    np.testing.assert_allclose(
        (corners.min(), corners.max()), (50 * runs[0].history["test_accuracy_mean"][0], last)
    )
    (axes,) = figures.client_curve(runs).axes
    served = np.sort(runs[0].clients["test"]["accuracy"][:-1])
    np.testing.assert_allclose(np.asarray(axes.lines[0].get_ydata()), 80 * served)
    (axes,) = figures.client_histogram(runs).axes
    assert sum(patch.get_height() for patch in bars(axes)) == pytest.approx(29)
    (axes,) = figures.size_scatter(runs).axes
    np.testing.assert_allclose(
        np.asarray(axes.lines[0].get_ydata()), 80 * runs[0].clients["test"]["accuracy"][:-1]
    )


def test_a_method_keeps_its_colour_where_it_alone_recorded_a_number() -> None:
    without = view("a")._replace(history={"round": np.arange(3.0)})
    with_mu = view("b")
    (axes,) = figures.series({"a": without, "b": with_mu}, "mu").axes
    (line,) = axes.lines
    assert line.get_color() == "#d55e00" and line.get_label() == "b"


def test_runs_without_finite_values_say_so() -> None:
    lost = seeded("lost", 0, np.nan)
    figure = figures.learning_curve([lost, *(seeded(name, 0) for name in "abc")])
    assert [text.get_text() for text in figure.axes[0].texts] == ["no finite values"]
    assert not figure.axes[1].texts


class Trained:
    """Has a view, as a run of the engine has."""

    def view(self) -> RunView:
        return view()


def test_figures_take_runs_in_every_form() -> None:
    for runs in (Trained(), [Trained()], {"one": Trained()}, view(), [view()], {"one": [view()]}):
        assert len(figures.client_curve(runs).axes[0].lines) == 1
    with pytest.raises(EvenhandError, match="no run to report on"):
        figures.client_curve([])
    with pytest.raises(EvenhandError, match=r"No run has a metric 'f1' on its test split.*'accuracy'"):
        figures.client_curve(view(), metric="f1")
    with pytest.raises(EvenhandError, match="No run has a split 'dev'"):
        figures.client_curve(view(), split="dev")
    with pytest.raises(EvenhandError, match="No run has recorded 'nu'"):
        figures.series(view(), "nu")


def test_a_page_says_of_which_clients_its_figures_are() -> None:
    """Lines on training examples are of all clients, those on test examples of 29 of 30."""
    page = page_of([view()], None)
    assert "Test: of 29 of 30 clients, those with test examples. Training: of 30 clients." in page
    sizes = {"train": np.full(30, 9), "test": np.full(30, 3)}
    assert "Training: of" not in page_of([view(sizes=sizes)], None)
