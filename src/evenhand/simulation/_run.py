"""The result of a simulation, and how it serves clients that took no part in the training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand._platform import check_process
from evenhand.data import FederatedDataset, Form
from evenhand.errors import EvenhandError, perhaps
from evenhand.evaluation import (
    Baseline,
    ClassMetrics,
    Finding,
    Metric,
    baseline,
    blank_loss,
    by_class,
    class_spread,
    diverged_clients,
    feature_scales,
    findings,
    no_guarantee,
    of_global,
    outputs,
    primary_metric,
    unlabelled,
    unmeasured,
    untrained_clients,
)
from evenhand.privacy import Account, account
from evenhand.report import RunView, write_report
from evenhand.rounds import RoundState, roots
from evenhand.simulation._evaluation import Evaluation, Served, has_own, honest_among, served_models
from evenhand.simulation._job import Execution, Job, Untrained, check_model
from evenhand.simulation.results import Facts, Results
from evenhand.simulation.saving import save
from evenhand.simulation.setup import set_up
from evenhand.simulation.store import Kept, stored
from evenhand.streams import keys_of
from evenhand.types import Algorithm, Params, PyTree

NDArray = npt.NDArray[Any]
_ONE_BY_ONE = Execution(lanes=1, devices=1, offload=False)
"""How new clients are served: no cohort of them trains."""
_COMPARED = 20_000
"""Most ids that an unknown one is compared with."""


@dataclass(frozen=True, repr=False)
class Run(Results):
    """A simulation up to its latest evaluation.

    Attributes:
      algorithm: the method.
      data: the clients.
      seed: the run's seed.
      history: equal-length arrays, one entry per evaluation: ``"round"``; ``"<split>_<metric>"``, the mean over all
        rows of the split, each client with the model it is served; under an attack, over the honest clients only, as
        in every headline (over all where each evaluated client is malicious); ``"test_<metric>_mean"``,
        ``"_worst10"``, ``"_best10"`` and ``"_variance"`` over clients for the primary metric; ``"test_class_spread"``
        and ``"test_worst_class"``, as in :meth:`summary`; and what the method reports about its latest round, NaN
        before the first one.
      per_round: what the method reports about each round, ``(rounds,)`` each, e.g. ``"update_norm"``; where weights
        depend on losses, also ``"effective_cohort"``, the number of equally weighted clients that would count as much.
      info: ``"rounds"`` done; ``"cohort"``; ``"lanes"`` and ``"devices"``; ``"floats"``, how many numbers a client gets
        (``"down"``) and sends (``"up"``) in a round that it takes part in; ``"restarts"``, whether a schedule of the
        clients' step sizes restarts in every round; ``"seconds"`` per activity, waiting for
        streamed rows (``"data"``) among them; local ``"steps"``, ``"useful"`` and ``"executed"`` (a lane runs until the
        longest client of its group is done), and ``"padded"``, the share that is not useful; ``"examples"`` trained on,
        and ``"examples_per_second"`` of training.
      kept: what the next round would start from; see :attr:`state`.
      clients: split -> metric -> a number for each evaluated client; where clients have models of their own, also
        ``"global_<metric>"``, what the global model would give them.
      evaluated: the positions of the evaluated clients, ascending; None: all.
      classes: split -> the accuracy of each class at each evaluated client, numbered among the evaluated clients;
        :meth:`class_metrics` numbers them among all clients.
      malicious: which clients are, bool ``(num_clients,)``.
      metrics: what was asked for with ``metrics=``; it is in ``clients`` after the last round only.
      last_round: the last round, counted from 1, in which each client trained, int64 ``(num_clients,)``; 0: it never
        did.  A client trains in a round if it is drawn and its upload is accepted; one that drops out, or whose work is
        discarded or rejected, does not.
      untrained: what clients that never trained are served where clients have models of their own, as in
        :func:`evenhand.simulate`.
      initial_loss: the training loss of each evaluated client with the initial model; empty where all clients are
        served the global model.
    """

    algorithm: Algorithm
    data: FederatedDataset
    seed: int
    history: Mapping[str, NDArray]
    per_round: Mapping[str, NDArray]
    info: Mapping[str, Any]
    kept: Kept
    clients: Mapping[str, Mapping[str, NDArray]]
    evaluated: NDArray | None = None
    classes: Mapping[str, ClassMetrics] = field(default_factory=dict[str, ClassMetrics])
    malicious: NDArray = field(default_factory=lambda: np.zeros(0, bool))
    metrics: tuple[Metric, ...] = ()
    last_round: NDArray = field(default_factory=lambda: np.zeros(0, np.int64))
    untrained: Untrained = "global"
    initial_loss: NDArray = field(default_factory=lambda: np.zeros(0))

    @property
    def params(self) -> Params:
        """The global parameters."""
        return self.algorithm.global_params(self.kept.server)

    @property
    def state(self) -> RoundState:
        """What the next round would start from: the states of server, aggregators and, in a copy, clients."""
        return self.kept.state

    def keep(self) -> None:
        """Copies the clients' states, so that :func:`evenhand.simulation.iterate` may continue in their memory.

        Only states of more than 64 MB, and those that ``offload`` keeps on the host, need it.

        Raises:
          EvenhandError: the run has released its clients' states, or has trained on since.
        """
        self.kept.keep()

    def release(self) -> None:
        """Gives up the clients' states, so that :func:`evenhand.simulation.iterate` need not copy them to train on.

        Metrics and global parameters remain; :attr:`state` and the personal models do not.
        """
        self.kept.release()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What a reader must know before believing the numbers, the worst first: training diverged, the model never
        moved or only guesses, personal models diverged or never trained, the features are on different scales, or
        clients have no test examples.  Empty where all is well.

        For the rules and their thresholds see :func:`evenhand.evaluation.findings` and
        :func:`evenhand.evaluation.unmeasured`.
        """
        return self._findings

    @cached_property
    def _findings(self) -> tuple[Finding, ...]:
        """It reads all features for their scales."""
        chosen = honest_among(self.malicious, self.evaluated)
        needs = [need for phase in self.algorithm.phases for need in phase.aggregator.needs]
        seen = findings(
            self.history,
            per_round=self.per_round,
            classes={split: cells.among(chosen) for split, cells in self.classes.items()},
            blank=blank_loss(self.data),
            class_names=self.data.classes,
            scales=feature_scales(self.data),
            constant=lambda: self.baseline,
            restarts=self.info.get("restarts", False),
            guarantee=no_guarantee(needs, self._drawn, self.per_round.get("reported")),
            clients=self._of_clients(),
            noun=self._noun,
        )
        return seen if (missing := self._unmeasured(chosen)) is None else (*seen, missing)

    def _unmeasured(self, chosen: NDArray, cure: str | None = None) -> Finding | None:
        """The evaluated clients that headlines are about, but leave out."""
        sizes = {split: rows[chosen] for split, rows in split_sizes(self.data, self.evaluated).items()}
        metric = primary_metric(self.clients["train"])
        train = self.clients["train"][metric][chosen]
        return unmeasured(sizes, noun=self._noun, metric=metric, train=train, cure=cure)

    @property
    def _noun(self) -> str:
        """What a client that headlines are about is called."""
        is_attacked = self.malicious.any() and not honest_among(self.malicious, self.evaluated).all()
        return f"{'evaluated ' if self.evaluated is not None else ''}{'honest ' if is_attacked else ''}client"

    @property
    def _constant(self) -> Baseline | None:
        """The best constant, where a run is judged by its loss on real targets."""
        if "accuracy" in self.clients["train"] or self.data.num_classes is not None:
            return None
        return self.baseline

    @property
    def _drawn(self) -> int | None:
        """How many clients a round draws, where that is a fixed number."""
        return None if self.algorithm.sampling.independent else self.info.get("cohort")

    @cached_property
    def baseline(self) -> Baseline | None:
        """The run's loss beside that of the best constant answer, at the evaluated honest clients (at all where none
        is honest); None where no constant is known.  See :func:`evenhand.evaluation.baseline`."""
        evaluated = np.arange(self.data.num_clients) if self.evaluated is None else self.evaluated
        honest = ~self.malicious[evaluated] if len(self.malicious) else np.ones(len(evaluated), bool)
        chosen = honest if honest.any() else ~honest
        clients = {
            split: {metric: values[chosen] for metric, values in metrics.items()}
            for split, metrics in self.clients.items()
        }
        return baseline(self.algorithm.model, self.data, clients, evaluated[chosen])

    def _of_clients(self) -> tuple[Finding | None, ...]:
        """The findings about personal models."""
        adapts, keeps = self.algorithm.adapt is not None, self.algorithm.personal_params is not None
        evaluated = np.arange(self.data.num_clients) if self.evaluated is None else self.evaluated
        # A model that never trained cannot have diverged, and a malicious client may break its own on purpose.
        meant = ~self.malicious[evaluated] & ((self.last_round[evaluated] > 0) | adapts)
        names = [self.data.client_ids[k] for k in evaluated]
        diverged = diverged_clients(self.clients["train"], self.initial_loss, meant, names, self._noun)
        if not keeps:
            return (diverged,)
        untrained = untrained_clients(
            self.last_round,
            self.history,
            initial=self.untrained == "initial",
            adapts=adapts,
            chosen=evaluated[honest_among(self.malicious, self.evaluated)],
            noun=self._noun,
        )
        return diverged, untrained

    @property
    def privacy(self) -> Account | None:
        """What the method has spent of its clients' privacy so far, and what it promises; None: it promises nothing.

        For another probability of a breach, or another accountant, see :func:`evenhand.privacy.account`.
        """
        return self._account

    @cached_property
    def _account(self) -> Account | None:
        """It takes a second to compute."""
        promise = self.algorithm.privacy
        if promise is None:
            return None
        units = self.data.num_clients if promise.unit == "client" else self.data.train.rows
        return account(promise, rounds=self.info["rounds"], units=units)

    def personal_params(self, k: int) -> Params:
        """The parameters that the client at position ``k`` is served, adapted to its rows where the method does that.

        They are the global ones where the method has no personal models, and for a client that never trained, unless
        the run has ``untrained="initial"``.  What such a client has kept since the start is in :attr:`state`.

        For a client by its id, use its position, ``run.data.client_ids.index("north / A")``; to apply its model to new
        examples, see :meth:`predict`.
        """
        if not 0 <= k < self.data.num_clients:
            raise EvenhandError(
                f"There is no client {k}: positions run from 0 to {self.data.num_clients - 1}."
            )
        if not self.has_personal_models:
            return self.params
        (_, params), *_ = self._served(slice(k, k + 1))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), params)

    @property
    def has_personal_models(self) -> bool:
        """Whether clients are served models of their own, kept between rounds or adapted before use."""
        return self.algorithm.personal_params is not None or self.algorithm.adapt is not None

    @property
    def personal_clients(self) -> NDArray:
        """Which clients are served a model of their own, bool ``(num_clients,)``; the others get the global one."""
        if self.algorithm.adapt is not None:
            return np.ones(self.data.num_clients, bool)
        if self.algorithm.personal_params is None:
            return np.zeros(self.data.num_clients, bool)
        return has_own(self.last_round, self.untrained)

    def personal_models(self) -> Iterator[tuple[slice, Params]]:
        """The models that all clients are served, as many at a time as fit in about 128 MB.

        Yields:
          The positions of some clients, and their parameters as NumPy arrays with a leading axis, one entry per client.

        Raises:
          EvenhandError: the run has released its clients' states, or has trained on since.
        """
        return self._served(
            slice(0, self.data.num_clients), lanes=self.info["lanes"], devices=self.info["devices"]
        )

    def _served(self, clients: slice, *, lanes: int = 1, devices: int = 1) -> Iterator[tuple[slice, Params]]:
        """The models that the clients at these positions are served."""
        check_process()
        return served_models(
            self.algorithm,
            self.kept,
            self.data.train,
            clients,
            # The evaluation's root: a private method's is not the seed's own key.
            root=roots(self.algorithm, keys_of(self.seed)).shared,
            last_round=self.last_round,
            untrained=self.untrained,
            lanes=lanes,
            devices=devices,
        )

    def predict(self, x: npt.ArrayLike, client: str | int | None = None) -> Any:
        """The model's raw outputs for new examples: logits of a classifier, values of a regression.

        The examples go through the model in chunks, so ``x`` may be as large as memory allows.  For the columns of a
        table, :func:`evenhand.data.encode_table` makes ``x``; ``evenhand predict`` does both for a run folder.

        Args:
          x: examples of the shape that the model was trained on, ``(rows, ...)``.
          client: a client's id, to use the model that this client is served: its personal model, adapted to its
            training rows where the method does that, or the global one where the method has no other.  None: the global
            model.

        Returns:
          ``(rows, outputs)``, NumPy; a tree of such arrays for a model that has several outputs.

        Raises:
          EvenhandError: there is no such client, or the examples have another shape or numbers that are not finite.

        Example:
          >>> import evenhand as eh
          >>> data = eh.data.load("digits", clients=10)
          >>> work = eh.local.sgd(eh.models.softmax_regression(64, classes=10), 0.1, epochs=1, batch_size=10)
          >>> run = eh.simulate(eh.personalization.finetune(eh.algorithms.fedavg(work), work), data, rounds=2)
          >>> x, y = data.test.client(3)
          >>> run.predict(x).shape == run.predict(x, client="3").shape == (len(y), 10)
          True
        """
        check_process()
        shape, kind = self.data.feature_shape, self.data.train.x.dtype
        examples = unlabelled(x, shape, kind)
        params = self.params if client is None else self.personal_params(self._position(str(client)))
        return outputs(self.algorithm.model, params, examples)

    def _position(self, client: str) -> int:
        """The position of the client with this id."""
        ids = self.data.client_ids
        if client not in ids:
            raise EvenhandError(
                f"{self.data.name}: there is no client {client!r:.60}{perhaps(client, ids[:_COMPARED])}: give an id of "
                "run.data.client_ids, or None for the global model."
            )
        return ids.index(client)

    def serve(self, data: FederatedDataset) -> Run:
        """The same run, with other clients in place of its own: those that took no part in the training.

        A new client begins as clients do, with the present global model, and does what the method lets clients do
        before they use a model: around a method that keeps personal models, put
        :func:`evenhand.personalization.finetune`, and newcomers get personal models, too.

        Args:
          data: the new clients, such as those of :func:`evenhand.data.hold_out_clients`; finetuning uses their training
            examples, and all splits are measured.

        Raises:
          EvenhandError: the model does not fit the examples.
        """
        check_process()
        context = (data, self.data.form, self.seed, self.untrained, self.metrics)
        kept, served = serve_newcomers(self.algorithm, self.kept.server, *context)
        # A new object, so that no cached finding, baseline or account of the old clients goes with it.
        return replace(
            self,
            data=data,
            kept=kept,
            clients=served.clients,
            classes=served.classes,
            evaluated=None,
            malicious=np.zeros(data.num_clients, bool),
            last_round=np.zeros(data.num_clients, np.int64),
            initial_loss=np.zeros(0),
        )

    def view(
        self,
        title: str = "run",
        config: Mapping[str, Any] | None = None,
        *,
        unseen: FederatedDataset | None = None,
    ) -> RunView:
        """What reports and figures show of this run; only its evaluated clients, and those ``unseen`` in training.

        Malicious clients are in it; what is shown is about the honest ones (:func:`evenhand.report.honest`).
        """
        ids, evaluated = self._evaluated_ids(), self.evaluated
        chosen = honest_among(self.malicious, evaluated)
        sizes = {name: rows for name, rows in split_sizes(self.data, evaluated).items() if rows.any()}
        clients = {name: self.clients[name] for name in sizes}
        named = {
            split: by_class(cells.among(chosen), self.data.classes, self.data.num_classes or 0)
            for split, cells in self.classes.items()
            if split in sizes
        }
        info = {**self.info, "seed": self.seed, "clients": self.data.num_clients, "by_class": named}
        info |= {"metrics": self._may_be_undefined, "client_column": self.data.client_column}
        info["adapts"] = self.algorithm.adapt is not None
        if self.privacy is not None:
            info["privacy"] = self.privacy.in_words()
        if (constant := self._constant) is not None:
            info["constant"] = {"metric": "loss", "split": constant.split, "mean": constant.constant}
        classes = {name: class_spread(self.classes[name], len(ids)) for name in sizes if name in self.classes}
        malicious = self.malicious if evaluated is None else self.malicious[evaluated]
        view = RunView(
            title=title,
            history=self.history,
            sizes=sizes,
            client_ids=ids,
            clients=clients,
            info=info,
            config=config or {},
            classes=classes,
            findings=self.findings,
            malicious=malicious if self.malicious.any() else None,
            last_round=self.last_round if evaluated is None else self.last_round[evaluated],
        )
        if unseen is None:
            return view
        sizes, noun = split_sizes(unseen), "unseen client"
        missing = unmeasured(sizes, noun=noun, cure="")
        more = () if missing is None else (missing._replace(split="unseen"),)
        # The usual advice is to set clients aside, as was done here.
        own = [
            self._unmeasured(chosen, cure="") if x.kind == "unmeasured" and self.data.test.rows else x
            for x in self.findings
        ]
        findings = (*filter(None, own), *more)
        return view._replace(unseen=self.serve(unseen).view(title), findings=findings)

    def report(self, path: str | Path, title: str = "run", *, unseen: FederatedDataset | None = None) -> Path:
        """Writes one self-contained HTML page about this run and returns its path.

        Args:
          path: the file to write.
          title: the page's heading.
          unseen: clients that took no part in the training, to show how these are served; see :meth:`serve`.
        """
        return write_report(path, [self.view(title, unseen=unseen)])

    def save(
        self, folder: str | Path, *, overwrite: bool = False, unseen: FederatedDataset | None = None
    ) -> Path:
        """Writes the run into a folder, from which :func:`evenhand.load_run` reads it, and returns its path.

        The folder has the measurements, the global model and the clients' personal models.  It is like those of
        ``evenhand run``, so ``evenhand report``, ``compare`` and ``predict`` read it.  It is written in one step: if
        that fails, or the process dies, there is no new folder, and an old one is as it was.

        Args:
          folder: new or empty.
          overwrite: whether the folder of an earlier run may be replaced, with all that is in it.
          unseen: clients that took no part in the training, to be shown, too; see :meth:`serve`.

        Raises:
          EvenhandError: the folder is not empty, it cannot be written, or the run has released its clients' states.
        """
        save(self, Path(folder), overwrite=overwrite, unseen=unseen)
        return Path(folder)

    @property
    def facts(self) -> Facts:
        """What results need to know about the method and its data."""
        return Facts(
            method=self.algorithm.name or "a method",
            data=self.data.name,
            client_ids=self.data.client_ids,
            sizes=split_sizes(self.data),
            undefined=self._may_be_undefined,
        )

    @property
    def _may_be_undefined(self) -> dict[str, str]:
        """Metric of a set of examples that was measured -> which clients have none."""
        measured = {name for metrics in self.clients.values() for name in metrics}
        return {
            name: metric.undefined
            for metric in self.metrics
            for name in (metric.name, of_global(metric.name))
            if name in measured
        }


