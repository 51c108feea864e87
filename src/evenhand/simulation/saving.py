"""A run written into a folder: what the command line writes as a run goes, and what ``run.save`` writes at once."""

from __future__ import annotations

import ast
import math
import platform
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast, get_args

import jax
import numpy as np

from evenhand import models, records
from evenhand._version import __version__
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError
from evenhand.models import losses
from evenhand.report import (
    RunView,
    among,
    attendance,
    covered,
    honest,
    levels_summary,
    statistics,
    write_clients_csv,
)
from evenhand.simulation import folder as files
from evenhand.simulation.folder import Arrays, NDArray
from evenhand.simulation.results import Results, Who
from evenhand.types import Model

if TYPE_CHECKING:
    # As a type alone: it imports this module for its method save().
    from evenhand.simulation import Run

# What other packages take; the other names are for this package.
__all__ = ["SAVED_BY", "configuration", "save", "with_history", "write_results", "write_summary"]


_MOST_GROUPS = 10_000
"""Groups whose numbers ``summary.json`` lists."""


# --- a whole folder at once -----------------------------------------------------------------------------------


def save(
    run: Run,
    folder: Path,
    *,
    overwrite: bool,
    unseen: FederatedDataset | None,
    personal: bool = True,
    about: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Writes a complete run folder in one step; for the arguments see :meth:`evenhand.simulation.Run.save`.

    ``personal`` says whether personal models are at hand, and ``about`` what the summary says besides.
    """
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
    if foreign := sorted(there - files.OWN) if files.CONFIG in there else sorted(there):
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
        written = write_results(part, run, unseen=unseen, personal=personal and run.has_personal_models)
        about = {**written, **about}
        model = run.algorithm.client_model
        other = described(model.name)
        # A name describes a model if both make the same outputs by the same computation.
        if other is None or _computation(model, run.data) != _computation(other, run.data):
            about["model"] = ""  # a name that has been kept by a changed model describes another one
        write_summary(part, run, rounds=run.info["rounds"], about=about, interrupted=False)
        files.seal(part)  # last, so that the checksums vouch for files that are complete


SAVED_BY = "saved_by"
"""In ``config.json``: that no command made the run, and so none continues or repeats it."""


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
    folder: Path, run: Run, *, unseen: FederatedDataset | None, personal: bool
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
        "model": run.algorithm.client_model.name,
        "personal": run.has_personal_models,
        "untrained": run.untrained,
        "by_class": view.info["by_class"],
        "constant": view.info.get("constant"),
        "base_rate": view.info["base_rate"],
        "metrics": view.info["metrics"],
        "adapts": view.info["adapts"],
        "backdoor": view.info["backdoor"],
        "findings": [finding._asdict() for finding in view.findings],
    }
    seen = honest(view)
    about["covers"] = {split: covered([seen], split).text for split in view.clients}
    parts = {"": seen}
    if view.malicious is not None:
        parts |= {f"_{group}": among(view, group) for group in get_args(Who)}
    if view.unseen is not None:
        parts["_unseen"] = view.unseen
    if run.level is not None:
        about["levels"] = levels_summary(seen)
        about |= {} if view.unseen is None else {"levels_unseen": levels_summary(view.unseen)}
    if view.availability is not None:
        about["availability"] = attendance(seen)
    for split in view.clients:
        for ending, part in parts.items():
            if split in part.clients:  # of the unseen clients, none may have examples in it
                about[split + ending] = {name: statistics(part, split, name) for name in part.clients[split]}
    return about


BESIDE_INFO = ("cohort", "communication", "seconds", "examples_per_second", "padded")
"""What ``summary.json`` has of ``run.info`` at its top."""


def write_summary(
    folder: Path, run: Run, *, rounds: int, about: Mapping[str, Any], interrupted: bool
) -> None:
    """Writes ``summary.json``: how the run ended, and ``about`` the round that its results describe."""
    summary: dict[str, Any] = {
        "rounds": int(run.history["round"][-1]),
        "rounds_asked": rounds,
        **{name: run.info[name] for name in BESIDE_INFO},
        "clients": run.data.num_clients,
        "interrupted": interrupted,
        "last": {name: values[-1] for name, values in run.history.items()},
        "privacy": None,
        "account": None,
        "info": {name: value for name, value in run.info.items() if name not in BESIDE_INFO},
        **about,
    }
    # Of more groups, clients.csv alone has the numbers: a reader refuses JSON that is so long.
    if run.algorithm.pooled is not None and run.data.num_clients <= _MOST_GROUPS:
        summary["groups"] = by_group(run.view())
    if (account := run.privacy) is not None:
        if about.get("kept") is not None:
            chosen = "the choice of the round that is kept, by what the clients measured"
            account = account._replace(unprotected=(*account.unprotected, chosen))
        releases = [release._asdict() for release in account.releases]
        summary |= {"privacy": account.in_words(), "account": {**account._asdict(), "releases": releases}}
    with records.writing(folder / files.SUMMARY):
        records.write_text(folder / files.SUMMARY, records.json_text(summary))


def by_group(view: RunView) -> dict[str, dict[str, dict[str, float]]]:
    """Group -> split -> metric -> number, of a method that trains on the examples of all groups together."""
    return {
        group: {
            split: {name: float(values[k]) for name, values in metrics.items()}
            for split, metrics in view.clients.items()
        }
        for k, group in enumerate(view.client_ids)
    }


def measurements(run: Results) -> dict[str, NDArray]:
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
    if run.evaluated is not None:
        tree["evaluated"] = run.evaluated
    if run.level is not None:
        tree["level"] = run.level
    if len(run.availability):
        tree["availability"] = run.availability
    return packed(run.facts.client_ids, tree)


def with_history(arrays: Arrays, run: Results) -> dict[str, NDArray]:
    """The arrays of an earlier round, with the history of all rounds since."""
    by_round = _flat({"history": run.history, "per_round": run.per_round})
    return {name: array for name, array in arrays.items() if name not in by_round} | by_round


def packed(ids: Sequence[str], tree: Mapping[str, Any]) -> dict[str, NDArray]:
    """The arrays of a tree under slash-joined names, and the clients' ids; :func:`unpacked` is the inverse."""
    names = [name.encode("utf-8", "surrogatepass") for name in ids]
    # Texts of unequal lengths as one array of bytes: an array of texts is as wide as its longest.
    lengths = np.array([*map(len, names)], np.int64)
    text = {"bytes": np.frombuffer(b"".join(names), np.uint8), "lengths": lengths}
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
_LINEAR = (models.linear_regression, models.softmax_regression, models.standardized, models.svm)
_NETWORKS = (models.cnn_cifar, models.cnn_femnist, models.cnn_femnist_dropout, models.lstm, models.mlp)
_SEQUENCES = (models.gru, models.transformer)
_IMAGES = (models.cnn_batch_norm, models.lenet, models.resnet20, models.resnet32)
_FACTORS = (models.autoencoder, models.matrix_factorisation, models.pca)
_FACTORIES: Mapping[str, Callable[..., Any]] = {
    factory.__name__: factory for factory in (*_LINEAR, *_NETWORKS, *_SEQUENCES, *_IMAGES, *_FACTORS)
}
_MADE_LOSSES: Mapping[str, Callable[..., losses.Loss]] = {
    factory.__name__: factory for factory in (losses.focal, losses.generalized_cross_entropy, losses.huber)
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
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FACTORIES):
        raise ValueError("no call of a factory")
    places = [_made(arg) if isinstance(arg, ast.Call) else ast.literal_eval(arg) for arg in node.args]
    nodes = {keyword.arg or "": keyword.value for keyword in node.keywords}
    loss = nodes.pop("loss", None)
    model = _FACTORIES[node.func.id](*places, **{name: _constant(value) for name, value in nodes.items()})
    return model if loss is None else models.with_loss(model, _loss(loss))


def _loss(node: ast.expr) -> losses.LossLike:
    """A loss of the library, which a call makes or a name stands for."""
    if isinstance(node, ast.Name):
        return losses.resolve(cast(losses.LossName, node.id))
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _MADE_LOSSES):
        raise ValueError("no call of a factory")
    return _MADE_LOSSES[node.func.id](**{word.arg or "": _constant(word.value) for word in node.keywords})


def _constant(node: ast.expr) -> Any:
    return math.inf if isinstance(node, ast.Name) and node.id == "inf" else ast.literal_eval(node)


def _computation(model: Model, data: FederatedDataset) -> str:
    params = jax.eval_shape(model.init, jax.random.key(0))
    # Addresses in memory differ from one function to the next.
    return re.sub(r"0x[0-9a-f]+", "", str(jax.make_jaxpr(model.apply)(params, data.train.x[:1])))
