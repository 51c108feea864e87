"""What a run has measured, whether it has just been trained or was read from its folder."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from evenhand import evaluation
from evenhand._platform import check_process
from evenhand.data import Features, FederatedDataset, Form
from evenhand.data.loaders import new_rows, table_like
from evenhand.errors import EvenhandError, perhaps
from evenhand.evaluation import (
    ClassMetrics,
    Finding,
    Metric,
    class_spread,
    is_higher_better,
    of_global,
    primary_metric,
    private_metrics,
    summarize,
)
from evenhand.privacy import Account
from evenhand.report import PrivateSummary, RunView, Summary, covered, honest, run_html
from evenhand.text import counted
from evenhand.types import Model, Params, PyTree

__all__ = ["Applied", "Facts", "Predicted", "Results", "Training", "Who", "may_be_undefined", "split_sizes"]

NDArray = npt.NDArray[Any]
Who: TypeAlias = Literal["all", "honest", "malicious"]
_SHOWN = 24
"""Numbers of the latest evaluation that fit on a screen."""
_COMPARED = 20_000
"""Most ids that an unknown one is compared with."""


class Facts(NamedTuple):
    """What results need to know about the method and its data.

    Attributes:
      method: its name.
      data: the name of the data set.
      client_ids: of all clients.
      sizes: split -> rows of each client, ``(num_clients,)``.
      undefined: metric of a set of examples that was measured -> which clients have none.
    """

    method: str
    data: str
    client_ids: tuple[str, ...]
    sizes: Mapping[str, NDArray]
    undefined: Mapping[str, str]


class Training(NamedTuple):
    """What a run that serves other clients states about the training.

    Attributes:
      clients: how many trained.
      privacy: what that has spent; None: it guarantees nothing.
    """

    clients: int
    privacy: Account | None


class Applied(NamedTuple):
    """What is applied to new rows.

    Attributes:
      model: what clients are served.
      params: the global parameters; of several levels, those of each.
      form: of the data that the model was trained on.
      features: how the columns of a table become inputs; None: the model was trained on arrays.
      client_column: what a client is in the table, such as ``"region / group"`` for two columns; empty: unknown.
    """

    model: Model
    params: Params
    form: Form
    features: Features | None
    client_column: str

    @property
    def gives(self) -> Literal["logits", "margin", "value"]:
        """What the model's outputs are: a logit for each class, the margin of the second of two, or a value."""
        if self.form.classes is None:
            return "value"
        return "margin" if self.model.name.startswith("svm(") else "logits"

    def columns(self, scores: NDArray) -> dict[str, NDArray]:
        """What is predicted from the model's ``scores``, ``(rows, outputs)``, and the scores as numbers to read."""
        count = scores.shape[1]
        if self.gives == "value":
            names = ["prediction"] if count == 1 else [f"prediction_{j + 1}" for j in range(count)]
            return {name: scores[:, j] for j, name in enumerate(names)}
        names = self.form.names or ()
        classes = [names[k] if k < len(names) else str(k) for k in range(max(2, count))]
        if self.gives == "margin":
            # A margin is no logarithm of odds, so it gives no probability.
            chosen = np.where(np.isnan(scores[:, 0]), -1, scores[:, 0] > 0)
            others = {"score": scores[:, 0]}
        else:
            shifted = scores.astype(np.float64) - scores.max(axis=1, keepdims=True)
            shares = np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
            chosen = np.where(np.isnan(scores).any(axis=1), -1, scores.argmax(axis=1))
            others = {f"probability_{name}": shares[:, k] for k, name in enumerate(classes)}
        return {"prediction": np.array([*classes, ""])[chosen] if names else chosen, **others}


class Predicted(NamedTuple):
    """What the models of a run make of rows.

    Attributes:
      scores: logits, margins or values, ``(rows, outputs)``.
      is_personal: whether the row's client has a personal model, or a level that it was served, ``(rows,)``.
      models: which model gave the scores, ``(rows,)``: ``"personal"``, ``"global"``, or the name of a level.
    """

    scores: NDArray
    is_personal: NDArray
    models: NDArray


class _Part(NamedTuple):
    """Rows that one model predicts: their positions, its parameters, what it is called, and for whom it is personal."""

    rows: NDArray
    params: Params
    name: str
    is_personal: NDArray | bool


