"""The data that a run or a study trains on: the options that choose them, and options that have no effect on them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, get_args

import numpy as np
from tyro.conf import arg

from evenhand import data as federated
from evenhand.cli._arguments import changed, typed
from evenhand.data import Features, FederatedDataset, Fill
from evenhand.data.loaders import NAMES, NewRows, new_rows
from evenhand.errors import EvenhandError, whole_number

# --- the options --------------------------------------------------------------------------------------------


_LI, _LECUN = "Li et al., MLSys 2020", "LeCun et al., 1998"

SOURCES = (
    ("digits", "1,797 real handwritten digits (8 × 8), spread by Dirichlet(alpha).", "scikit-learn"),
    ("mnist", "70,000 handwritten digits (28 × 28), downloaded once.", _LECUN),
    ("fashion-mnist", "70,000 pictures of clothes (28 × 28), downloaded once.", "Xiao et al., 2017"),
    ("synthetic:A,B", "Synthetic(α, β): each client labels Gaussian examples by its own model.", _LI),
    ("synthetic:iid", "The same with one model and one distribution for all clients.", _LI),
    ("FOLDER", "LEAF: train/*.json and test/*.json, or one folder of JSON files.", "Caldas et al., 2018"),
    (
        "FILE.csv",
        "A table with client columns, a label column and features; also .tsv, .jsonl, .parquet.",
        "",
    ),
    ("FILE.data", "The same without a header, whose columns are called 1, 2, 3, ...", ""),
    ("FILE.npz", "Arrays x, y and client.", ""),
    ("*-ubyte[.gz]", "IDX images and labels, spread by Dirichlet(alpha).", _LECUN),
)
"""Name, what it is, source."""

_COLUMNS = ("features", "drop", "categorical", "weight_column")
_FOR_TABLES = (*_COLUMNS, "fill", "standardize", "standardize_target", "drop_empty", "na")
"""Options that only tables have."""
_SYNTHETIC_CLIENTS = 30
_LARGE_TARGETS = 100.0
"""Standard deviation of real targets above which the usual step sizes diverge."""
_ALL, _NONE = "(default: all others)", "(default: none)"
_FILLS, _REFUSED = f"{{{','.join(get_args(Fill))}}}", "(default: empty cells are refused)"


@dataclass(frozen=True)
class DataOptions:
    """What to train on, and how it is spread over clients."""

    data: str = "digits"
    """digits, mnist, fashion-mnist, synthetic:ALPHA,BETA, synthetic:iid, or a path: `evenhand list data`"""
    client_column: str = "client"
    """the column (or .npz array) of client ids; A,B: a client for each combination of two columns"""
    label_column: str = "label"
    """the column (or .npz array) to predict; all other columns are features"""
    weight_column: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: one each)")] = None
    """tables: the column with the number of examples that a row stands for, a whole number"""
    features_array: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: x)")] = None
    """the .npz array of features"""
    features: Annotated[str | None, arg(metavar="A,B,C", help_behavior_hint=_ALL)] = None
    """tables: the columns to learn from; put a name with a comma in double quotes"""
    drop: Annotated[str | None, arg(metavar="A,B,C", help_behavior_hint=_NONE)] = None
    """tables: columns to leave out"""
    categorical: Annotated[str | None, arg(metavar="A,B,C", help_behavior_hint=_NONE)] = None
    """columns whose numbers are categories, such as codes of regions; or the label, if its numbers are classes"""
    fill: Annotated[Fill | None, arg(metavar=_FILLS, help_behavior_hint=_REFUSED)] = None
    """tables: how to fill missing feature values; with mean or median, missing text becomes a separate category"""
    standardize: bool = True
    """tables: give numbers mean 0 and standard deviation 1 over the training rows; otherwise leave them unchanged"""
    standardize_target: bool = True
    """tables with --regression: train on standardised targets; losses and errors stay in the targets' units"""
    drop_empty: bool = False
    """tables: drop rows without a label or a client, and print how many"""
    na: Annotated[str | None, arg(metavar="A,B,C", help_behavior_hint=_NONE)] = None
    """tables: further spellings of an empty cell, such as '?,-999'"""
    regression: bool = False
    """labels are real numbers, not classes"""
    text: bool = False
    """LEAF only: the examples are text, whose characters become tokens (Shakespeare)"""
    clients: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: from the data)")] = None
    """number of clients (for data without client ids)"""
    alpha: float = 0.5
    """Dirichlet concentration of classes (for data without client ids); smaller values make clients differ more"""
    test_fraction: float = 0.2
    """share of each client's examples kept for testing (for data without a test part)"""
    valid_fraction: float = 0.0
    """share of each client's examples kept for validation, to choose settings or rounds by"""
    data_seed: int = 0
    """seed of partition, split and synthetic examples; --seed does not change the data"""

    def load(self) -> FederatedDataset:
        """The data set.

        Raises:
          EvenhandError: there is no such data, or it is malformed.
        """
        whole_number("data_seed", self.data_seed, 0, 2**32 - 1)
        kind, _, parameters = self.data.partition(":")
        if kind == "synthetic":
            self._check_no_table()
            return self._synthetic(parameters)
        client = _names("--client-column", self.client_column)
        return federated.load(
            self.data,
            client=client[0] if len(client) == 1 else client,
            label=self.label_column,
            features_array=self.features_array,
            features=None if self.features is None else _names("--features", self.features),
            drop=_names("--drop", self.drop or ""),
            categorical=_names("--categorical", self.categorical or ""),
            fill=self.fill,
            standardize=self.standardize,
            standardize_target=self.standardize_target,
            drop_empty=self.drop_empty,
            na=_names("--na", self.na or ""),
            weight=self.weight_column,
            regression=self.regression,
            test_fraction=self.test_fraction,
            valid_fraction=self.valid_fraction,
            seed=self.data_seed,
            clients=self.clients,
            alpha=self.alpha,
            encode=federated.encode_characters if self.text else None,
        )

    def new_rows(self, path: Path, features: Features | None) -> NewRows:
        """Rows for a trained model to predict, read as the data that it was trained on."""
        return new_rows(
            path,
            features=features,
            client=_names("--client-column", self.client_column),
            label=self.label_column,
            features_array=self.features_array,
        )

    def rooted(self) -> DataOptions:
        """The same with an absolute path, so that it means the same from everywhere."""
        path = Path(self.data)
        return self if self.data in NAMES or not path.exists() else replace(self, data=str(path.resolve()))

    def _check_no_table(self) -> None:
        for name, value in changed(self).items():
            if name in _FOR_TABLES:
                option = typed(name, value)[0]
                raise EvenhandError(
                    f"{option} is for tables, and --data {self.data} is not one: leave it out."
                )

    def _synthetic(self, parameters: str) -> FederatedDataset:
        iid = parameters == "iid"
        try:
            alpha, beta = (1.0, 1.0) if iid or not parameters else map(float, parameters.split(","))
        except ValueError:
            raise EvenhandError(
                f"--data {self.data} is not understood: write synthetic:ALPHA,BETA, e.g. synthetic:1,1, "
                "or synthetic:iid."
            ) from None
        return federated.synthetic(
            alpha,
            beta,
            clients=_SYNTHETIC_CLIENTS if self.clients is None else self.clients,
            seed=self.data_seed,
            iid=iid,
            test_fraction=self.test_fraction,
            valid_fraction=self.valid_fraction,
        )


