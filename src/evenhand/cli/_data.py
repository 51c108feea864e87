"""The data that ``evenhand run`` trains on."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, get_args

import numpy as np
from tyro.conf import arg

from evenhand import data as federated
from evenhand.data import Features, FederatedDataset, Fill
from evenhand.data.loaders import NAMES, NewRows, new_rows
from evenhand.errors import EvenhandError, whole_number

__all__ = ["SOURCES", "DataOptions", "remarks"]

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
    """tables: the column that says how many examples a row stands for, a whole number"""
    features_array: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: x)")] = None
    """the .npz array of features"""
    features: Annotated[str | None, arg(metavar="A,B,C", help_behavior_hint=_ALL)] = None
    """tables: the columns to learn from; put a name that has a comma in double quotes"""
    drop: Annotated[str | None, arg(metavar="A,B,C", help_behavior_hint=_NONE)] = None
    """tables: columns to leave out"""
    categorical: Annotated[str | None, arg(metavar="A,B,C", help_behavior_hint=_NONE)] = None
    """columns whose numbers are categories, such as codes of regions; or the label, if its numbers are classes"""
    fill: Annotated[Fill | None, arg(metavar=_FILLS, help_behavior_hint=_REFUSED)] = None
    """tables: what an empty cell of a feature counts as; with mean or median, empty text is a category of its own"""
    standardize: bool = True
    """tables: give numbers mean 0 and standard deviation 1 over the training rows; else they stay as they are"""
    standardize_target: bool = True
    """tables with --regression: train on standardised targets; losses and errors stay in the targets' units"""
    drop_empty: bool = False
    """tables: drop rows without a label or a client, and say how many"""
    na: Annotated[str | None, arg(metavar="A,B,C", help_behavior_hint=_NONE)] = None
    """tables: further spellings of an empty cell, such as '?,-999'"""
    regression: bool = False
    """labels are real numbers, not classes"""
    text: bool = False
    """LEAF only: the examples are text, whose characters become tokens (Shakespeare)"""
    clients: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: from the data)")] = None
    """how many clients, where the data name none"""
    alpha: float = 0.5
    """Dirichlet concentration of classes, where the data name no clients; the smaller, the more clients differ"""
    test_fraction: float = 0.2
    """share of each client's examples kept for testing, where the data have no test part"""
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
        given = {
            "--features": self.features,
            "--drop": self.drop,
            "--categorical": self.categorical,
            "--fill": self.fill,
            "--no-standardize": not self.standardize,
            "--no-standardize-target": not self.standardize_target,
            "--drop-empty": self.drop_empty,
            "--na": self.na,
            "--weight-column": self.weight_column,
        }
        for option in (option for option, value in given.items() if value):
            raise EvenhandError(f"{option} is for tables, and --data {self.data} is not one: leave it out.")

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
    found = [
        data.features.describe()
        + (" --no-standardize leaves numbers as they are." if data.features.scaled else "")
    ]
    found += data.notes
    if data.num_classes is None and data.features.target is None:
        deviation = float(np.std(data.train.y, dtype=np.float64))
        if deviation > _LARGE_TARGETS:
            found.append(
                f"The targets have a deviation of {deviation:.3g} and are not standardised: leave "
                "--no-standardize-target out, or choose a very small --lr."
            )
    return found


def _names(option: str, text: str) -> list[str]:
    """``a,"b, c"`` as the two names it lists."""
    try:
        return [name.strip() for name in next(csv.reader([text], skipinitialspace=True, strict=True), [])]
    except csv.Error:
        raise EvenhandError(
            f"{option} {text} is not a list of names: write A,B,C, and close all quotes."
        ) from None
