"""The data that a run or a study trains on: the options that choose them, and options that have no effect on them."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from tyro.conf import arg

from evenhand import data as federated
from evenhand.cli._arguments import changed, typed
from evenhand.data import Column, Features, FederatedDataset, Fill, Form, TextEncoding
from evenhand.data.loaders import PUBLISHED, NewRows, is_name, is_synthetic, new_rows, spreads
from evenhand.errors import Argument, EvenhandError, EvenhandWarning, whole_number
from evenhand.evaluation import unlabelled

NDArray = npt.NDArray[Any]

# --- the options --------------------------------------------------------------------------------------------


_LI, _LECUN = "Li et al., MLSys 2020", "LeCun et al., 1998"
_CALDAS, _TFF = "Caldas et al., 2018", "TensorFlow Federated, 2019"
_TABLE = "A table with client columns, a label column and features; also .tsv, .jsonl, .parquet."

SOURCES = (
    ("digits", "1,797 real handwritten digits (8 × 8), partitioned by Dirichlet(alpha).", "scikit-learn"),
    ("mnist", "70,000 handwritten digits (28 × 28), downloaded once.", _LECUN),
    ("fashion-mnist", "70,000 pictures of clothes (28 × 28), downloaded once.", "Xiao et al., 2017"),
    ("cifar10", "60,000 pictures (32 × 32, colour), downloaded once.", "Krizhevsky, 2009"),
    ("femnist", "749,000 handwritten characters by 3,400 writers; needs h5py.", _CALDAS),
    ("shakespeare", "Next-character prediction, one client per role of a play; needs h5py.", _CALDAS),
    (
        "stackoverflow",
        "Tags of questions, one client per user: --clients 400 reads the first 400; needs h5py.",
        _TFF,
    ),
    (
        "sent140",
        "1.6 million tweets by account; needs --vectors, --vocabulary or --buckets.",
        "Go et al., 2009",
    ),
    ("imdb", "50,000 film reviews; needs --vectors, --vocabulary or --buckets.", "Maas et al., 2011"),
    ("movielens", "100,000 film ratings by 943 users; for --model factors.", "Harper and Konstan, 2015"),
    ("omniglot", "400 tasks of five characters each (28 × 28).", "Lake et al., 2015"),
    ("synthetic:A,B", "Synthetic(α, β): each client labels Gaussian examples by its own model.", _LI),
    ("synthetic:iid", "The same with one model and one distribution for all clients.", _LI),
    ("FOLDER", "LEAF: train/*.json and test/*.json, or one folder of JSON files.", _CALDAS),
    ("FILE.csv", _TABLE, ""),
    ("FILE.data", "The same without a header; columns are called 1, 2, 3, ...", ""),
    ("FILE.npz", "Arrays x, y and client.", ""),
    ("*-ubyte[.gz]", "IDX images and labels, partitioned by Dirichlet(alpha).", _LECUN),
    ("FILE.h5", "EMNIST, Shakespeare or Stack Overflow of TensorFlow Federated; also a folder.", _CALDAS),
    (
        "FILE.libsvm",
        "LIBSVM, partitioned over --clients; or a folder with one file per client.",
        "Chang and Lin, 2011",
    ),
    ("FILE.mat", "Vehicle: cell arrays X and Y, with one cell per sensor.", "Duarte and Hu, 2004"),
    ("FILE.zip", "The files of the data sets above, as published; also .tar.gz, or a folder.", ""),
)
"""Name, what it is, source."""

_FOR_TABLES = {
    *("features", "drop", "categorical", "text_column", "weight_column"),
    *("fill", "standardize", "standardize_target", "drop_empty", "na"),
}
"""Options that only tables have."""
_READ_IN_PART = ("femnist", "shakespeare", "stackoverflow", "omniglot")
"""Data with client ids of which --clients N reads the first N."""
_LARGE_TARGETS = 100.0
"""Standard deviation of real targets above which the usual step sizes diverge."""
_ALL, _NONE = "(default: all others)", "(default: none)"
_FILLS, _REFUSED = f"{{{','.join(get_args(Fill))}}}", "(default: empty cells are refused)"


@dataclass(frozen=True)
class DataOptions:
    """The data, and how they are partitioned over clients."""

    data: str = "digits"
    """digits, mnist, fashion-mnist, cifar10, synthetic:iid, synthetic:ALPHA,BETA, or a path (`evenhand list data`)"""
    client_column: str = "client"
    """column (or .npz array) of client ids; A,B: one client per combination of two columns"""
    groups: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: column client)")] = None
    """fit only: column of groups, such as age bands, that get separate results; A,B: combinations of two columns"""
    label_column: str = "label"
    """column (or .npz array) to predict; all other columns are features"""
    weight_column: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: one each)")] = None
    """tables: column with the number of examples that a row stands for (a whole number)"""
    features_array: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: x)")] = None
    """name of the .npz array of features"""
    features: Annotated[str | None, arg(metavar="A,B,C", help_behavior_hint=_ALL)] = None
    """tables: columns to learn from; put a name that contains a comma in double quotes"""
    drop: Annotated[str | None, arg(metavar="A,B,C", help_behavior_hint=_NONE)] = None
    """tables: columns to leave out"""
    categorical: Annotated[str | None, arg(metavar="A,B,C", help_behavior_hint=_NONE)] = None
    """columns whose numbers are categories, such as region codes; also the label, if its numbers are classes"""
    text_column: Annotated[str | None, arg(metavar="A,B,C", help_behavior_hint=_NONE)] = None
    """tables: columns of free text, such as reviews; their words are hashed, or see --vocabulary and --vectors"""
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
    """LEAF only: examples are text; each character becomes a token (Shakespeare)"""
    vectors: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """text: file of word vectors in GloVe format; each word is replaced by its vector"""
    words: int | Literal["mean"] = 25
    """with --vectors: number of words read per text; mean: average the vectors of all words of a text"""
    vocabulary: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: none)")] = None
    """text: bag of words, over this many of the most frequent words of all training texts"""
    buckets: Annotated[
        int | None, arg(metavar="INT", help_behavior_hint="(default: 1024 for --text-column)")
    ] = None
    """text: hash words into this many inputs; no client sees the words of others"""
    clients: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: from the data)")] = None
    """number of clients (for data without client ids); HDF5: read only this many, the first ones"""
    min_examples: int = 1
    """keep only clients with at least this many examples, training and test examples together"""
    clients_from: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="(default: all)")] = None
    """keep only the clients listed in this file, one id per line"""
    alpha: float = 0.5
    """Dirichlet concentration of classes (for data without client ids); smaller values make clients differ more"""
    test_fraction: float = 0.2
    """share of each client's examples kept for testing (for data without a test part)"""
    valid_fraction: float = 0.0
    """share of each client's examples kept for validation (to choose settings or rounds)"""
    data_seed: int = 0
    """seed of partition, split and synthetic examples; --seed does not change the data"""

    def pooled(self) -> DataOptions:
        """The same for a method that trains on all examples together: groups in the place of clients, or none.

        Raises:
          EvenhandError: clients are asked for.
        """
        if self.groups is None:
            is_asked = self.client_column != "client" or self.clients is not None
            has_clients = _kind(self.data) in ("synthetic", "LEAF", "clients")
            return self if is_asked or has_clients else replace(self, clients=1)
        if self.client_column not in ("client", self.groups):
            raise EvenhandError(
                f"--client-column {self.client_column} --groups {self.groups}: groups take the place of clients: give "
                "one of them."
            )
        return replace(self, client_column=self.groups)

    def load(self, *, quiet: bool = False) -> FederatedDataset:
        """The data set; ``quiet``: without warnings about it.

        Raises:
          EvenhandError: there is no such data, or it is malformed.
        """
        whole_number("data_seed", self.data_seed, 0, 2**32 - 1)
        published = PUBLISHED.get(self.data)
        are_classes = _kind(self.data) == "synthetic" or (
            is_name(self.data) and not (published is not None and published.has_reals)
        )
        if self.regression and are_classes:
            raise EvenhandError(
                f"--regression is for labels that are real numbers, but those of {self.data} are classes: leave it "
                "out, or name other data with --data."
            )
        if self.groups not in (None, self.client_column):
            raise EvenhandError(
                f"--groups {self.groups} is for fit(...), which trains on all examples together: for other methods "
                "name the clients with --client-column."
            )
        tabular = [typed(*pair)[0] for pair in changed(self).items() if pair[0] in _FOR_TABLES]
        if tabular and is_synthetic(self.data):
            raise EvenhandError(
                f"{tabular[0]} is for tables, and --data {self.data} is not one: leave it out."
            )
        source = str(Path(self.data))
        try:
            with warnings.catch_warnings():
                if quiet:
                    warnings.simplefilter("ignore", EvenhandWarning)
                data = self._kept(self._loaded())
                notes = [_of_groups(note, source) for note in data.notes]
                return data if self.groups is None else replace(data, notes=tuple(map(str, notes)))
        except EvenhandError as error:
            if self.groups is None:
                raise
            parts = [_of_groups(part, source) for part in error.parts]
            first, cut, _ = str(parts[0]).partition(": say")
            if not cut or "clients" not in [part.name for part in error.parts if isinstance(part, Argument)]:
                raise EvenhandError(*parts) from None
            # The column that is missing was given as one of groups.
            raise EvenhandError(f"{first}: say which it is with --groups NAME.") from None

    def _kept(self, data: FederatedDataset) -> FederatedDataset:
        """The data of the clients that the options keep."""
        if self.clients_from is not None:
            try:
                lines = Path(self.clients_from).read_text(encoding="utf-8-sig").splitlines()
            except (OSError, UnicodeDecodeError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
                fault = f"--clients-from {self.clients_from} cannot be read ({why})"
                raise EvenhandError(f"{fault}: name a file with one client id in each line.") from None
            data = data.select(line for line in lines if line.strip())
        return data.min_examples(self.min_examples) if self.min_examples > 1 else data

    def encoder(self) -> Callable[[Any], Any] | None:
        """What turns a text into numbers; None: nothing, or words that are counted or hashed."""
        ways = {
            "--text": self.text,
            "--vectors": self.vectors,
            "--vocabulary": self.vocabulary,
            "--buckets": self.buckets,
        }
        if self.text and self.text_column is not None:
            raise EvenhandError(
                "--text reads LEAF's texts as characters: leave it out, as --text-column names columns of free text."
            )
        given = [option for option, value in ways.items() if value not in (None, False)]
        if len(given) > 1:
            raise EvenhandError(f"{given[0]} and {given[1]} exclude each other: give one of them.")
        if self.text:
            return federated.encode_characters
        if self.vectors is None:
            return None
        vectors = federated.load_vectors(self.vectors)
        if self.words == "mean":
            return federated.encode_mean(vectors)
        return federated.encode_vectors(vectors, length=whole_number("words", self.words, 1))

    def _loaded(self) -> FederatedDataset:
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
            text=_names("--text-column", self.text_column or ""),
            encode=self.encoder(),
            vocabulary=self.vocabulary,
            buckets=self.buckets,
            # Clients are kept by name before they are counted.
            min_examples=whole_number("min_examples", self.min_examples, 1)
            if self.clients_from is None
            else 1,
        )

    def counts(self, data: FederatedDataset) -> bool:
        """Whether ``--clients`` decides how many clients these loaded data have, which have no client ids."""
        kind = _kind(self.data)
        is_drawn = kind in ("built in", "pictures", "synthetic") or self.data in _READ_IN_PART
        is_spread = kind == "table" and not data.client_column and self.clients == data.num_clients
        return is_drawn or is_spread

    def text_columns(self) -> list[Column]:
        """The columns of free text, as every client alone encodes them."""
        encode = self.encoder()
        text = (
            TextEncoding.hashed(self.buckets) if encode is None else TextEncoding.of(encode, "[data] vectors")
        )
        return [Column(name, "text", text=text) for name in _names("--text-column", self.text_column or "")]

    def new_rows(self, path: Path, features: Features | None) -> NewRows:
        """Rows for a trained model to predict, read as the data that it was trained on."""
        return new_rows(
            path,
            features=features,
            client=_names("--client-column", self.client_column),
            label=self.label_column,
            features_array=self.features_array,
            # Word vectors are read again, as a run folder does not hold them.
            encode=None if self.vectors is None or self.text_column is None else self.encoder(),
        )

    def labelled_rows(self, data: FederatedDataset, path: Path) -> tuple[NDArray, NDArray]:
        """``(x, y)`` of the examples in a file, read as ``data`` were; each must have a label that they have.

        Raises:
          EvenhandError: they cannot be read, or differ in form from the data.
        """
        rows, form = self.new_rows(path, data.features), data.form
        x = unlabelled(rows.x, form.shape, form.dtype, str(path))
        y, has_label = labels_of(rows, form)
        if not len(x):
            raise EvenhandError(f"{path} has no rows: add at least one.")
        if len(has_label) != len(x):
            raise EvenhandError(f"{path} has no label column {self.label_column!r:.60}: add it.")
        if not has_label.all():
            row = int(np.argmin(has_label))
            label = "" if rows.labels is None else str(rows.labels[row])
            raise EvenhandError(
                f"{path}, example {row + 1}: no example of {form.name} has the label {label!r:.40}: correct it, or "
                "leave the example out."
            )
        return x, y

    def rooted(self) -> DataOptions:
        """The same with absolute paths, so that it means the same from everywhere."""
        named = {"data": None if is_name(self.data) else self.data}
        named |= {"vectors": self.vectors, "clients_from": self.clients_from}
        paths = {option: Path(text) for option, text in named.items() if text is not None}
        return replace(
            self, **{option: str(path.resolve()) for option, path in paths.items() if path.exists()}
        )


