"""A run written into a folder: what the command line writes as a run goes, and what ``run.save`` writes at once."""

from __future__ import annotations

import ast
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import jax
import numpy as np
import numpy.typing as npt

from evenhand import models, records
from evenhand._version import __version__
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError
from evenhand.evaluation import ClassMetrics
from evenhand.privacy import Account
from evenhand.report import RunView, among, covered, honest, statistics, write_clients_csv
from evenhand.simulation import folder as files
from evenhand.simulation.results import Facts
from evenhand.types import Algorithm, Model, Params

__all__ = [
    "BESIDE_INFO",
    "SAVED_BY",
    "client_ids",
    "configuration",
    "described",
    "measurements",
    "packed",
    "save",
    "unpacked",
    "with_history",
    "write_results",
    "write_summary",
]

NDArray = npt.NDArray[Any]
Arrays = Mapping[str, NDArray]


# --- a whole folder at once -----------------------------------------------------------------------------------


class Savable(Protocol):
    """A run, as far as its folder shows it; for the attributes see :class:`evenhand.simulation.Run`."""

    # Not Run itself, which imports this module for its method save().

    @property
    def algorithm(self) -> Algorithm: ...
    @property
    def data(self) -> FederatedDataset: ...
    @property
    def seed(self) -> int: ...
    @property
    def untrained(self) -> str: ...
    @property
    def facts(self) -> Facts: ...
    @property
    def history(self) -> Arrays: ...
    @property
    def per_round(self) -> Arrays: ...
    @property
    def info(self) -> Mapping[str, Any]: ...
    @property
    def clients(self) -> Mapping[str, Arrays]: ...
    @property
    def classes(self) -> Mapping[str, ClassMetrics]: ...
    @property
    def evaluated(self) -> NDArray | None: ...
    @property
    def malicious(self) -> NDArray: ...
    @property
    def last_round(self) -> NDArray: ...
    @property
    def params(self) -> Params: ...
    @property
    def privacy(self) -> Account | None: ...
    @property
    def has_personal_models(self) -> bool: ...
    @property
    def personal_clients(self) -> NDArray: ...
    def personal_models(self) -> Iterator[tuple[slice, Params]]: ...
    def view(self, *, unseen: FederatedDataset | None = None) -> RunView: ...


def save(run: Savable, folder: Path, *, overwrite: bool, unseen: FederatedDataset | None) -> None:
    """Writes a complete run folder in one step; for the arguments see :meth:`evenhand.simulation.Run.save`."""
    # A kill between the two renames of an earlier save has left that folder under another name.
    folder = records.recovered(folder)
    if folder.exists() and not folder.is_dir():
        raise EvenhandError(f"save({str(folder)!r}): it is a file: name a folder that is new or empty.")
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    if there and not overwrite:
        raise EvenhandError(
            f"save({str(folder)!r}): it is not empty: name another folder, or give overwrite=True."
        )
    # The whole folder is replaced, and what no run wrote must not go with it.
    if foreign := sorted(there - _OWN) if files.CONFIG in there else sorted(there):
        raise EvenhandError(f"{folder / foreign[0]} was not written by a run: move it away.")
    if there:
        with records.held(folder):  # refuses a folder in which another process trains
            pass
    options = {"seed": run.seed, "rounds": run.info["rounds"], "cohort": run.info["cohort"]}
    config = configuration(run.facts.method, {**options, "untrained": run.untrained}, run.data)
    with records.writing(folder), records.replacing_folder(folder) as part:
        records.write_text(part / files.CONFIG, records.json_text({**config, SAVED_BY: "Run.save"}))
        # First, for seal() takes the checksum of config.json from the list, and those of all others from the files.
        records.write_sums(part, records.sums_of(part, [files.CONFIG]))
        if run.data.features is not None:
            records.write_text(part / files.FEATURES, records.json_text(run.data.features.to_json()))
        records.write_text(part / files.METRICS, files.metrics_text(run.history))
        about = write_results(part, run, unseen=unseen, personal=run.has_personal_models)
        if not is_described(run.algorithm.model, run.data):
            about["model"] = ""  # a name that has been kept by a changed model describes another one
        write_summary(part, run, rounds=run.info["rounds"], about=about, interrupted=False)
        files.seal(part)  # last, so that the checksums vouch for files that are complete