def split_sizes(data: FederatedDataset, chosen: NDArray | None = None) -> dict[str, NDArray]:
    """Rows per client of each split, of all clients or of some."""
    sizes = {"train": data.train.sizes, "valid": data.valid.sizes, "test": data.test.sizes}
    return sizes if chosen is None else {name: rows[chosen] for name, rows in sizes.items()}


# --- clients that took no part in the training ------------------------------------------------------------------------


def serve_newcomers(
    algorithm: Algorithm,
    server: PyTree,
    data: FederatedDataset,
    form: Form,
    seed: int,
    untrained: Untrained,
    metrics: Sequence[Metric] = (),
) -> tuple[Kept, Served]:
    """The states of new clients, each what a client begins with from the present global model, and their metrics.

    Args:
      algorithm: the method.
      server: its state.
      data: the new clients.
      form: of the examples that it was trained on.
      seed: of the run.
      untrained: as in :func:`evenhand.simulate`; the initial personal state is the one of the present global model.
      metrics: what is measured besides the model's own metrics.
    """
    for property, old, new in (
        ("examples of shape", form.shape, data.feature_shape),
        ("features of type", form.dtype, data.train.x.dtype),
    ):
        if old != new:
            raise EvenhandError(
                f"serve({data.name!r}): it has {property} {new}, but the model was trained on {old}."
            )
    check_model(algorithm.model, data)
    job = Job(algorithm, data, rounds=0, seed=seed, untrained=untrained, execution=_ONE_BY_ONE)
    setup = set_up(job)
    newcomer = algorithm.init_client(algorithm.global_params(server))
    # No last round, so that ``untrained`` decides what a newcomer is served.
    never = jnp.zeros(data.num_clients, jnp.int32)
    # An evaluation reads no aggregator: those of round 0 only complete the structure.
    state = RoundState(server, setup.state.aggregators, stored(newcomer, data.num_clients), never)
    evaluation = Evaluation(job, setup.program, setup.keys, setup.source, setup.store)
    served = evaluation.served(state)
    return Kept(state), served.with_metrics(evaluation.measured(state, metrics)) if metrics else served