_QUOTED = r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?!\w)"""
_OF_CLIENTS = (
    r"""\b(?:a client|client column|different clients|other clients|(?:Clients|at client)(?= ['"]))\b"""
)


def _of_groups(part: str | Argument, source: str) -> str | Argument:
    """A part of a sentence about clients, where ``--groups`` names these; names of users and files stay as they are."""
    if isinstance(part, Argument):
        return Argument("groups", part.value) if part.name == "client" else part

    def renamed(match: re.Match[str]) -> str:
        words = match["words"] or ""
        group = words.replace("client", "group").replace("Client", "Group")
        return "column of groups" if words == "client column" else group or match[0]

    # A name stands in quotes or is a file, whose suffix follows.
    return re.sub(rf"{re.escape(source)}|{_QUOTED}|(?P<words>{_OF_CLIENTS})(?!\.\w)", renamed, part)


def remarks(data: FederatedDataset) -> list[str]:
    """What to know about a table before training on it."""
    if data.features is None:
        return list(data.notes)
    scaled = " --no-standardize leaves numbers as they are." if data.features.scaled else ""
    sentences = [data.features.describe() + scaled, *data.notes]
    if data.num_classes is None and data.features.target is None:
        deviation = float(np.std(data.train.y, dtype=np.float64))
        if deviation > _LARGE_TARGETS:
            sentences.append(
                f"The targets have a standard deviation of {deviation:.3g} and are not standardised: leave out "
                "--no-standardize-target, or choose a very small --lr."
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


def labels_of(rows: NewRows, form: Form) -> tuple[NDArray, NDArray]:
    """Class numbers or targets, and which rows have one that the model knows."""
    texts: list[str] = [] if rows.labels is None or form.targets != 1 else rows.labels.tolist()
    if form.names is None:  # an archive's booleans are numbers, to the model that was trained on them
        texts = [_BITS.get(text, text) for text in texts]
    classes = {name: k for k, name in enumerate(form.names or map(str, range(form.classes or 0)))}
    values = [_value(text, classes, is_real=form.classes is None) for text in texts]
    kind = np.float32 if form.classes is None else np.int32
    return np.array([value or 0 for value in values], kind), np.array([v is not None for v in values], bool)


_BITS = {"False": "0", "True": "1"}


def _value(text: str, classes: Mapping[str, int], *, is_real: bool) -> float | int | None:
    """The number of a class or the target that a label spells; None if it spells none."""
    if not is_real and text in classes:
        return classes[text]
    try:
        number = float(text)
    except ValueError:
        return None
    if is_real:
        return number if np.isfinite(np.float32(number)) else None
    return classes.get(str(int(number))) if number.is_integer() else None  # 4.0 counts as 4


def idle(options: Mapping[str, Any], defaults: Mapping[str, Any], data: FederatedDataset) -> list[str]:
    """One sentence for each option that was set and has no effect on ``data``.

    Args:
      options: name -> value, for those that have one.
      defaults: the same for a run without options.
      data: what the run is about to train on.
    """
    return [
        f"{' '.join(typed(name, options[name]))} has no effect: {why}."
        for name, why in without_effect(options, data).items()
        if options[name] != defaults.get(name)
    ]


def without_effect(options: Mapping[str, Any], data: FederatedDataset) -> dict[str, str]:
    """Why options, set or not, have no effect on ``data``: a page need not list them.

    Args:
      options: name -> value, for those that have one.
      data: what the run is about to train on.
    """
    name, clients, is_real = str(options["data"]), data.num_clients, data.num_classes is None
    kind, share, lanes = _kind(name), options["stragglers"], options.get("lanes") or 0
    is_tested = _has_test_part(name, kind)
    cohort = clients if options["cohort"] == "all" else min(options["cohort"], clients)
    # A table names its clients, unless it has no column of them and --clients says how many there are.
    is_table_spread = kind == "table" and not data.client_column and options.get("clients") == clients
    is_spread = kind in ("built in", "pictures") or is_table_spread
    is_fixed = is_tested and not is_spread
    holds_text = kind in ("LEAF", "clients") or name == "imdb"
    no_column = "no column is named with --text-column" if kind == "table" else f"{name} holds no text"
    no_text = (not holds_text and options.get("text_column") is None, no_column)
    unread = (options.get("vectors") is None, "it is for --vectors only")
    no_stragglers = 0 <= share <= 1 and round(cohort * (1 - share)) == cohort
    named = f"{name} has client ids"
    no_columns = (kind != "table", f"{name} has no columns to choose from")
    unnamed = (is_table_spread and Path(name).suffix != ".npz", f"{name} has no client ids")
    alpha = f"examples with real-valued labels, as in {name}, are divided evenly" if is_spread else named
    if kind == "synthetic":
        alpha = "it is part of the name of synthetic data, --data synthetic:ALPHA,BETA"

    def beyond(option: str, role: str) -> tuple[bool, str]:
        """For a number of clients that is larger than there are."""
        is_more = isinstance(asked := options.get(option), int) and asked > clients
        return is_more, f"there are {clients} clients, all of which {role}"

    reasons = {
        "client_column": unnamed if kind == "table" else no_columns,
        "label_column": no_columns,
        "text_column": no_columns,
        "standardize": (kind != "table", f"{name} is not a table"),
        "text": (not holds_text, f"{name} is not LEAF data, whose characters become tokens"),
        "vectors": no_text,
        "words": unread,
        "vocabulary": no_text,
        "buckets": no_text,
        "clients": (options.get("clients") != clients, f"{named}, of {clients} clients"),
        "alpha": (is_real or not is_spread, alpha),
        "test_fraction": (is_tested, f"{name} comes with a test part"),
        "data_seed": (is_fixed, f"{name} comes with clients and a test part, so nothing is drawn at random"),
        "standardize_target": (not is_real, f"the labels of {name} are classes"),
        "hidden": (options.get("model") != "mlp", "it is for --model mlp only"),
        "bias": (options.get("model") not in (None, "softmax"), "it is for --model softmax only"),
        "unseen_seed": (not options.get("unseen"), "it is for --unseen only"),
        "cohort": beyond("cohort", "take part in each round"),
        "eval_clients": beyond("eval_clients", "are evaluated"),
        "lanes": (lanes > cohort, f"a round trains at most {cohort} clients"),
        "stragglers": (no_stragglers, f"{share} of a cohort of {cohort} rounds to no client"),
    }
    return {option: why for option, (holds, why) in reasons.items() if holds and option in options}


def _kind(name: str) -> str:
    path = Path(name)
    if is_name(name):
        return "clients" if name in PUBLISHED and PUBLISHED[name].names_clients else "built in"
    if is_synthetic(name):
        return "synthetic"
    if "ubyte" in path.name or (path.is_dir() and any("ubyte" in entry.name for entry in path.iterdir())):
        return "pictures"
    is_spread = spreads(path)
    if is_spread is not None:
        return "pictures" if is_spread else "clients"
    return "LEAF" if path.is_dir() or path.suffix.lower() == ".json" else "table"


def _has_test_part(name: str, kind: str) -> bool:
    path = Path(name)
    match kind:
        case "built in" | "clients":
            if is_name(name):
                return name != "digits" and PUBLISHED[name].has_test
            return path.is_dir() and any(entry.name.endswith("_test.h5") for entry in path.iterdir())
        case "LEAF":
            return (path / "test").is_dir()
        case "pictures":
            return path.is_dir() and any(entry.name.startswith("t10k") for entry in path.iterdir())
        case _:
            if path.suffix != ".npz":
                return False
            with np.load(path) as arrays:
                return "x_test" in arrays.files