class Results(ABC):
    """The measurements of a run; for the attributes see :class:`evenhand.simulation.Run`."""

    history: Mapping[str, NDArray]
    per_round: Mapping[str, NDArray]
    info: Mapping[str, Any]
    clients: Mapping[str, Mapping[str, NDArray]]
    classes: Mapping[str, ClassMetrics]
    evaluated: NDArray | None
    malicious: NDArray
    last_round: NDArray
    level: NDArray | None
    availability: NDArray

    @property
    @abstractmethod
    def facts(self) -> Facts:
        """What is known about the method and the data."""

    @property
    @abstractmethod
    def findings(self) -> tuple[Finding, ...]:
        """What a reader must know before believing the numbers, the worst first."""

    @abstractmethod
    def view(self, title: str = "run") -> RunView:
        """What reports and figures show."""

    @abstractmethod
    def applied(self) -> Applied:
        """What is applied to new rows.

        Raises:
          EvenhandError: the model is not known.
        """

    @abstractmethod
    def _personal_models(self, clients: Collection[str]) -> tuple[set[str], Iterator[tuple[str, Params]]]:
        """Those of these clients that have personal models, and these models, each with its client."""

    def predict_table(
        self,
        table: Any,
        *,
        client: str | Sequence[str] | None = None,
        encode: Callable[[Any], Any] | None = None,
    ) -> Any:
        """What the run predicts for the rows of a table: each client's personal model if it has one, else the global.

        It is what ``evenhand predict`` writes: columns are encoded as they were for the training, and rows of unknown
        clients, or without a client, get the global model.

        Args:
          table: a pandas or polars data frame, a pyarrow table, a Hugging Face data set, or the path of a file that
            :func:`evenhand.data.load` reads.  It needs the columns of features; others are ignored.
          client: the column of clients, or several whose combinations are clients; None: as in the training data.  A
            table without it gets the global model.
          encode: the function that encoded free text for the training, if the run was loaded from a folder, which
            does not hold it.

        Returns:
          Columns, in the order of the rows: ``row`` (from 1), ``client`` where the table has it, ``prediction``,
          ``probability_<class>`` for each class (``score`` for a support vector machine), and ``model``
          (``"personal"``, ``"global"`` or the name of a level).  A data frame of pandas (with the index of the table)
          or polars where ``table`` is one, else a dict of NumPy arrays.  Where a model that diverged predicts nothing,
          ``prediction`` is ``""``, or -1 for classes without names.

        Raises:
          EvenhandError: a column is missing or of another kind, there are no rows, or the model is not known.

        Example:
          >>> import pyarrow, evenhand as eh
          >>> columns = {"client": ["a", "b"] * 20, "age": list(range(40)), "label": ["no"] * 20 + ["yes"] * 20}
          >>> data = eh.data.from_frame(pyarrow.table(columns), features=["age"])
          >>> model = eh.models.softmax_regression(features=1, classes=2)
          >>> work = eh.local.sgd(model, 0.5, epochs=5, batch_size=4)
          >>> run = eh.simulate(eh.personalization.finetune(eh.algorithms.fedavg(work), work), data, rounds=5)
          >>> predicted = run.predict_table(pyarrow.table({"client": ["a", "new"], "age": [5, 35]}))
          >>> predicted["prediction"].tolist(), predicted["model"].tolist()
          (['no', 'yes'], ['personal', 'global'])
        """
        check_process()
        applied, source = self.applied(), str(table) if isinstance(table, str | Path) else "table"
        column = client or applied.client_column or "client"
        rows = new_rows(table, features=applied.features, client=column, label=None, encode=encode)
        x = evaluation.unlabelled(rows.x, applied.form.shape, applied.form.dtype, source)
        if not len(x):
            raise EvenhandError(f"{source} has no rows: give at least one.")
        predicted = self.predicted(x, rows.clients)
        columns = {"row": np.arange(1, len(x) + 1)}
        if rows.clients is not None:
            columns["client"] = rows.clients
        return table_like(table, {**columns, **applied.columns(predicted.scores), "model": predicted.models})

    def predicted(
        self,
        x: NDArray,
        clients: NDArray | None,
        measure: Callable[[PyTree, NDArray], None] = lambda outcome, rows: None,
    ) -> Predicted:
        """Applies each client's model to its rows, and the global one to all others.

        Args:
          x: inputs, ``(rows, ...)``.
          clients: the client of each row, ``""`` for none; None: there are none.
          measure: called with the outputs of each model, and the positions of the rows that they are for.
        """
        applied, count = self.applied(), len(x)
        scores, models = np.zeros((count, 0), np.float32), np.zeros(count, object)
        is_personal = np.zeros(count, bool)
        for part in self._parts([""] * count if clients is None else clients.tolist(), applied.params):
            outcome = evaluation.outputs(applied.model, part.params, x[part.rows])
            # A margin without the penalty that its model has beside it.
            array = np.asarray(outcome.score if applied.gives == "margin" else outcome)
            array = array.reshape(len(array), -1)
            if not scores.shape[1]:
                scores = np.zeros((count, array.shape[1]), array.dtype)
            scores[part.rows], models[part.rows], is_personal[part.rows] = array, part.name, part.is_personal
            measure(outcome, part.rows)
        return Predicted(scores, is_personal, models.astype(str))

    def _parts(self, clients: Sequence[str], shared: Params) -> Iterator[_Part]:
        """The rows of these ``clients`` by the model that predicts them; ``shared`` parameters for all others."""
        if self.level is not None:
            level = dict(zip(self._evaluated_ids(), self.level.tolist(), strict=True))
            places = np.array([level.get(name, 0) for name in clients])
            is_served = np.array([name in level for name in clients])
            for place in np.unique(places):
                rows = np.flatnonzero(places == place)
                yield _Part(rows, shared[place], self.info["levels"][place], is_served[rows])
            return
        rows_of: dict[str, list[int]] = {}
        for row, name in enumerate(clients):
            rows_of.setdefault(name, []).append(row)
        own, personal = self._personal_models(rows_of)
        if others := sorted(row for name, rows in rows_of.items() if name not in own for row in rows):
            yield _Part(np.array(others), shared, "global", False)
        for name, params in personal:
            yield _Part(np.array(rows_of[name]), params, "personal", True)

    def client_metrics(self, split: str = "test") -> dict[str, NDArray]:
        """Loss and metrics of every client, ``(num_clients,)`` each, with the model that it is served.

        Args:
          split: ``"train"``, ``"valid"`` or ``"test"``; NaN for clients without rows in it, for those that were not
            evaluated, and for those of which a metric of :mod:`evenhand.evaluation.metrics` is undefined.
        """
        self._check_split(split)
        metrics = self.clients[split]
        if self.evaluated is None:
            # Copies, for the caller may change them, and reports read the originals.
            return {name: values.copy() for name, values in metrics.items()}
        full = {name: np.full(len(self.facts.client_ids), np.nan) for name in metrics}
        for name, values in metrics.items():
            full[name][self.evaluated] = values
        return full

    def class_metrics(self, split: str = "test") -> ClassMetrics:
        """The accuracy of each class at every client that has rows of it, with the model that the client is served.

        Four arrays of equal length, one entry for each client and class: ``clients`` (positions), ``classes``,
        ``counts`` (rows) and ``accuracy``.  There are no entries for classes of which a client has no rows, nor for
        clients that have no rows or were not evaluated.

        Args:
          split: ``"train"``, ``"valid"`` or ``"test"``.

        Raises:
          EvenhandError: there is no such split, or its rows have no class whose accuracy the model measures.
        """
        self._check_split(split)
        if split not in self.classes:
            raise EvenhandError(
                f"The {split} rows of {self.facts.data!r} have no accuracy by class: that needs labels that are one "
                'class number per row, and a model with the metric "accuracy".'
            )
        cells = self.classes[split]
        clients = cells.clients if self.evaluated is None else self.evaluated[cells.clients]
        return ClassMetrics(clients.copy(), *(part.copy() for part in cells[1:]))

    def summary(self, split: str = "test", metric: str | None = None, *, who: Who = "all") -> Summary:
        r"""How high and how even a metric is over the clients; see :func:`evenhand.evaluation.summarize`.

        For the accuracy of a model of classes also how evenly the classes within each client are served, see
        :func:`evenhand.evaluation.summarize_classes`: ``"class_spread"`` (:math:`\mu_\sigma`), ``"class_spread_std"``
        (:math:`\sigma_\sigma`) and ``"worst_class"``, the lowest accuracy of any class at any client.

        The result is a dict, which a notebook shows as a table.

        Args:
          split: as in :meth:`client_metrics`.
          metric: a name from there; None: ``"accuracy"`` if the model has it, else ``"loss"``.  Clients for which a
            metric of :mod:`evenhand.evaluation.metrics` is undefined do not count.
          who: ``"all"`` evaluated clients, malicious ones included; the ``"honest"`` ones, whom reports and
            :attr:`history` are about; or the ``"malicious"`` ones.

        Raises:
          EvenhandError: there is no such split, metric or client.
        """
        name, values, sizes = self._measured(split, metric)
        chosen = self._among(who)
        statistics = summarize(values[chosen], sizes[chosen], higher_is_better=is_higher_better(name))
        if name == "accuracy" and (columns := self._by_class(split)) is not None:
            statistics |= evaluation.summarize_classes({key: x[chosen] for key, x in columns.items()})
        return Summary(statistics, name, split, self._covered(split, who, name))

    def private_summary(
        self,
        split: str = "test",
        metric: str | None = None,
        *,
        bins: int = private_metrics.BINS,
        largest: float | None = None,
        least: int = private_metrics.LEAST,
    ) -> PrivateSummary:
        """What a server learns of a metric that sees no client's number: each statistic with its error bound.

        Clients count themselves in a histogram under a secure sum (:mod:`evenhand.evaluation.private_metrics`), masks
        included.  A server cannot know who is malicious, so all evaluated clients with examples are in it.  The exact
        statistics, which a simulation knows, are in the attribute ``exact`` and beside the others in a notebook.

        Args:
          split: as in :meth:`client_metrics`.
          metric: as in :meth:`summary`.
          bins: as in :func:`evenhand.evaluation.private_metrics.edges`; the bounds are at most half a bin.
          largest: likewise, in the metric's units; None: 1, for metrics that are shares, such as accuracies.
          least: clients with a value; fewer are refused.

        Raises:
          EvenhandError: there is no such split or metric, or too few clients have a value; the metric is no share and
            has no ``largest``, or an argument is out of range.

        Example:
          >>> import evenhand as eh
          >>> data = eh.data.load("digits", clients=30, alpha=0.3)
          >>> work = eh.local.sgd(eh.models.softmax_regression(64, classes=10), 0.1, epochs=1, batch_size=10)
          >>> run = eh.simulate(eh.algorithms.fedavg(work), data, rounds=2)
          >>> private = run.private_summary()
          >>> private["worst10"].low <= run.summary()["worst10"] <= private["worst10"].high
          True
        """
        name, values, sizes = self._measured(split, metric)
        if largest is None and not evaluation.is_share(name):
            raise EvenhandError(
                f"private_summary(metric={name!r}) needs largest=: a public bound, chosen without looking at the "
                "clients, to which larger values are clipped."
            )
        largest, is_higher = 1.0 if largest is None else float(largest), is_higher_better(name)
        estimates = private_metrics.summarize(
            values, sizes, bins=bins, largest=largest, higher_is_better=is_higher, least=least
        )
        return PrivateSummary(
            estimates,
            metric=name,
            split=split,
            clients=self._covered(split, "all", name),
            bins=bins,
            largest=largest,
            exact=summarize(values, sizes, higher_is_better=is_higher),
        )

    def _measured(self, split: str, metric: str | None) -> tuple[str, NDArray, NDArray]:
        """A metric's name, its value at each evaluated client, and the rows that it is of; 0 where it is undefined."""
        self._check_split(split)
        values = self.clients[split]
        name = primary_metric(values) if metric is None else metric
        if name not in values:
            cure = f', or run it with metrics=("{name}",)' if name in evaluation.metrics.BUILT_IN else ""
            raise EvenhandError(f"The run has no metric {name!r}: choose one of {sorted(values)}{cure}.")
        sizes = self._sizes[split]
        if name in self.facts.undefined:
            # Clients of size 0 are left out of statistics, like those without rows in the split.
            sizes = np.where(evaluation.undefined(values, name), 0, sizes)
        return name, values[name], sizes

    def _covered(self, split: str, group: Who, metric: str) -> str:
        """Which clients a summary covers, in words."""
        ids, sizes = self._evaluated_ids(), self._sizes
        if group == "malicious":
            return counted(int(np.sum(sizes[split][self._among(group)] > 0)), "malicious client")
        info = {"clients": len(self.facts.client_ids), "metrics": self.facts.undefined}
        view = RunView(
            title="", history={}, sizes=sizes, client_ids=ids, clients=self.clients, info=info, config={}
        )
        if group == "honest" and self.malicious.any():
            view = honest(view._replace(malicious=~self._among(group)))
        words = covered([view], split, metric).text
        return f"{words}, malicious ones included" if group == "all" and self.malicious.any() else words

    def _by_class(self, split: str) -> Mapping[str, NDArray] | None:
        """How evenly the classes within each evaluated client are served; None where there are no classes."""
        return class_spread(self.classes[split], len(self._sizes[split])) if split in self.classes else None

    def _evaluated_of(self, values: NDArray) -> NDArray:
        """Of values of all clients, those of the evaluated ones."""
        return values if self.evaluated is None else values[self.evaluated]

    @property
    def _sizes(self) -> dict[str, NDArray]:
        """Rows of each evaluated client, of each split."""
        return {split: self._evaluated_of(rows) for split, rows in self.facts.sizes.items()}

    @property
    def _positions(self) -> NDArray:
        """Where each evaluated client is among all clients."""
        return self._evaluated_of(np.arange(len(self.facts.client_ids)))

    def _evaluated_ids(self) -> tuple[str, ...]:
        ids = self.facts.client_ids
        return ids if self.evaluated is None else tuple(ids[k] for k in self.evaluated)

    def _among(self, group: Who) -> NDArray:
        """Which of the evaluated clients these are."""
        malicious = self._evaluated_of(self.malicious)
        if group not in get_args(Who):
            raise EvenhandError(f"summary(who={group!r}): give 'all', 'honest' or 'malicious'.")
        chosen = {"all": np.ones(len(malicious), bool), "honest": ~malicious, "malicious": malicious}[group]
        if not chosen.any():
            raise EvenhandError(f"summary(who={group!r}): none of the evaluated clients is {group}.")
        return chosen

    def _level_of(self, k: int) -> int:
        """The position of the level that a client is served; one that was not evaluated has chosen none."""
        assert self.level is not None
        places = np.flatnonzero(self._positions == k)
        if not places.size:
            name = self.facts.client_ids[k]
            raise EvenhandError(
                f"Client {name!r:.60} was not evaluated (eval_clients=), so no level was chosen for it: name a client "
                "that was."
            )
        return int(self.level[places[0]])

    def _check_position(self, k: object) -> None:
        ids = self.facts.client_ids
        try:
            place = operator.index(k)  # pyright: ignore[reportArgumentType]  (the point is to try)
        except TypeError:
            is_id = isinstance(k, str) and k in ids
            here = f"{ids.index(k)}, not its id" if is_id else f"from 0 to {len(ids) - 1}"
            fault = f"personal_params({k!r:.60}): give the position of the client, {here}."
            raise EvenhandError(fault) from None
        if not 0 <= place < len(ids):
            raise EvenhandError(f"There is no client {place}: positions run from 0 to {len(ids) - 1}.")

    def _position(self, client: str, ids_in_words: str) -> int:
        """The position of the client with this id."""
        ids = self.facts.client_ids
        if client not in ids:
            raise EvenhandError(
                f"{self.facts.data}: there is no client {client!r:.60}{perhaps(client, ids[:_COMPARED])}: "
                f"give an id of {ids_in_words}, or None for the global model."
            )
        return ids.index(client)

    def _check_split(self, split: str) -> None:
        if split not in self.clients:
            raise EvenhandError(f"There is no split {split!r} here: choose one of {sorted(self.clients)}.")

    def __repr__(self) -> str:
        final = {name: float(values[-1]) for name, values in self.history.items()}
        shown = [f"{name}={value:.4g}" for name, value in final.items() if not np.isnan(value)]
        more = [f"and {len(shown) - _SHOWN} more"] if len(shown) > _SHOWN else []
        numbers = ", ".join([self._title(), *shown[:_SHOWN], *more])
        return "\n".join([f"Run({numbers})", *(f"  {finding.sentence}" for finding in self.findings)])

    def _repr_html_(self) -> str:
        return run_html(self.view(self._title()))

    def _title(self) -> str:
        # Where every client is malicious, headlines are about all of them.
        over = ", over the honest clients" if 0 < self.malicious.sum() < len(self.facts.client_ids) else ""
        return f"{self.facts.method} on {self.facts.data}{over}"


def split_sizes(data: FederatedDataset) -> dict[str, NDArray]:
    """Rows per client of each split."""
    return {"train": data.train.sizes, "valid": data.valid.sizes, "test": data.test.sizes}


def may_be_undefined(
    metrics: Iterable[Metric], clients: Mapping[str, Mapping[str, NDArray]]
) -> dict[str, str]:
    """Metric of a set of examples that was measured at ``clients`` -> which clients have none."""
    measured = {name for values in clients.values() for name in values}
    return {
        name: metric.undefined
        for metric in metrics
        for name in (metric.name, of_global(metric.name))
        if name in measured
    }
