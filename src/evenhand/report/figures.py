"""Figures of runs, as free-standing matplotlib figures: no global state, no window.

Each function takes ``runs``:

* a run: a :class:`~evenhand.simulation.Run`, or the :class:`~evenhand.report.RunView` of one;
* several: ``[first, second]``;
* several by name: ``{"fedavg": first, "fedprox": second}``; a method of many seeds has a list of runs,
  ``{"fedavg": [seed0, seed1], ...}``, and is drawn as its mean with a band from the lowest seed to the highest.

Up to three methods share one pair of axes, and each line is labelled where it ends; four or more get a panel each, in
which the others are grey.  ``panels=False`` draws any number on shared axes, ``panels=True`` each in its panel.
``colors`` gives methods colours by their names, such as ``{"fedavg": "black"}``, so that the figures of a paper agree;
the others have those of their positions.

``metric`` is ``"accuracy"``, ``"loss"`` or another that the model measures (None: the accuracy if all runs have one,
else the loss), ``split`` is ``"train"``, ``"valid"`` or ``"test"`` (None: test if there are test examples); an
:class:`~evenhand.EvenhandError` says if no run has that metric on that split.

Each returns a ``matplotlib.figure.Figure``: call ``figure.savefig("curve.pdf")``, or make it the last line of a
notebook's cell.  matplotlib is loaded by the first call, not by the import.

Example:
  >>> import evenhand as eh
  >>> data, model = eh.testing.toy_data(), eh.testing.toy_model()
  >>> method = eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1, batch_size=4))
  >>> runs = [eh.simulate(method, data, rounds=2, seed=seed) for seed in (0, 1)]
  >>> figure = eh.report.figures.learning_curve({"fedavg": runs})
  >>> figure.axes[0].get_xlabel()
  'round'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from evenhand.errors import Argument, EvenhandError
from evenhand.evaluation import SPLITS, of_global
from evenhand.report._comparison import Comparison, compare
from evenhand.report._view import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from evenhand.report import draw

__all__ = [
    "availability_scatter",
    "client_curve",
    "client_histogram",
    "fit",
    "has_curve",
    "has_recorded",
    "learning_curve",
    "metric_against",
    "personal_scatter",
    "series",
    "size_scatter",
]


Colors: TypeAlias = Mapping[str, str] | None
"""Method -> its colour, as matplotlib knows it."""


def learning_curve(
    runs: Runs,
    *,
    metric: str | None = None,
    split: str | None = None,
    panels: bool | None = None,
    colors: Colors = None,
) -> Figure:
    """A metric against the round: its mean over clients, as in reports.

    One run: a line per split, with a band from the worst to the best tenth of the clients of ``split``.  Several
    methods: a line each on ``split``, and a dashed one for the worst tenth of its clients.  Where the mean over clients
    was not recorded (for all metrics but the first, and by earlier versions), the mean over examples is drawn instead.

    Args:
      runs: see :mod:`evenhand.report.figures`, as for the other arguments.
      metric: what to draw.
      split: the split to measure it on.
      panels: see :mod:`evenhand.report.figures`, as for ``colors``.
      colors: method -> its colour.

    Raises:
      EvenhandError: no run has that metric on that split, or none has recorded it by round (:func:`has_curve`).

    Example:
      >>> import evenhand as eh
      >>> method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
      >>> run = eh.simulate(method, eh.testing.toy_data(), rounds=2)
      >>> eh.report.figures.learning_curve(run, metric="loss", split="train").axes[0].get_ylabel()
      'loss'
    """
    subject = _course("learning_curve", runs, metric, split)
    return _plots().learning_curve(subject, _looks(panels, colors))


def metric_against(
    runs: Runs,
    x: str = "bytes",
    *,
    metric: str | None = None,
    split: str | None = None,
    panels: bool | None = None,
    colors: Colors = None,
) -> Figure:
    """A metric against what the run has spent so far, such as bytes: the mean over clients, dashed the worst tenth.

    Methods that spend less for the same metric are further left.  Several seeds: the means of both at each evaluation.
    Where one method spends many times what another does, the axis is logarithmic, without the initial model.

    Args:
      runs: see :mod:`evenhand.report.figures`, as for ``metric`` and ``split``.
      x: ``"bytes"``, received and sent by all clients together, ``"bytes_down"`` or ``"bytes_up"``; ``"time"``, where
        it is simulated (:func:`evenhand.systems.speeds`); or a name in the ``history`` of all runs whose numbers only
        grow.
      metric: what to draw.
      split: the split to measure it on.
      panels: see :mod:`evenhand.report.figures`, as for ``colors``.
      colors: method -> its colour.

    Raises:
      EvenhandError: no run has that metric on that split, or none has recorded it by round (:func:`has_curve`), or some
        run has not recorded ``x``.

    Example:
      >>> import evenhand as eh
      >>> method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
      >>> run = eh.simulate(method, eh.testing.toy_data(), rounds=2)
      >>> eh.report.figures.metric_against(run, "bytes_up").axes[0].get_xlabel()
      'sent by clients (bytes)'
    """
    subject, plots = _course("metric_against", runs, metric, split), _plots()
    amount = plots.amount_of(x)
    if any(amount.of(run) is None for run in subject.runs):
        metrics = ("round", *(f"{name}_" for name in SPLITS))
        names = [name for name in subject.runs[0].history if not name.startswith(metrics)]
        choices = [
            name
            for name in dict.fromkeys([*plots.AMOUNTS, *names])
            if all(plots.amount_of(name).of(run) is not None for run in subject.runs)
        ]
        raise EvenhandError(f"metric_against({x!r}): some run has not recorded it: choose one of {choices}.")
    return plots.metric_against(subject, amount, _looks(panels, colors))


def has_recorded(runs: Runs, x: str) -> bool:
    """Whether all runs have recorded ``x`` of :func:`metric_against`, and some have spent any of it.

    Args:
      runs: see :mod:`evenhand.report.figures`.
      x: as for :func:`metric_against`.

    Example:
      >>> import evenhand as eh
      >>> method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
      >>> run = eh.simulate(method, eh.testing.toy_data(), rounds=2)
      >>> has_recorded(run, "bytes"), has_recorded(run, "joules")
      (True, False)
    """
    plots = _plots()
    return plots.has_amount(compare(runs), plots.amount_of(x))


def has_curve(runs: Runs, *, metric: str | None = None, split: str | None = None) -> bool:
    """Whether some run has recorded a metric by round, as :func:`learning_curve` and :func:`metric_against` need.

    Metrics of a set of examples, such as the AUC, are measured after the last round only.

    Args:
      runs: see :mod:`evenhand.report.figures`, as for the other arguments.
      metric: what to draw.
      split: the split to measure it on.

    Raises:
      EvenhandError: no run has that split.

    Example:
      >>> import evenhand as eh
      >>> method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
      >>> run = eh.simulate(method, eh.testing.toy_data(), rounds=2, metrics=("macro_f1",))
      >>> has_curve(run), has_curve(run, metric="macro_f1")
      (True, False)
    """
    subject = _subject(runs, None, split)
    return _plots().is_by_round(subject._replace(metric=subject.metric if metric is None else metric))


def client_histogram(
    runs: Runs,
    *,
    metric: str | None = None,
    split: str | None = None,
    colors: Colors = None,
) -> Figure:
    """How many clients get how much of a metric; a panel per method, on the same axes.

    A line marks the mean over clients, a dotted one that of the worst tenth.  Several seeds: mean counts.  Bins of a
    share are no narrower than one of the examples of a typical client (the median).

    Arguments and errors: see :mod:`evenhand.report.figures`.

    Example:
      >>> import evenhand as eh
      >>> method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
      >>> run = eh.simulate(method, eh.testing.toy_data(), rounds=2)
      >>> len(eh.report.figures.client_histogram({"first": run, "second": run}).axes)
      2
    """
    return _plots().client_histogram(_subject(runs, metric, split), _looks(None, colors))


def client_curve(
    runs: Runs,
    *,
    metric: str | None = None,
    split: str | None = None,
    panels: bool | None = None,
    colors: Colors = None,
) -> Figure:
    """Every client of every method, worst served first; the worst tenth is shaded.

    Several seeds: the mean and the range of the worst client of each seed, of the second worst, and so on.

    Arguments and errors: see :mod:`evenhand.report.figures`.

    Example:
      >>> import evenhand as eh
      >>> method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
      >>> run = eh.simulate(method, eh.testing.toy_data(), rounds=2)
      >>> eh.report.figures.client_curve(run).axes[0].get_xlabel()
      'clients, worst served first (%)'
    """
    return _plots().client_curve(_subject(runs, metric, split), _looks(panels, colors))


def size_scatter(
    runs: Runs,
    *,
    metric: str | None = None,
    split: str | None = None,
    colors: Colors = None,
) -> Figure:
    """A metric of each client against its number of training examples; for many clients also the median by size.

    Several seeds: a client's mean over the seeds if these have the same clients, else a mark for each.

    Arguments and errors: see :mod:`evenhand.report.figures`.

    Example:
      >>> import evenhand as eh
      >>> method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
      >>> run = eh.simulate(method, eh.testing.toy_data(), rounds=2)
      >>> eh.report.figures.size_scatter(run).axes[0].get_xlabel()
      'training examples of the client'
    """
    return _plots().size_scatter(_subject(runs, metric, split), _looks(None, colors))


def personal_scatter(
    runs: Runs,
    *,
    metric: str | None = None,
    split: str | None = None,
    colors: Colors = None,
) -> Figure:
    """A metric of each client: personal model against global model; on the line both are equal.

    Malicious clients are left out, and clients unseen in training are hollow marks.  Several seeds: a mark for each.

    Args:
      runs: see :mod:`evenhand.report.figures`, as for the other arguments; of methods with personal models.
      metric: what to draw.
      split: the split to measure it on.
      colors: method -> its colour.

    Raises:
      EvenhandError: no run has that metric on that split, or the clients of some run have no personal models.

    Example:
      >>> import evenhand as eh
      >>> work = eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4)
      >>> method = eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=1.0)
      >>> run = eh.simulate(method, eh.testing.toy_data(), rounds=2)
      >>> eh.report.figures.personal_scatter(run, metric="loss").axes[0].get_xlabel()
      'test loss of the global model'
    """
    subject = _subject(runs, metric, split)
    for method in subject.methods:
        if not all(of_global(subject.metric) in run.clients.get(subject.split, {}) for run in method.runs):
            raise EvenhandError(
                f"{method.name}: its clients have no personal models to compare with the global model: give runs of "
                "methods from eh.personalization."
            )
    return _plots().personal_scatter(subject, _looks(None, colors))


def availability_scatter(
    runs: Runs,
    *,
    metric: str | None = None,
    split: str | None = None,
    colors: Colors = None,
) -> Figure:
    """A metric of each client against the share of rounds in which it was available.

    Several seeds: a client's means over the seeds if these have the same clients, else a mark for each.

    Args:
      runs: see :mod:`evenhand.report.figures`, as for the other arguments; under systems that limit availability.
      metric: what to draw.
      split: the split to measure it on.
      colors: method -> its colour.

    Raises:
      EvenhandError: no run has that metric on that split, or all clients of some run were always available.

    Example:
      >>> import evenhand as eh
      >>> method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
      >>> run = eh.simulate(method, eh.testing.toy_data(), rounds=2, systems=eh.systems.diurnal(2, 2))
      >>> eh.report.figures.availability_scatter(run).axes[0].get_xlabel()
      'rounds in which the client was available (%)'
    """
    subject = _subject(runs, metric, split)
    for method in subject.methods:
        if any(run.availability is None for run in method.runs):
            raise EvenhandError(
                f"{method.name}: all clients were always available: give runs with systems such as "
                "eh.systems.diurnal(24, 4)."
            )
    return _plots().availability_scatter(subject, _looks(None, colors))


def series(runs: Runs, key: str, *, panels: bool | None = None, colors: Colors = None) -> Figure:
    """Any recorded number against the round.

    Args:
      runs: see :mod:`evenhand.report.figures`.
      key: a name in the ``history`` of some run.
      panels: see :mod:`evenhand.report.figures`, as for ``colors``.
      colors: method -> its colour.

    Raises:
      EvenhandError: no run has recorded it.

    Example:
      >>> import evenhand as eh
      >>> method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
      >>> run = eh.simulate(method, eh.testing.toy_data(), rounds=2)
      >>> eh.report.figures.series(run, "update_norm").axes[0].get_ylabel()
      'update norm'
    """
    subject = compare(runs)
    recorded = list(dict.fromkeys(name for run in subject.runs for name in run.history if name != "round"))
    if key not in recorded:
        raise EvenhandError(f"No run has recorded {key!r}: choose one of {recorded}.")
    return _plots().series(subject, key, _looks(panels, colors))


_NARROWEST, _WIDEST = 1.0, 20.0


def fit(figure: Figure, width: float) -> None:
    """Makes a figure so many inches wide, in proportion; letters keep their size, so that legends take more rows.

    Args:
      figure: one of this module or of :attr:`evenhand.studies.Study.figures`, which is changed.
      width: from 1 to 20 inches; 3.3 fits a column of most papers, 6.8 a page.

    Raises:
      EvenhandError: another width.

    Example:
      >>> import evenhand as eh
      >>> method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
      >>> figure = eh.report.figures.learning_curve(eh.simulate(method, eh.testing.toy_data(), rounds=2))
      >>> eh.report.figures.fit(figure, 3.3)
      >>> round(float(figure.get_figwidth()), 2)
      3.3
    """
    if not _NARROWEST <= width <= _WIDEST:
        inches = f"give inches, from {_NARROWEST:g} to {_WIDEST:g}"
        raise EvenhandError(Argument("width", f"{width:g}"), f": {inches}.")
    from evenhand.report import draw  # it loads matplotlib, which takes long

    draw.fit(figure, width)


def _looks(panels: bool | None, colors: Colors) -> draw.Looks:
    from evenhand.report import draw  # it loads matplotlib, which takes long

    return draw.looks(panels, colors)


def _plots():
    """The module that draws, which loads matplotlib."""
    from evenhand.report import _plots as plots

    return plots


def _course(caller: str, runs: Runs, metric: str | None, split: str | None) -> Comparison:
    """The comparison that a figure by round shows, by a metric that some run has recorded by round."""
    subject = _subject(runs, None, split)
    subject = subject._replace(metric=subject.metric if metric is None else metric)
    if not _plots().is_by_round(subject):
        subject = _subject(runs, metric, split)  # which knows whether the runs have such a metric at all
        raise EvenhandError(
            f"{caller}(): no run has recorded the {subject.quantity} by round, since it is measured after the last "
            'one: draw another metric, such as metric="loss".'
        )
    return subject


def _subject(runs: Runs, metric: str | None, split: str | None) -> Comparison:
    """The comparison that a figure shows, by a metric and on a split that some run has."""
    subject = compare(runs)
    if split is not None:
        splits = [name for name in SPLITS if any(name in run.clients for run in subject.runs)]
        if split not in splits:
            raise EvenhandError(f"No run has a split {split!r}: choose one of {splits}.")
        subject = subject._replace(split=split)
    if metric is not None:
        names = list(dict.fromkeys(x for run in subject.runs for x in run.clients.get(subject.split, {})))
        if metric not in names:
            place = f"on its {subject.split} split"
            raise EvenhandError(f"No run has a metric {metric!r} {place}: choose one of {names}.")
        subject = subject._replace(metric=metric)
    return subject
