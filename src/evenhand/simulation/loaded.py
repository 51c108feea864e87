"""Runs read back from their folders: what ``evenhand run`` and ``run.save`` wrote."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand.data import FederatedDataset, Form, load_features
from evenhand.errors import EvenhandError
from evenhand.evaluation import ClassMetrics, Finding, class_columns, outputs, unlabelled
from evenhand.privacy import Account
from evenhand.records import check_format, foreign, read_arrays, read_json, recovered, sum_of_file
from evenhand.report import RunView, read_clients_csv, write_report
from evenhand.simulation import folder as files
from evenhand.simulation._job import Job, Untrained
from evenhand.simulation._run import Run, serve_newcomers
from evenhand.simulation.folder import Arrays, NDArray
from evenhand.simulation.results import Applied, Facts, Results, Training
from evenhand.simulation.saving import BESIDE_INFO, SAVED_BY, client_ids, described, packed, unpacked
from evenhand.text import quoted
from evenhand.types import Algorithm, Model, Params, Release

__all__ = ["SavedRun", "load_run"]


def load_run(
    folder: str | Path,
    *,
    model: Model | None = None,
    algorithm: Algorithm | None = None,
    data: FederatedDataset | None = None,
) -> SavedRun:
    """Loads a run from a folder that ``run.save(folder)`` or ``evenhand run --out folder`` wrote.

    It has the measurements, reports and models of a :class:`~evenhand.simulation.Run`.  It does not train on: for that,
    give ``simulate(..., checkpoint=...)``, or continue a command with ``evenhand resume``.

    Args:
      folder: where it is.
      model: the trained model; :meth:`SavedRun.predict` needs it unless it is from :mod:`evenhand.models`, as for
        a model of :func:`evenhand.models.from_flax`.
      algorithm: the method; needed by :meth:`SavedRun.serve` only.
      data: the clients, for your own use as ``run.data``; their fingerprint must be that of the run's.

    Raises:
      EvenhandError: there are no results, a file is missing or damaged, a later version of Evenhand wrote the folder
        in another format, or the data are others.

    Example:
      >>> import tempfile, evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> work = eh.local.sgd(eh.models.softmax_regression(64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> run = eh.simulate(eh.algorithms.fedavg(work), data, rounds=2)
      >>> saved = eh.load_run(run.save(tempfile.mkdtemp() + "/a"))
      >>> saved.summary() == run.summary()
      True
      >>> bool((saved.predict(data.test.x) == run.predict(data.test.x)).all())
      True
    """
    folder = recovered(Path(folder))
    config = read_json(folder / files.CONFIG)
    check_format(folder / files.CONFIG, config)  # first: a later format may hold other types
    config = _checked(folder / files.CONFIG, config, _CONFIG)
    if data is not None and data.fingerprint != config["data"]["fingerprint"]:
        raise EvenhandError(
            f"The data {data.name!r} are not those of the run in {folder}: give those that it was trained on."
        )
    condition = files.sound_condition(folder)
    summary = _checked(folder / files.SUMMARY, read_json(folder / files.SUMMARY), _SUMMARY)
    view = _view(folder, config, summary, condition)
    # Without a checksum, as in folders of earlier versions, the texts are all there is.
    is_exact = condition.results == "sealed" and (folder / files.RESULTS).is_file()
    arrays = read_arrays(folder / files.RESULTS) if is_exact else _arrays_of(view)
    if is_exact:
        view = _exact(view, arrays)
    # Of the method, which may train another model than the one that it was given.
    model = algorithm.client_model if model is None and algorithm is not None else model
    return SavedRun(
        folder=folder,
        config=config,
        shown=view,
        recorded=Facts(
            method=view.title,
            data=config["data"]["name"],
            client_ids=client_ids(arrays),
            sizes=unpacked(arrays, "sizes"),
            undefined=view.info["metrics"],
        ),
        history=view.history,
        per_round=unpacked(arrays, "per_round"),
        info={
            "rounds": summary["rounds"],
            **files.dict_in(summary, "info"),
            **{name: summary.get(name) for name in BESIDE_INFO},
        },
        clients=_by_split(arrays, "clients"),
        classes=_classes(arrays),
        evaluated=arrays.get("evaluated"),
        malicious=arrays["malicious"],
        last_round=arrays["last_round"],
        level=arrays.get("level"),
        availability=arrays.get("availability", np.zeros(0)),
        privacy=_account(folder / files.SUMMARY, summary.get("account")),
        # Earlier versions did not record it: the models themselves are then the only sign.
        has_personal_models=bool(summary.get("personal", (folder / files.PERSONAL).is_dir())),
        untrained=summary.get("untrained") or "global",
        interrupted=summary["interrupted"],
        remarks=tuple(condition.remarks(folder)),
        model=described(str(summary.get("model", ""))) if model is None else model,
        given=(algorithm, data),
    )


@dataclass(frozen=True, repr=False)
class SavedRun(Results):
    """A run read from its folder; :func:`load_run` makes it.

    It has what a :class:`~evenhand.simulation.Run` has, except the states from which training would continue.

    Attributes:
      folder: where it is.
      config: what ``config.json`` says.
      shown: what reports show of it.
      recorded: what results need to know about the method and its data.
      history: as in :class:`~evenhand.simulation.Run`, like all of these.
      per_round: likewise; empty for folders of earlier versions.
      info: likewise, in the types of JSON.
      clients: likewise.
      classes: likewise; empty for folders of earlier versions.
      evaluated: likewise.
      malicious: likewise.
      last_round: likewise.
      level: likewise.
      availability: likewise.
      privacy: likewise.
      has_personal_models: likewise.
      untrained: likewise.
      interrupted: whether Ctrl-C ended the run before its last round.
      remarks: what a reader of the numbers should know about the folder, in sentences.
      model: what was trained; None: it is not known.
      given: the method and the data that :func:`load_run` was given.
    """

    folder: Path
    config: Mapping[str, Any]
    shown: RunView
    recorded: Facts
    history: Arrays
    per_round: Arrays
    info: Mapping[str, Any]
    clients: Mapping[str, Arrays]
    classes: Mapping[str, ClassMetrics]
    evaluated: NDArray | None
    malicious: NDArray
    last_round: NDArray
    level: NDArray | None
    availability: NDArray
    privacy: Account | None
    has_personal_models: bool
    untrained: Untrained
    interrupted: bool
    remarks: tuple[str, ...]
    model: Model | None
    given: tuple[Algorithm | None, FederatedDataset | None]

    @property
    def facts(self) -> Facts:
        """What results need to know about the method and its data."""
        return self.recorded

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What a reader must know before believing the numbers, as it was when the run was saved."""
        return tuple(self.shown.findings)

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.config["options"]["seed"]

    @property
    def fingerprint(self) -> str:
        """Of the data; runs with equal fingerprints had equal data."""
        return self.config["data"]["fingerprint"]

    @property
    def data(self) -> FederatedDataset:
        """The clients, if :func:`load_run` was given them: a run folder does not hold the data."""
        if (data := self.given[1]) is None:
            raise EvenhandError(
                f"{self.folder} does not hold the data: give them, as in eh.load_run(folder, data=data)."
            )
        return data

    @property
    def is_of_command(self) -> bool:
        """Whether ``evenhand run`` made the run, which can be repeated; else ``run.save`` wrote it."""
        return SAVED_BY not in self.config

    @property
    def form(self) -> Form:
        """The form of the data.

        Raises:
          EvenhandError: an earlier version of Evenhand wrote the folder, and did not record it.
        """
        try:
            return Form.from_json(files.dict_in(files.dict_in(self.config, "data"), "form"))
        except (KeyError, TypeError, ValueError):
            raise EvenhandError(
                f"{self.folder / files.CONFIG} does not have the form of the data (an earlier version of Evenhand "
                f"wrote it): repeat the run with `evenhand run --config {quoted(self.folder)} --out NEW`."
            ) from None

    @cached_property
    def params(self) -> Params:
        """The global parameters; of a model that is not known, in dicts by their names."""
        if self.model is None:
            return _nested(read_arrays(self.folder / files.PARAMS))
        return _on_device(files.read_params(self.folder / files.PARAMS, self._like))

    @property
    def fits(self) -> bool:
        """Whether the saved parameters are of the shapes of the model."""
        try:
            return self.params is not None
        except EvenhandError:
            return False

    @property
    def params_sum(self) -> str:
        """The SHA-256 of the file with the global parameters."""
        return sum_of_file(self.folder / files.PARAMS).sha256

    def personal_params(self, k: int) -> Params:
        """The parameters that the client at position ``k`` is served; see :meth:`Run.personal_params`.

        Raises:
          EvenhandError: there is no such client, or the folder does not hold the clients' models.
        """
        self._check_position(k)
        if self.level is not None:
            place = self._level_of(k)
            return self.params[str(place) if self.model is None else place]
        if not self.has_personal_models:
            return self.params
        if not (self.folder / files.PERSONAL).is_dir():
            raise EvenhandError(
                f"{self.folder} does not hold the clients' personal models: save the run again, or train it again with "
                "--keep-personal."
            )
        if (entry := self.personal.get(self.recorded.client_ids[k])) is None:
            return self.params
        like = self.params if self.model is None else self._like
        ((_, params),) = files.personal_models(self.folder, [entry], like)
        return _on_device(params)

    @cached_property
    def personal(self) -> Mapping[str, files.Personal]:
        """Client id -> where its own model is in the folder."""
        return {entry.client: entry for entry in files.read_index(self.folder)}

    @property
    def personal_clients(self) -> NDArray:
        """Which clients have a personal model in the folder, bool ``(num_clients,)``."""
        return np.array([name in self.personal for name in self.recorded.client_ids])

    def predict(self, x: npt.ArrayLike, client: str | int | None = None) -> Any:
        """The model's raw outputs for new examples, as :meth:`evenhand.simulation.Run.predict`.

        Raises:
          EvenhandError: the model is not known, there is no such client, or the examples have another form.
        """
        model, form = self._known_model(), self.form
        examples = unlabelled(x, form.shape, form.dtype)
        k = None if client is None else self._position(str(client), "the run's clients")
        if k is None and self.level is not None:
            return tuple(outputs(model, params, examples) for params in self.params)
        params = self.params if k is None else self.personal_params(k)
        return outputs(model, params, examples)

    def applied(self) -> Applied:
        """What is applied to new rows.

        Raises:
          EvenhandError: the model is not known, or ``features.json`` is damaged.
        """
        features = load_features(self.folder) if (self.folder / files.FEATURES).is_file() else None
        column = self.config["data"].get("client_column") or ""
        return Applied(self._known_model(), self.params, self.form, features, column)

    def _personal_models(self, clients: Collection[str]) -> tuple[set[str], Iterator[tuple[str, Params]]]:
        entries = [entry for name, entry in self.personal.items() if name in clients]
        models = files.personal_models(self.folder, entries, self.params)
        return {entry.client for entry in entries}, ((entry.client, params) for entry, params in models)

    def _known_model(self) -> Model:
        if self.model is None:
            raise EvenhandError(
                f"{self.folder} does not describe its model, which was made in Python or by an earlier version of "
                "Evenhand: give it for predictions, as in eh.load_run(folder, model=model)."
            )
        return self.model

    def serve(self, data: FederatedDataset) -> Run:
        """How the run serves clients that took no part in the training, as :meth:`evenhand.simulation.Run.serve`.

        Raises:
          EvenhandError: :func:`load_run` was not given the method, the model does not fit the examples, or the method
            makes the global model of what the folder does not hold, as MOCHA does.
        """
        if (algorithm := self.given[0]) is None:
            raise EvenhandError(
                f"{self.folder} does not hold the method: give it, as in eh.load_run(folder, algorithm=algorithm), for "
                "serve()."
            )
        # The folder holds no server state: that of a new run, around the trained parameters, stands in for it.
        server = algorithm.init(self.params, len(self.recorded.client_ids))
        if not _are_close(algorithm.global_params(server), self.params):
            raise EvenhandError(
                f"{self.folder} has too little of {algorithm.name or 'the method'} to serve new clients: its global "
                "model is made of what the server keeps of each client. Train it again, and call serve() of that run."
            )
        job = Job(algorithm, data, rounds=0, seed=self.seed, untrained=self.untrained)
        served = serve_newcomers(job, server, self.form)
        return Run(
            algorithm=algorithm,
            seed=self.seed,
            history=self.history,
            per_round=self.per_round,
            info=self.info,
            untrained=self.untrained,
            training=Training(len(self.recorded.client_ids), self.privacy),
            **served,
        )

    def view(self, title: str | None = None) -> RunView:
        """What reports and figures show; ``title``: in place of the method's name."""
        return self.shown if title is None else self.shown._replace(title=title)

    def report(self, path: str | Path, title: str | None = None) -> Path:
        """Writes one self-contained HTML page about the run and returns its path."""
        return write_report(path, [self.view(title)])

    def _by_class(self, split: str) -> Mapping[str, NDArray] | None:
        # Folders of earlier versions have this of each client, but not the classes themselves.
        return super()._by_class(split) or self.shown.classes.get(split)

    @property
    def _like(self) -> Params:
        """The structure of the parameters, without the time that making them would take."""
        assert self.model is not None
        like = jax.eval_shape(self.model.init, jax.random.key(0))
        return like if self.level is None else (like,) * len(self.info["levels"])


def _are_close(params: Params, others: Params) -> bool:
    """Whether two models are the same up to rounding."""
    if jax.tree.structure(params) != jax.tree.structure(others):
        return False
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True)
    return all(
        np.shape(a) == np.shape(b)
        and np.allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), equal_nan=True)
        for a, b in pairs
    )


