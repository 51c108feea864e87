"""The result of a simulation, and how it serves clients that took no part in the training."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand import evaluation, tree
from evenhand._platform import check_process
from evenhand.data import FederatedDataset, Form
from evenhand.devices import local, over
from evenhand.errors import EvenhandError, truth_value
from evenhand.evaluation import Baseline, ClassMetrics, Finding, Metric, Prepared, unmeasured
from evenhand.evaluation.metrics import BACKDOOR, SPLITS
from evenhand.privacy import Account, account
from evenhand.privacy.client_level import worth_of_noise
from evenhand.report import RunView, write_report
from evenhand.rounds import RoundState, newcomer, roots, work_key
from evenhand.simulation._job import Job, Untrained, check_model
from evenhand.simulation.evaluating import Adapting, Evaluation, fitting, has_own, honest_among, tiles
from evenhand.simulation.results import Applied, Facts, Results, Training, may_be_undefined, split_sizes
from evenhand.simulation.saving import save
from evenhand.simulation.store import Kept, NDArray, stored
from evenhand.streams import keys_of
from evenhand.types import Algorithm, Array, ClientData, Key, Params, PyTree, Trigger


@dataclass(frozen=True, repr=False)
class Run(Results):
    """The results of a simulation, up to its latest evaluation.

    Attributes:
      algorithm: the method.
      data: the clients.
      seed: the run's seed.
      history: equal-length arrays, one entry per evaluation: ``"round"``; ``"<split>_<metric>"``, the mean over all
        rows of the split, each client with the model it is served; under an attack, over the honest clients only, as
        in every headline (over all where each evaluated client is malicious); ``"test_<metric>_mean"``,
        ``"_worst10"``, ``"_best10"`` and ``"_variance"`` over clients for the primary metric; ``"test_class_spread"``
        and ``"test_worst_class"``, as in :meth:`summary`; ``"bytes_down"`` and ``"bytes_up"``, what all clients
        together have received and sent so far; where time is simulated, ``"time"``, the simulated seconds since the
        beginning; and what the method reports about its latest round, NaN before the first one.
      per_round: what the method reports about each round, ``(rounds,)`` each, e.g. ``"update_norm"``; where weights
        depend on losses, also ``"effective_cohort"``, the number of equally weighted clients that would count as much;
        where time is simulated (:func:`evenhand.systems.speeds`), the ``"seconds"`` of each round.
      info: ``"rounds"`` done; ``"cohort"``; ``"lanes"`` and ``"devices"``; ``"floats"``, how many numbers a client gets
        (``"down"``) and sends (``"up"``) in a round that it takes part in; ``"secure_sums"``, the sums under masks in
        all rounds together; ``"communication"``, numbers and bytes, ``"per_client_and_round"`` and in ``"total"``, with
        the uploads that were counted (``"took_part"``), the times that a client was drawn and dropped out
        (``"left_out"``), and whom that ``"covers"``, in sentences; ``"restarts"``, whether a schedule of the clients'
        step sizes restarts in every round; ``"unattacked"``, a sentence, where an attack has no malicious client;
        ``"unprotected"``, what the method's guarantee does not cover because of this run's settings, such as its start;
        ``"seconds"`` per activity, waiting for streamed rows (``"data"``) among them; local ``"steps"``, ``"useful"``
        and ``"executed"`` (a lane runs until the longest client of its group is done), and ``"padded"``, the share that
        is not useful; ``"examples"`` trained on, and ``"examples_per_second"`` of training.
      kept: what the next round would start from; see :attr:`state`.
      clients: split -> metric -> a number for each evaluated client; if clients have personal models, also
        ``"global_<metric>"``, what the global model would give them.
      evaluated: the positions of the evaluated clients, ascending; None: all.
      classes: split -> the accuracy of each class at each evaluated client, numbered among the evaluated clients;
        :meth:`class_metrics` numbers them among all clients.
      malicious: which clients are, bool ``(num_clients,)``.
      metrics: those asked for with ``metrics=``, and that of a backdoor; in ``clients`` after the last round only.
      last_round: the last round, counted from 1, in which each client trained, int64 ``(num_clients,)``; 0: it never
        did.  A client trains in a round if it is drawn and its upload is accepted; one that drops out, or whose work is
        discarded or rejected, does not.
      untrained: what clients that never trained are served if clients have personal models, as in
        :func:`evenhand.simulate`.
      availability: the share of the rounds in which each client was available, ``(num_clients,)``, NaN before the first
        round; empty without systems that limit it (:func:`evenhand.systems.availability`).
      initial_loss: the training loss of each evaluated client with the initial model; empty where all clients are
        served the global model.
      level: of a method that trains several models, the position of the one that each evaluated client is served in
        ``info["levels"]``, ``(evaluated clients,)``; None: there is one model.
      trigger: that of the attack's backdoor; None: there is none.
      remote: whether the examples are on other machines: ``data`` then has their numbers alone, and what would be read
        off the examples is not known.
      training: of the run that trained, if this one serves other clients; None: this one trained.
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
    level: NDArray | None = None
    trigger: Trigger | None = None
    availability: NDArray = field(default_factory=lambda: np.zeros(0))
    remote: bool = False
    training: Training | None = None

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
        if self.remote and not any(np.isfinite(values).any() for values in self.clients["train"].values()):
            return ()  # clients have kept their numbers to themselves
        needs = [need for phase in self.algorithm.phases for need in phase.aggregator.needs]
        # How many clients a round draws, where that is a fixed number.
        drawn = None if self.algorithm.sampling.independent else self.info.get("cohort")
        seen = evaluation.findings(
            self.history,
            per_round=self.per_round,
            classes={split: cells.among(self._honest) for split, cells in self.classes.items()},
            blank=0.0 if self.remote else evaluation.blank_loss(self.data),
            class_names=self.data.classes,
            scales=None if self.remote else evaluation.feature_scales(self.data),
            constant=lambda: self.baseline,
            restarts=self.info.get("restarts", False),
            may_rise=self.algorithm.pooled is not None,
            guarantee=evaluation.no_guarantee(needs, drawn, self.per_round.get("reported")),
            clients=(*self._of_clients(), self._unchosen()),
            noun=self._noun,
            asked=[metric.name for metric in self.metrics],
            aucs={split: metrics["auc"] for split, metrics in self.clients.items() if "auc" in metrics},
            is_exposed=self._is_exposed,
        )
        clients = self.data.num_clients if self.training is None else self.training.clients
        noise = (Finding(*pair) for pair in worth_of_noise(self.algorithm, clients))
        idle = [Finding("unattacked", self.info["unattacked"])] if "unattacked" in self.info else []
        return (*seen, *filter(None, (self._unavailable(), self._unmeasured())), *noise, *idle)

    @cached_property
    def _is_at_base_rate(self) -> bool:
        """Whether the answers to the evaluated honest clients' examples are no better than one constant answer."""
        parts = (self.classes[split].among(self._honest) for split in SPLITS[::-1] if split in self.classes)
        cells = next((cells for cells in parts if len(cells.counts)), None)
        return cells is not None and evaluation.class_totals(cells).is_guess

    def _is_exposed(self) -> bool:
        """Whether some clients are malicious and one upload can move the model as far as it likes."""
        aggregators = [phase.aggregator for phase in self.algorithm.phases]
        return bool(self.malicious.any()) and any(map(evaluation.follows_one_upload, aggregators))

    def _unavailable(self) -> Finding | None:
        """The evaluated clients that headlines are about, but that were never available."""
        if not len(self.availability):
            return None
        share = self._evaluated_of(self.availability)[self._honest]
        return evaluation.unavailable_clients(share, self.info["rounds"], noun=self._noun)

    def _unmeasured(self, cure: str | None = None) -> Finding | None:
        """The evaluated clients that headlines are about, but leave out."""
        sizes = {split: rows[self._honest] for split, rows in self._sizes.items()}
        metric = evaluation.primary_metric(self.clients["train"])
        train = self.clients["train"][metric][self._honest]
        return unmeasured(sizes, noun=self._noun, metric=metric, train=train, cure=cure)

    @property
    def _honest(self) -> NDArray:
        """Which of the evaluated clients headlines are about."""
        return honest_among(self.malicious, self.evaluated)

    @property
    def _noun(self) -> str:
        """What a client that headlines are about is called."""
        evaluated, honest = "evaluated " * (self.evaluated is not None), "honest " * (not self._honest.all())
        return f"{evaluated}{honest}{'client' if self.algorithm.pooled is None else 'group'}"

    @cached_property
    def baseline(self) -> Baseline | None:
        """The run's loss beside that of the best constant answer, at the evaluated honest clients (at all where none
        is honest); None where no constant is known.  See :func:`evenhand.evaluation.baseline`."""
        if self.remote:
            return None
        clients = {
            split: {metric: values[self._honest] for metric, values in metrics.items()}
            for split, metrics in self.clients.items()
        }
        positions = self._positions[self._honest]
        return evaluation.baseline(self.algorithm.client_model, self.data, clients, positions)

    def _unchosen(self) -> Finding | None:
        """The finding about clients that have no examples to choose a level on."""
        if self.level is None:
            return None
        sizes = {split: rows[self._honest] for split, rows in self._sizes.items()}
        # Newcomers may choose on training examples, for no model has seen these.
        rows = sizes["valid"] + (0 if self.last_round.any() else sizes["train"])
        return evaluation.unchosen_levels(rows, self.info["levels"][0], self._noun)

    def _of_clients(self) -> tuple[Finding | None, ...]:
        """The findings about personal models."""
        adapts, keeps = self.algorithm.adapt is not None, self.algorithm.personal_params is not None
        # A model that never trained cannot have diverged, and a malicious client may break its own on purpose.
        has_trained = self._evaluated_of(self.last_round) > 0
        meant = ~self._evaluated_of(self.malicious) & (has_trained | adapts)
        diverged = evaluation.diverged_clients(
            self.clients["train"], self.initial_loss, meant, self._evaluated_ids(), self._noun
        )
        if not keeps:
            return (diverged,)
        untrained = evaluation.untrained_clients(
            self.last_round,
            self.history,
            initial=self.untrained == "initial",
            adapts=adapts,
            chosen=self._positions[self._honest],
            noun=self._noun,
        )
        return diverged, untrained

    @cached_property
    def privacy(self) -> Account | None:
        """The privacy that the method has spent so far, and what it guarantees; None: it guarantees nothing.

        Where other clients are served, it is that of the training.  For another probability of a breach, or another
        accountant, see :func:`evenhand.privacy.account`.
        """
        if self.training is not None:
            return self.training.privacy
        if (promise := self.algorithm.privacy) is None:
            return None
        public, features = promise.public, self.data.features
        fitted = () if features is None else features.fitted_with(self.data.train.y)
        if len(self.availability):
            public = (*public, "which clients are available in which round, whatever their data")
        unprotected = (*promise.unprotected, *self.info.get("unprotected", ()), *fitted)
        promise = promise._replace(public=public, unprotected=unprotected)
        units = self.data.num_clients if promise.unit == "client" else self.data.train.rows
        # Kept: it takes a second to compute.  On machines a round may have been broadcast more than once.
        return account(promise, rounds=self.info.get("charged", self.info["rounds"]), units=units)

    def personal_params(self, k: int) -> Params:
        """The parameters that the client at position ``k`` is served, adapted to its rows where the method does that.

        They are the global ones where the method has no personal models, and for a client that never trained, unless
        the run has ``untrained="initial"``.  What such a client has kept since the start is in :attr:`state`.

        For a client by its id, use its position, ``run.data.client_ids.index("north / A")``; to apply its model to new
        examples, see :meth:`predict`.
        """
        self._check_position(k)
        if self.level is not None:
            return self.params[self._level_of(k)]
        if not self.has_personal_models:
            return self.params
        (_, params), *_ = self._served(slice(k, k + 1))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), params)

    @property
    def has_personal_models(self) -> bool:
        """Whether clients are served personal models, kept between rounds or adapted before use."""
        return self.algorithm.personal_params is not None or self.algorithm.adapt is not None

    @property
    def personal_clients(self) -> NDArray:
        """Which clients are served a personal model, bool ``(num_clients,)``; the others get the global one."""
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
        everyone = slice(0, self.data.num_clients)
        return self._served(everyone, lanes=self.info["lanes"], devices=self.info["devices"])

    def _served(self, clients: slice, *, lanes: int = 1, devices: int = 1) -> Iterator[tuple[slice, Params]]:
        """The models that the clients at these positions are served, some of them at a time.

        ``lanes`` clients adapt side by side on each of so many ``devices``.
        """
        check_process()
        adapt, train, shared = self.algorithm.adapt, self.data.train, self.params
        mesh = local(over(devices))
        rows = Prepared(np.asarray(train.x), np.asarray(train.y), train.offsets, None, mesh)
        together = min(fitting(rows, shared), clients.stop - clients.start)
        # The evaluation's root: a private method's is not the seed's own key.
        root = roots(self.algorithm, keys_of(self.seed)).shared
        adapting = Adapting(adapt, root, int(train.sizes.max()), lanes, together)
        for window in tiles(clients.start, clients.stop, together):
            ids = np.arange(window.start, window.stop)
            params = self._unadapted(shared, window)
            if adapt is not None:
                params = adapting.all(tree.take, params, rows.some(window), ids, ids - window.start)
            yield window, jax.tree.map(np.asarray, params)

    def _unadapted(self, shared: Params, window: slice) -> Params:
        """The models of some clients before they adapt, with a leading axis: their own ones, or the global one."""
        personal_params = self.algorithm.personal_params
        own = has_own(self.last_round[window], self.untrained)
        everyone = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(own), *np.shape(leaf))), shared)
        if personal_params is None or not own.any():
            return everyone
        # The size is given since states may be empty: nothing is personal.
        personal = jax.vmap(personal_params, in_axes=(None, 0), axis_size=len(own))
        made = personal(self.kept.server, jax.tree.map(jnp.asarray, self.kept.some(window)))
        return jax.vmap(tree.select)(jnp.asarray(own), made, everyone)

    def predict(self, x: npt.ArrayLike, client: str | int | None = None) -> Any:
        """The model's raw outputs for new examples: logits of a classifier, values of a regression.

        The examples go through the model in chunks, so ``x`` may be as large as memory allows.  For the columns of a
        table, :func:`evenhand.data.encode_table` makes ``x``; :meth:`predict_table` does both, for rows of any client.

        Args:
          x: examples of the shape that the model was trained on, ``(rows, ...)``.
          client: a client's id, to use the model that this client is served: its personal model, adapted to its
            training rows where the method does that, or the global one where the method has no other.  None: the global
            model.

        Returns:
          ``(rows, outputs)``, NumPy; a tree of such arrays for a model that has several outputs, and a tuple with an
          entry for each of several models.

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
        examples = evaluation.unlabelled(x, self.data.feature_shape, self.data.train.x.dtype)
        k = None if client is None else self._position(str(client), "run.data.client_ids")
        if k is None:
            return evaluation.outputs(self.algorithm.model, self.params, examples)
        return evaluation.outputs(self.algorithm.client_model, self.personal_params(k), examples)

    def applied(self) -> Applied:
        """What is applied to new rows."""
        data = self.data
        return Applied(self.algorithm.client_model, self.params, data.form, data.features, data.client_column)

    def _personal_models(self, clients: Collection[str]) -> tuple[set[str], Iterator[tuple[str, Params]]]:
        has, ids = self.personal_clients, self.data.client_ids
        chosen = [k for k, name in enumerate(ids) if has[k] and name in clients]

        def models() -> Iterator[tuple[str, Params]]:
            if not chosen:
                return
            span = slice(chosen[0], chosen[-1] + 1)
            for window, params in self._served(span, lanes=self.info["lanes"], devices=self.info["devices"]):
                for k in chosen[bisect_left(chosen, window.start) : bisect_left(chosen, window.stop)]:
                    yield ids[k], tree.take(params, k - window.start)

        return {ids[k] for k in chosen}, models()

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
        job = Job(
            algorithm=self.algorithm,
            data=data,
            rounds=0,
            seed=self.seed,
            metrics=self.metrics,
            untrained=self.untrained,
        )
        served = serve_newcomers(job, self.kept.server, self.data.form)
        # A new object, so that no cached finding, baseline or account of the old clients goes with it.
        training = self.training or Training(self.data.num_clients, self.privacy)
        return replace(self, **served, evaluated=None, initial_loss=np.zeros(0), training=training)

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
        ids, data = self._evaluated_ids(), self.data
        sizes = {name: rows for name, rows in self._sizes.items() if rows.any()}
        classes = {name: self.classes[name] for name in sizes if name in self.classes}
        info = {
            **self.info,
            "seed": self.seed,
            "clients": data.num_clients,
            "by_class": {
                name: evaluation.by_class(cells.among(self._honest), data.classes, data.num_classes or 0)
                for name, cells in classes.items()
            },
            "metrics": self.facts.undefined,
            "client_column": data.client_column,
            "adapts": self.algorithm.adapt is not None,
            "backdoor": self.backdoor,
            "base_rate": self._is_at_base_rate,
        }
        if self.privacy is not None:
            info["privacy"] = self.privacy.in_words()
        is_judged_by_loss = "accuracy" not in self.clients["train"] and data.num_classes is None
        # The constant of classes takes time, and matters only where the accuracy says nothing.
        if (is_judged_by_loss or self._is_at_base_rate) and (constant := self.baseline) is not None:
            info["constant"] = {"metric": "loss", "split": constant.split, "mean": constant.constant}
        view = RunView(
            title=title,
            history=self.history,
            sizes=sizes,
            client_ids=ids,
            clients={name: self.clients[name] for name in sizes},
            info=info,
            config=config or {},
            classes={name: evaluation.class_columns(cells, len(ids)) for name, cells in classes.items()},
            findings=self.findings,
            malicious=self._evaluated_of(self.malicious) if self.malicious.any() else None,
            last_round=self._evaluated_of(self.last_round),
            level=None if self.level is None else np.array(self.info["levels"])[self.level],
            availability=self._evaluated_of(self.availability) if len(self.availability) else None,
        )
        if unseen is None:
            return view
        missing = unmeasured(split_sizes(unseen), noun="unseen client", cure="")
        more = () if missing is None else (missing._replace(split="unseen"),)
        # The usual advice is to set clients aside, as was done here.
        own = [
            self._unmeasured(cure="") if x.kind == "unmeasured" and data.test.rows else x
            for x in self.findings
        ]
        findings = (*filter(None, own), *more)
        return view._replace(unseen=self.serve(unseen).view(title), findings=findings)

    def diagnosed(self, clients: int = 50, *, mu: float = 0.0) -> Run:
        r"""The same run, whose report and summary say how heterogeneous its clients are, and how exactly they work.

        Measured at the global model, over honest clients: the dissimilarity :math:`B` and the variance of their
        gradients (:func:`evenhand.evaluation.dissimilarity`), and the inexactness :math:`\gamma_k` of the work of one
        more round (:func:`evenhand.evaluation.inexactness`).  In ``info["diagnostics"]``.

        Args:
          clients: how many of them work once more, drawn by the run's seed; all where there are fewer.
          mu: FedProx's proximal weight, for the inexactness of its local problem; 0: that of the client's own loss.

        Edge cases: where clients send something else than how the parameters changed, as SCAFFOLD's do, and where the
        examples of all are pooled, there is no inexactness.

        Example:
          >>> import evenhand as eh
          >>> data = eh.data.load("digits", clients=10)
          >>> work = eh.local.sgd(eh.models.softmax_regression(64, classes=10), 0.1, epochs=1, batch_size=10)
          >>> run = eh.simulate(eh.algorithms.fedavg(work), data, rounds=2).diagnosed()
          >>> run.info["diagnostics"]["dissimilarity"] > 1
          True
        """
        check_process()
        # Where all clients are malicious, the numbers are about them, as everywhere.
        positions = np.flatnonzero(~self.malicious if not self.malicious.all() else self.malicious)
        honest = self.data.select(self.data.client_ids[k] for k in positions)
        rows = evaluation.prepare(honest.train)
        unlike = evaluation.dissimilarity(self.algorithm.model, self.params, rows)
        numbers = {
            "dissimilarity": unlike.B,
            "gradient_variance": unlike.gradient_variance,
            "global_gradient_norm": unlike.global_gradient_norm,
            "clients": int(np.sum(honest.train.sizes > 0)),
        }
        present = np.flatnonzero(honest.train.sizes > 0)
        chosen = np.sort(np.random.default_rng(self.seed).permutation(present)[:clients])
        if self.algorithm.pooled is None and (ends := _worked(self, rows, chosen, positions)) is not None:
            gammas = [
                evaluation.inexactness(self.algorithm.model, self.params, end, rows, int(k), mu=mu)
                for k, end in zip(chosen, ends, strict=True)
            ]
            numbers |= {
                "inexactness": float(np.mean(gammas)),
                "no_progress": float(np.mean(np.array(gammas) >= 1.0)),
                "worked": len(gammas),
            } | ({"mu": mu} if mu else {})
        return replace(self, info={**self.info, "diagnostics": numbers})

    @property
    def backdoor(self) -> dict[str, Any] | None:
        """How often evaluated honest clients' examples of other classes get the attacker's label with the trigger.

        A dict of the share over all of these examples (``"success"``), how many they are (``"examples"``), the
        ``"split"`` that they are from, and the attacker's ``"label"``; None without such an attack, and before the last
        round.  For each client see :meth:`client_metrics`, under ``"backdoor_success"``.
        """
        split = next((name for name in reversed(SPLITS) if self._sizes[name][self._honest].any()), None)
        if self.trigger is None or split is None or BACKDOOR not in self.clients.get(split, {}):
            return None
        rows = {"train": self.data.train, "valid": self.data.valid, "test": self.data.test}[split]
        others = np.concatenate([[0], np.cumsum(np.asarray(rows.y) != self.trigger.label)])[rows.offsets]
        counts = self._evaluated_of(np.diff(others))[self._honest]
        shares = self.clients[split][BACKDOOR][self._honest]
        total = int(counts.sum())
        return {
            "success": float(np.sum(np.where(counts > 0, shares * counts, 0.0)) / total) if total else None,
            "examples": total,
            "split": split,
            "label": self.trigger.label,
        }

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
        save(self, Path(folder), overwrite=truth_value("overwrite", overwrite), unseen=unseen)
        return Path(folder)

    @property
    def facts(self) -> Facts:
        """What results need to know about the method and its data."""
        return Facts(
            method=self.algorithm.name or "a method",
            data=self.data.name,
            client_ids=self.data.client_ids,
            sizes=split_sizes(self.data),
            undefined=may_be_undefined(self.metrics, self.clients),
        )


# --- clients that took no part in the training ------------------------------------------------------------------------


def _worked(run: Run, rows: Prepared, clients: NDArray, positions: NDArray) -> list[Params] | None:
    """The parameters of some clients after the work of one more round; None where they send something else.

    ``rows`` are those of the clients at these ``positions`` of the run.
    """
    algorithm, capacity = run.algorithm, int(rows.sizes.max())
    phase, round = algorithm.phases[-1], run.info["rounds"]
    root = roots(algorithm, keys_of(run.seed))

    @jax.jit
    def end(x: Array, y: Array, start: Array, size: Array, k: Array, key: Key) -> PyTree:
        data = ClientData(
            x=x,
            y=y,
            start=start,
            size=size,
            progress=jnp.float32(1.0),
            capacity=capacity,
            round=jnp.int32(round),
        )
        message = phase.broadcast(run.kept.server, k)
        delta, _ = phase.work(message, newcomer(algorithm, run.params, capacity), data, key)
        params = algorithm.received(message)
        return tree.add(params, delta) if tree.form(delta) == tree.form(params) else ()

    x, y = jnp.asarray(rows.x), jnp.asarray(rows.y)
    starts, sizes = (jnp.asarray(part, jnp.int32) for part in (rows.offsets[:-1], rows.sizes))
    ends: list[Params] = []
    for k in clients:
        own = jnp.int32(positions[k])
        ends.append(end(x, y, starts[k], sizes[k], own, work_key(root, round, 0, own)))
    return ends if jax.tree.leaves(ends) else None


def serve_newcomers(job: Job, server: PyTree, form: Form) -> dict[str, Any]:
    """What a run of new clients has in place of its own: what each begins with from the present global model, metrics.

    Args:
      job: of the run, with the new clients as its data and without rounds; the initial personal state, which
        ``untrained`` may ask for, is the one of the present global model.
      server: the method's state.
      form: of the examples that it was trained on.
    """
    algorithm, data = job.algorithm, job.data
    for property, old, new in (
        ("examples of shape", form.shape, data.feature_shape),
        ("features of type", form.dtype, data.train.x.dtype),
    ):
        if old != new:
            raise EvenhandError(
                f"serve({data.name!r}): it has {property} {new}, but the model was trained on {old}."
            )
    check_model(algorithm.model, data)
    examples = int(data.train.sizes.max())
    fresh = newcomer(algorithm, algorithm.global_params(server), examples)
    # No last round, so that ``untrained`` decides what a newcomer is served.
    never = jnp.zeros(data.num_clients, jnp.int32)
    state = RoundState(server, (), stored(fresh, data.num_clients), never)
    measuring = Evaluation.without_rounds(job, examples, roots(algorithm, keys_of(job.seed)))
    measuring.chosen_on = ("valid", "train")  # no model has seen their training examples
    served = measuring.served(state)
    if metrics := evaluation.metrics.resolved(job.metrics):
        served = served.with_metrics(measuring.measured(state, metrics, served.level))
    return {
        "data": data,
        "kept": Kept(state),
        "clients": served.clients,
        "classes": served.classes,
        "malicious": np.zeros(data.num_clients, bool),
        "last_round": np.zeros(data.num_clients, np.int64),
        "level": served.level,
        "availability": np.zeros(0),
    }