def remarks(data: FederatedDataset) -> list[str]:
    """What to know about a table before training on it."""
    if data.features is None:
        return list(data.notes)
    sentences = [
        data.features.describe()
        + (" --no-standardize leaves numbers as they are." if data.features.scaled else "")
    ]
    sentences += data.notes
    if data.num_classes is None and data.features.target is None:
        deviation = float(np.std(data.train.y, dtype=np.float64))
        if deviation > _LARGE_TARGETS:
            sentences.append(
                f"The targets have a deviation of {deviation:.3g} and are not standardised: leave "
                "--no-standardize-target out, or choose a very small --lr."
            )
    return sentences


def _names(option: str, text: str) -> list[str]:
    """``a,"b, c"`` as the two names it lists."""
    try:
        return [name.strip() for name in next(csv.reader([text], skipinitialspace=True, strict=True), [])]
    except csv.Error:
        raise EvenhandError(
            f"{option} {text} is not a list of names: write A,B,C, and close all quotes."
        ) from None


# --- options that have no effect on the data at hand, each reported in one line -----------------------------


class _Case(NamedTuple):
    """A run before it starts.

    Attributes:
      options: name -> value, for those that have one.
      name: the data's name, as given.
      clients: how many there are.
      cohort: how many of them take part in a round.
      kind: "built in", "synthetic", "table", "LEAF" or "pictures".
      spread: whether the examples were spread over clients, rather than naming their client.
      tested: whether the data come with a test part.
      real: whether the labels are real numbers.
    """

    options: Mapping[str, Any]
    name: str
    clients: int
    cohort: int
    kind: str
    spread: bool
    tested: bool
    real: bool


_Reason: TypeAlias = Callable[[_Case], str | None]


def idle(options: Mapping[str, Any], defaults: Mapping[str, Any], data: FederatedDataset) -> list[str]:
    """One sentence for each option that was set and has no effect on ``data``.

    Args:
      options: name -> value, for those that have one.
      defaults: the same for a run without options.
      data: what the run is about to train on.
    """
    case = _case(options, data)
    sentences: list[str] = []
    for name, reason in _REASONS.items():
        value = options.get(name)
        if value != defaults.get(name) and (why := reason(case)):
            sentences.append(f"{' '.join(typed(name, value))} has no effect: {why}.")
    return sentences


