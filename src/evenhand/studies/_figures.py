"""The figures of a study, as free-standing matplotlib figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evenhand.errors import EvenhandError, perhaps
from evenhand.evaluation import SPLIT_NAMES, column, is_higher_better, is_share
from evenhand.report import RunView, figures
from evenhand.studies._plan import shown
from evenhand.studies._select import direction
from evenhand.studies._tried import NDArray, Tried, frontier

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Figures", "varied"]


class Figures(NamedTuple):
    """The figures of a study under one condition; each returns a ``matplotlib.figure.Figure``.

    Attributes:
      tried: all settings.
      metric: what the statistics are of.
      split: the examples by which settings were chosen.
      statistic: the statistic by which they were.
    """

    tried: Sequence[Tried]
    metric: str
    split: str
    statistic: str

    def learning_curve(self) -> Figure:
        """The chosen settings: the metric by round, its mean over clients and (dashed) that of the worst tenth."""
        return figures.learning_curve(self._chosen(), metric=self.metric)

    def client_curve(self) -> Figure:
        """The chosen settings: every client, worst served first."""
        return figures.client_curve(self._chosen(), metric=self.metric)

    def client_histogram(self) -> Figure:
        """The chosen settings: how many clients get how much."""
        return figures.client_histogram(self._chosen(), metric=self.metric)

    def size_scatter(self) -> Figure:
        """The chosen settings: what each client gets, by its number of training examples."""
        return figures.size_scatter(self._chosen(), metric=self.metric)

    def plane(self, split: str = "test") -> Figure:
        """All settings: the worst tenth of the clients against their mean, with the frontier that none surpasses.

        A mark is a setting's mean over the seeds, its arms one standard deviation; the chosen settings are ringed.
        Settings with a run that diverged or failed have no mark.
        """
        from evenhand.report import draw

        x, y, metric = column(split, "mean"), column(split, "worst10"), self.metric
        unit = " (%)" if is_share(metric) else ""
        figure, axes = draw.single_panel(
            f"{draw.label(metric, split)}, mean over clients", f"worst tenth{unit}"
        )
        sound = [each for each in self.tried if np.isfinite(each.mean(x)) and np.isfinite(each.mean(y))]
        sign = 1 if is_higher_better(metric) else -1
        at = np.array([[each.mean(x), each.mean(y)] for each in sound]).reshape(-1, 2)
        edge = at[frontier(sign * at)]
        axes.plot(
            *draw.scaled(edge, metric).T, color=draw.MUTED, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1
        )
        for i, method in enumerate(_methods(self.tried)):
            colour, name = draw.look(i)[0], draw.short(method)
            for k in [k for k, each in enumerate(sound) if each.setting.method == method]:
                arms = [draw.scaled(np.nan_to_num(sound[k].std(key)), metric) for key in (x, y)]
                axes.errorbar(
                    *draw.scaled(at[k], metric),
                    xerr=arms[0],
                    yerr=arms[1],
                    color=colour,
                    elinewidth=0.6,
                    alpha=1.0 if sound[k].chosen else 0.45,
                    marker=draw.MARKERS[i % len(draw.MARKERS)],
                    markersize=5,
                    markeredgewidth=0,
                    linestyle="none",
                )
                if sound[k].chosen:
                    axes.plot(
                        *draw.scaled(at[k], metric),
                        "o",
                        color=draw.INK,
                        markersize=11,
                        markerfacecolor="none",
                    )
            axes.plot([], [], draw.MARKERS[i % len(draw.MARKERS)], color=colour, markersize=5, label=name)
        draw.legend(figure, axes)
        return figure

    def sensitivity(self, name: str) -> Figure:
        """A hyper-parameter: what each of its values gave, with the best choice of the other hyper-parameters.

        By the statistic and on the examples that chose; a band spans the lowest to the highest seed.

        Args:
          name: the hyper-parameter.

        Raises:
          EvenhandError: no method was tried with several values of it.
        """
        from evenhand.report import draw

        known = varied(self.tried)
        if name not in known:
            raise EvenhandError(
                f"sensitivity({name!r}): no method has several values of it{perhaps(name, known)}."
            )
        values, key = known[name], column(self.split, self.statistic)
        plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        places: NDArray = np.asarray(values if plain else range(len(values)), np.float64)
        metric = self.metric if self.statistic not in _OTHER_UNITS else ""
        unit = " (%)" if is_share(metric) else ""
        figure, axes = draw.single_panel(
            draw.short(name), f"{SPLIT_NAMES[self.split]} {self.statistic}{unit}"
        )
        sign = direction(self.statistic, self.metric)
        for i, method in enumerate(_methods(self.tried)):
            at = [_best(self.tried, method, name, value, key, sign) for value in values]
            if sum(each is not None for each in at) < 2:
                continue
            found = [np.full(1, np.nan) if each is None else each.values[key] for each in at]
            low, mean, high = (np.array([of(each) for each in found]) for of in (np.min, np.mean, np.max))
            colour, style = draw.look(i)
            draw.band(axes, places, low, high, metric, colour)
            marker = draw.MARKERS[i % len(draw.MARKERS)]
            draw.line(axes, places, mean, metric, colour, style, method, marker=marker)
        _ticks(axes, values, places, plain=plain)
        draw.legend(figure, axes)
        return figure

    def all(self) -> dict[str, Figure]:
        """File name without its ending -> figure."""
        return {
            "learning_curve": self.learning_curve(),
            "client_curve": self.client_curve(),
            "client_histogram": self.client_histogram(),
            "size_scatter": self.size_scatter(),
            "plane": self.plane(),
            **{f"sensitivity_{name}": self.sensitivity(name) for name in varied(self.tried)},
        }

    def _chosen(self) -> Mapping[str, list[RunView]]:
        return {each.setting.method: list(each.views) for each in self.tried if each.chosen}


_OTHER_UNITS = ("variance", "angle", "kl", "entropy", "jain")


def varied(tried: Sequence[Tried]) -> dict[str, list[Any]]:
    """Hyper-parameter -> its values, sorted, where some method has several."""
    found: dict[str, list[Any]] = {}
    for method in _methods(tried):
        of = [each.setting.numbers for each in tried if each.setting.method == method]
        for name in dict.fromkeys(name for numbers in of for name in numbers):
            values = {shown(numbers[name]): numbers[name] for numbers in of if name in numbers}
            if len(values) > 1:
                both = {shown(value): value for value in found.get(name, [])} | values
                found[name] = list(both.values())
    return {name: _sorted(values) for name, values in found.items()}


def _sorted(values: list[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:  # such as numbers beside None
        return values


def _methods(tried: Sequence[Tried]) -> list[str]:
    return list(dict.fromkeys(each.setting.method for each in tried))


def _best(tried: Sequence[Tried], method: str, name: str, value: Any, key: str, sign: int) -> Tried | None:
    of = [
        each
        for each in tried
        if each.setting.method == method
        and name in each.setting.numbers
        and shown(each.setting.numbers[name]) == shown(value)
        and np.isfinite(each.mean(key))
    ]
    return max(of, key=lambda each: sign * each.mean(key), default=None)


def _ticks(axes: Axes, values: Sequence[Any], places: NDArray, *, plain: bool) -> None:
    """A tick at each value that was tried; a logarithmic axis where they span more than a decade."""
    if plain and places.min() > 0 and places.max() / places.min() >= 10:
        axes.set_xscale("log")
    axes.set_xticks(places, [shown(value) for value in values])
    axes.minorticks_off()