SAVED_BY = "saved_by"
"""In ``config.json``: that no command made the run, and so none continues or repeats it."""
_OWN = {
    files.CONFIG,
    files.FEATURES,
    files.METRICS,
    files.CLIENTS,
    files.PARAMS,
    files.RESULTS,
    files.SUMMARY,
    files.REPORT,
    records.CHECKSUMS,
    files.CHECKPOINT,
    files.PERSONAL,
    files.BEST,
    records.LOCK,
}
"""What a run puts into its folder."""


def configuration(method: str, options: Mapping[str, Any], data: FederatedDataset) -> dict[str, Any]:
    """What ``config.json`` says of every run: the method, the options, the data and the versions."""
    about = {
        "method": method,
        "options": dict(options),
        "data": {
            "name": data.name,
            "clients": data.num_clients,
            "client_column": data.client_column,
            "fingerprint": data.fingerprint,
            "form": data.form.to_json(),
        },
        "versions": {
            "evenhand": __version__,
            "jax": jax.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
    return records.stamped(about)


def write_results(
    folder: Path, run: Savable, *, unseen: FederatedDataset | None, personal: bool
) -> dict[str, Any]:
    """Writes the files that describe the run's latest round, and returns what the summary says about that round."""
    view = run.view(unseen=unseen)  # once: it serves the unseen clients
    with records.writing(folder / files.CLIENTS), records.replacing(folder / files.CLIENTS) as temporary:
        write_clients_csv(temporary, view)
    files.write_params(folder / files.PARAMS, run.params)
    with records.writing(folder / files.RESULTS), records.replacing(folder / files.RESULTS) as temporary:
        records.write_arrays(temporary, measurements(run))
    # Personal models of an earlier round must not stand beside the results of this one.
    shutil.rmtree(folder / files.PERSONAL, ignore_errors=True)
    if personal:
        files.write_personal(folder, run.data.client_ids, run.personal_models(), run.personal_clients)
    # What a loaded run cannot compute, since it has neither the data nor the method.
    about: dict[str, Any] = {
        "model": run.algorithm.model.name,
        "personal": run.has_personal_models,
        "untrained": run.untrained,
        "by_class": view.info["by_class"],
        "constant": view.info.get("constant"),
        "metrics": view.info["metrics"],
        "adapts": view.info["adapts"],
        "findings": [finding._asdict() for finding in view.findings],
    }
    seen = honest(view)
    about["covers"] = {split: covered([seen], split).text for split in view.clients}
    for split, metrics in view.clients.items():
        about[split] = {metric: statistics(seen, split, metric) for metric in metrics}
        if view.malicious is not None:
            for group in ("all", "honest", "malicious"):
                part = among(view, group)
                about[f"{split}_{group}"] = {metric: statistics(part, split, metric) for metric in metrics}
        if view.unseen is not None and split in view.unseen.clients:  # none of them may have examples in it
            about[f"{split}_unseen"] = {
                metric: statistics(view.unseen, split, metric) for metric in view.unseen.clients[split]
            }
    return about


BESIDE_INFO = ("cohort", "seconds", "examples_per_second", "padded")
"""What ``summary.json`` has of ``run.info`` at its top."""


def write_summary(
    folder: Path, run: Savable, *, rounds: int, about: Mapping[str, Any], interrupted: bool
) -> None:
    """Writes ``summary.json``: how the run ended, and ``about`` the round that its results describe."""
    summary = {
        "rounds": int(run.history["round"][-1]),
        "rounds_asked": rounds,
        **{name: run.info[name] for name in BESIDE_INFO},
        "clients": run.data.num_clients,
        "interrupted": interrupted,
        "last": {name: values[-1] for name, values in run.history.items()},
        "privacy": None if run.privacy is None else run.privacy.in_words(),
        "account": None if run.privacy is None else _account(run.privacy),
        "info": {name: value for name, value in run.info.items() if name not in BESIDE_INFO},
        **about,
    }
    with records.writing(folder / files.SUMMARY):
        records.write_text(folder / files.SUMMARY, records.json_text(summary))


def _account(account: Account) -> dict[str, Any]:
    return {**account._asdict(), "releases": [release._asdict() for release in account.releases]}


def measurements(run: Savable) -> dict[str, NDArray]:
    """What ``results.npz`` holds: every measured number, bit for bit."""
    tree: dict[str, Any] = {
        "history": run.history,
        "per_round": run.per_round,
        "clients": run.clients,
        "sizes": run.facts.sizes,
        "classes": {split: cells._asdict() for split, cells in run.classes.items()},
        "malicious": run.malicious,
        "last_round": run.last_round,
    }
    evaluated = {} if run.evaluated is None else {"evaluated": run.evaluated}
    return packed(run.data.client_ids, {**tree, **evaluated})


def with_history(arrays: Arrays, run: Savable) -> dict[str, NDArray]:
    """The arrays of an earlier round, with the history of all rounds since."""
    older = {name: array for name, array in arrays.items() if name.split("/")[0] not in _BY_ROUND}
    return older | {
        name: array for name, array in measurements(run).items() if name.split("/")[0] in _BY_ROUND
    }


_BY_ROUND = {"history", "per_round"}


def packed(ids: Sequence[str], tree: Mapping[str, Any]) -> dict[str, NDArray]:
    """The arrays of a tree under slash-joined names, and the clients' ids; :func:`unpacked` is the inverse."""
    names = [name.encode("utf-8", "surrogatepass") for name in ids]
    # Texts of unequal lengths as one array of bytes: an array of texts is as wide as its longest.
    text = {
        "bytes": np.frombuffer(b"".join(names), np.uint8),
        "lengths": np.array([*map(len, names)], np.int64),
    }
    return _flat({**tree, "client_ids": text})


def client_ids(arrays: Arrays) -> tuple[str, ...]:
    """The ids of all clients, from :func:`packed` arrays."""
    text, ends = arrays["client_ids/bytes"].tobytes(), np.cumsum(arrays["client_ids/lengths"]).tolist()
    return tuple(text[a:b].decode("utf-8", "surrogatepass") for a, b in zip([0, *ends], ends, strict=False))


def _flat(tree: Mapping[str, Any]) -> dict[str, NDArray]:
    arrays: dict[str, NDArray] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            inner = _flat(cast(Mapping[str, Any], value))
            # A metric's name may hold a slash itself, or be empty.
            arrays |= {f"{name}/{rest}": array for rest, array in inner.items()}
        else:
            arrays[name] = np.asarray(value)
    return arrays


def unpacked(arrays: Arrays, *prefix: str) -> dict[str, NDArray]:
    """The arrays of a file under the names that follow a prefix."""
    start = "".join(f"{part}/" for part in prefix)
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}


# --- the model, by its name -----------------------------------------------------------------------------------

# Listed one by one, since the name comes from a file, which may call nothing else.
_FACTORIES: Mapping[str, Callable[..., Any]] = {
    factory.__name__: factory
    for factory in (
        models.cnn_cifar,
        models.cnn_femnist,
        models.cnn_femnist_dropout,
        models.linear_regression,
        models.lstm,
        models.mlp,
        models.softmax_regression,
        models.standardized,
        models.svm,
    )
}


def described(name: str) -> Model | None:
    """The model that a name such as ``"softmax_regression(features=64, classes=10)"`` describes; None if it does not.

    The name is read, not evaluated: it comes from a file.
    """
    try:
        return _made(ast.parse(name, mode="eval").body)
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):  # EvenhandError is a ValueError
        return None


def _made(node: ast.expr) -> Model:
    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in _FACTORIES:
            places = [_made(arg) if isinstance(arg, ast.Call) else ast.literal_eval(arg) for arg in args]
            words = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in keywords}
            return _FACTORIES[name](*places, **words)
        case _:
            raise ValueError("no call of a factory")


def is_described(model: Model, data: FederatedDataset) -> bool:
    """Whether the model is the one that its name describes: both make the same outputs by the same computation."""
    other = described(model.name)
    return other is not None and _computation(model, data) == _computation(other, data)


def _computation(model: Model, data: FederatedDataset) -> str:
    params = jax.eval_shape(model.init, jax.random.key(0))
    # Addresses in memory differ from one function to the next.
    return re.sub(r"0x[0-9a-f]+", "", str(jax.make_jaxpr(model.apply)(params, data.train.x[:1])))