def without_effect(options: Mapping[str, Any], data: FederatedDataset) -> list[str]:
    """The options, set or not, that have no effect on ``data``: a page need not list them."""
    case = _case(options, data)
    return [name for name, reason in _REASONS.items() if name in options and reason(case)]


def check_labels(data: DataOptions) -> None:
    """Checks that ``--regression`` is not given for data whose labels are known to be classes.

    Raises:
      EvenhandError: it is.
    """
    if data.regression and _kind(data.data) in ("built in", "synthetic"):
        raise EvenhandError(
            f"--regression is for labels that are real numbers, but those of {data.data} are classes: leave it out, "
            "or name other data with --data."
        )


def _kind(name: str) -> str:
    path = Path(name)
    if name in NAMES:
        return "built in"
    if name.partition(":")[0] == "synthetic":
        return "synthetic"
    if "ubyte" in path.name or (path.is_dir() and any("ubyte" in entry.name for entry in path.iterdir())):
        return "pictures"
    return "LEAF" if path.is_dir() or path.suffix.lower() == ".json" else "table"


def _case(options: Mapping[str, Any], data: FederatedDataset) -> _Case:
    name, cohort, clients = str(options["data"]), options["cohort"], data.num_clients
    kind = _kind(name)
    # A table names its clients, unless it has no column of them and --clients says how many there are.
    spread = kind in ("built in", "pictures") or (kind == "table" and options.get("clients") == clients)
    return _Case(
        options,
        name,
        clients,
        clients if cohort == "all" else min(cohort, clients),
        kind,
        spread,
        _has_test_part(name, kind),
        data.num_classes is None,
    )


def _has_test_part(name: str, kind: str) -> bool:
    path = Path(name)
    match kind:
        case "built in":
            return name != "digits"
        case "LEAF":
            return (path / "test").is_dir()
        case "pictures":
            return path.is_dir() and any(entry.name.startswith("t10k") for entry in path.iterdir())
        case _:
            if path.suffix != ".npz":
                return False
            with np.load(path) as arrays:
                return "x_test" in arrays.files


def _columns(case: _Case) -> str | None:
    return None if case.kind == "table" else f"{case.name} has no columns to choose from"


def _alpha(case: _Case) -> str | None:
    if case.kind == "synthetic":
        return "synthetic data take it from their name, --data synthetic:ALPHA,BETA"
    if not case.spread:
        return f"{case.name} names the client of each example"
    return f"examples with real-valued labels, as in {case.name}, are spread evenly" if case.real else None


def _clients(case: _Case) -> str | None:
    if case.options["clients"] == case.clients:
        return None
    return f"{case.name} names the client of each example, which makes {case.clients} clients"


def _data_seed(case: _Case) -> str | None:
    if case.spread or not case.tested:
        return None
    return f"{case.name} comes with clients and a test part, so nothing is drawn"


def _no_more(name: str, role: str) -> _Reason:
    """For a number of clients that is larger than there are."""

    def reason(case: _Case) -> str | None:
        asked = case.options[name]
        more = isinstance(asked, int) and asked > case.clients
        return f"there are {case.clients} clients, all of which {role}" if more else None

    return reason


def _lanes(case: _Case) -> str | None:
    return f"a round trains at most {case.cohort} clients" if case.options["lanes"] > case.cohort else None


def _stragglers(case: _Case) -> str | None:
    share = case.options["stragglers"]
    none = 0 <= share <= 1 and round(case.cohort * (1 - share)) == case.cohort
    return f"{share} of a cohort of {case.cohort} rounds to no client" if none else None


_REASONS: dict[str, _Reason] = {
    "client_column": _columns,
    "label_column": _columns,
    "standardize": lambda case: None if case.kind == "table" else f"{case.name} is not a table",
    "text": lambda case: (
        None if case.kind == "LEAF" else f"{case.name} is not LEAF data, and only those hold text"
    ),
    "clients": _clients,
    "alpha": _alpha,
    "test_fraction": lambda case: f"{case.name} comes with a test part" if case.tested else None,
    "data_seed": _data_seed,
    "standardize_target": lambda case: None if case.real else f"the labels of {case.name} are classes",
    "hidden": lambda case: None if case.options.get("model") == "mlp" else "it is for --model mlp only",
    "cohort": _no_more("cohort", "take part in each round"),
    "eval_clients": _no_more("eval_clients", "are evaluated"),
    "lanes": _lanes,
    "stragglers": _stragglers,
}
"""Option -> why it has no effect; None where it has one."""