# --- from the files -------------------------------------------------------------------------------------------


def _view(
    folder: Path, config: dict[str, Any], summary: dict[str, Any], condition: files.Condition
) -> RunView:
    """What reports show of a run, from the texts in its folder."""
    history = files.read_metrics(folder, condition.length)
    view = read_clients_csv(folder / files.CLIENTS)
    # Shown as settings, options without effect would make runs look different that are the same.
    unused = {name for name in config.get("without_effect") or [] if isinstance(name, str)}
    options = {name: value for name, value in config["options"].items() if name not in unused}
    facts: dict[str, Any] = {
        "title": config["method"].removesuffix("()"),
        "history": history,
        "info": _info(folder, config, summary),
        "config": {"method": config["method"], **options},
        "findings": _findings(folder / files.SUMMARY, summary.get("findings", [])),
    }
    unseen = None if view.unseen is None else view.unseen._replace(**facts)
    return view._replace(**facts, unseen=unseen)


def _exact(view: RunView, arrays: Arrays) -> RunView:
    """The view with the numbers of ``results.npz``, which ``clients.csv`` rounds to nine digits."""
    evaluated = arrays.get("evaluated", np.arange(len(arrays["last_round"])))
    ids, malicious = client_ids(arrays), arrays["malicious"][evaluated]
    clients, cells = _by_split(arrays, "clients"), _classes(arrays)
    # Sizes, ids and last rounds are of all clients; the metrics already are of the evaluated ones alone.
    return view._replace(
        history=unpacked(arrays, "history"),
        sizes={split: unpacked(arrays, "sizes")[split][evaluated] for split in view.sizes},
        client_ids=tuple(ids[k] for k in evaluated),
        clients={split: clients[split] for split in view.clients},
        classes={split: class_columns(cells[split], len(evaluated)) for split in view.classes},
        malicious=malicious if arrays["malicious"].any() else None,
        last_round=arrays["last_round"][evaluated],
        availability=arrays["availability"][evaluated] if "availability" in arrays else None,
    )


def _arrays_of(view: RunView) -> dict[str, NDArray]:
    """What a folder without ``results.npz`` has of its arrays."""
    count = len(view.client_ids)
    return packed(
        view.client_ids,
        {
            "history": view.history,
            "clients": view.clients,
            "sizes": view.sizes,
            "malicious": np.zeros(count, bool) if view.malicious is None else view.malicious,
            "last_round": np.zeros(count, np.int64) if view.last_round is None else view.last_round,
            **({} if view.availability is None else {"availability": view.availability}),
        },
    )


def _by_split(arrays: Arrays, name: str) -> dict[str, dict[str, NDArray]]:
    splits = dict.fromkeys(key.split("/")[0] for key in unpacked(arrays, name))
    return {split: unpacked(arrays, name, split) for split in splits}


def _classes(arrays: Arrays) -> dict[str, ClassMetrics]:
    return {split: ClassMetrics(**cells) for split, cells in _by_split(arrays, "classes").items()}


def _nested(arrays: Arrays) -> Params:
    """Arrays in dicts by the parts of their names; a single array without a name alone."""
    # write_params gives this name to a model that is one array.
    if set(arrays) == {"params"}:
        return jnp.asarray(arrays["params"])
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *outer, last = name.split("/")
        place = tree
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = jnp.asarray(array)
    return tree


def _on_device(params: Params) -> Params:
    return jax.tree.map(jnp.asarray, params)


def _account(path: Path, value: Any) -> Account | None:
    """What ``summary.json`` says the run has spent; None: nothing, or an earlier version did not record it."""
    if value is None:
        return None
    try:
        parts: dict[str, Any] = {
            name: tuple(cast(list[Any], part)) if isinstance(part, list) else part
            for name, part in value.items()
        }
        # JSON has no infinity, and gets null for it; an epsilon that is missing is an error.
        parts["epsilon"] = float("inf") if value["epsilon"] is None else float(value["epsilon"])
        parts["releases"] = tuple(Release(**release) for release in value["releases"])
        return Account(**parts)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise foreign(path, "account") from None


_SHOWN = (
    *("rounds", "clients", "by_class", "privacy", "constant", "base_rate", "adapts", "backdoor"),
    "private_metrics",
    *BESIDE_INFO,
)
"""What reports show of ``summary.json`` as it is; earlier versions left some of it out."""


def _info(folder: Path, config: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    command = f"evenhand run --config {quoted(folder / files.CONFIG)}"
    return {
        **{name: summary.get(name) for name in _SHOWN},
        "method": config["method"].partition("(")[0],
        "data": config["data"]["name"],
        "client_column": config["data"].get("client_column", ""),
        "seed": config["options"]["seed"],
        "fingerprint": config["data"]["fingerprint"],
        "levels": files.dict_in(summary, "info").get("levels"),
        "diagnostics": files.dict_in(summary, "info").get("diagnostics"),
        "metrics": {name: str(reason) for name, reason in files.dict_in(summary, "metrics").items()},
        "kept": files.dict_in(summary, "kept").get("words"),
        "headline": config["options"].get("headline"),
        "command": None if SAVED_BY in config else command,
        "versions": config["versions"],
    }


def _findings(path: Path, listed: Any) -> tuple[Finding, ...]:
    """The recorded findings; none in a folder of a version that looked for none."""
    try:
        return tuple(
            Finding(entry["kind"], str(entry["sentence"]), str(entry.get("split", ""))) for entry in listed
        )
    except (AttributeError, KeyError, TypeError):
        raise foreign(path, "findings") from None


_CONFIG = {
    **dict.fromkeys(("options", "data", "versions"), (dict,)),
    **dict.fromkeys(("method", "data.name", "data.fingerprint", "versions.*"), (str,)),
    "options.seed": (int,),
    "options.headline": (str, NoneType),
    "data.client_column": (str, NoneType),  # earlier versions did not say
    "without_effect": (list, NoneType),  # earlier versions did not say
}
_SUMMARY = {
    **dict.fromkeys(("rounds", "cohort"), (int,)),
    "clients": (int, NoneType),
    "interrupted": (bool,),
    "seconds": (dict,),
    "seconds.*": (int, float),
    **dict.fromkeys(("examples_per_second", "padded"), (int, float, NoneType)),
    **dict.fromkeys(
        ("by_class", "communication", "privacy", "info", "account", "kept", "private_metrics"),
        (dict, NoneType),
    ),
    **dict.fromkeys(("model", "untrained"), (str, NoneType)),
    **dict.fromkeys(("personal", "adapts", "base_rate"), (bool, NoneType)),
}
"""What these files must hold, and of which type; ``*`` stands for every name."""


def _checked(path: Path, content: dict[str, Any], expected: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """``content``, once its values are checked to have the expected types."""
    for name, kinds in expected.items():
        outer, _, inner = name.rpartition(".")
        within = content[outer] if outer else content
        for value in within.values() if inner == "*" else [within.get(inner)]:
            # Not isinstance(), for which a bool is an int.
            if type(value) not in kinds:
                raise foreign(path, f"{name} is {value!r:.40}")
    return content
