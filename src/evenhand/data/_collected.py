"""Clients that each have a data set of their own, such as one of PyTorch: objects with a length and rows by number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from evenhand.data import _validation as validation
from evenhand.data._dataset import FederatedDataset, PooledRows, build, from_arrays
from evenhand.data._validation import NDArray, Splitting
from evenhand.errors import EvenhandError, expect


class RowsByNumber(Protocol):
    """A map-style data set: PyTorch's ``Dataset``, a partition of Hugging Face, a list of pairs."""

    def __len__(self) -> int:
        """How many examples there are."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """An example, from 0: ``(x, y)``, or a dictionary with both."""
        ...


def from_torch_datasets(
    datasets: Mapping[Any, RowsByNumber],
    *,
    test: Mapping[Any, RowsByNumber] | None = None,
    x: str | None = None,
    y: str | None = None,
    test_fraction: float = 0.2,
    valid_fraction: float = 0.0,
    seed: int = 0,
    name: str = "datasets",
    classes: Sequence[str] | None = None,
) -> FederatedDataset:
    r"""The federated data set of one PyTorch ``Dataset`` for each client, or of any other with a length and rows.

    Each example is read once, with its transformations, into arrays; a random one, such as a crop, is drawn once.

    Args:
      datasets: client id -> its data set, whose examples are ``(x, y)`` or dictionaries.  Subsets of
        ``torch.utils.data.random_split`` and partitions of ``flwr-datasets`` are such data sets, too.
      test: client id -> its test examples, for clients in ``datasets``; None: a part of each client's own.
      x: the name of the inputs, where examples are dictionaries, such as ``"image"``.
      y: the name of the labels, such as ``"label"``.
      test_fraction: share of each client's examples for testing, without ``test``.
      valid_fraction: share for validation.
      seed: of the division.
      name: what the data set is called.
      classes: the names of the classes, if they have any.

    Raises:
      EvenhandError: a data set has no length or no examples; an example is neither a pair nor a dictionary with these
        names; inputs have several shapes; or labels may be amounts, as in :func:`from_arrays`, or are of another kind
        in the test part.

    Edge cases: bytes, as in pictures of Pillow, are divided by 255; other integers are tokens.  PyTorch's pictures have
    their channels first, which models of :func:`evenhand.models.from_torch` want; those of flax want them last.

    Example:
      >>> import numpy as np
      >>> from evenhand.data import from_torch_datasets
      >>> hospitals = {"oslo": [(np.zeros(3), 0), (np.ones(3), 1)], "rome": [(np.ones(3), 1)]}
      >>> from_torch_datasets(hospitals, test_fraction=0.0)
      <FederatedDataset 'datasets': 2 clients, 3 + 0 + 0 rows, x float32 (3,), 2 classes>
    """
    expect("datasets", datasets, Mapping, '{"oslo": dataset, "rome": dataset}')
    if not datasets:
        raise EvenhandError(f"{name}: there are no clients: give a dictionary of client ids and data sets.")
    if test is not None:
        expect("test", test, Mapping, '{"oslo": dataset, "rome": dataset}')
        if not test:
            raise EvenhandError(
                f"{name}: test={{}} has no data sets: leave it out, or give those of some clients."
            )
    inputs, labels, client = _pooled(datasets, x, y, name)
    if test is None:
        return from_arrays(
            inputs,
            labels,
            client,
            test_fraction=test_fraction,
            valid_fraction=valid_fraction,
            seed=seed,
            name=name,
            classes=classes,
        )
    pooled = (inputs, labels, client), _pooled(test, x, y, f"the test part of {name}")
    ys, names = _labels([part[1] for part in pooled], name, classes)
    parts = [
        PooledRows(validation.as_features(x, name), y, validation.id_array(client, name))
        for (x, _, client), y in zip(pooled, ys, strict=True)
    ]
    return build(parts, Splitting(0.0, valid_fraction, seed), name=name, classes=names)


def _labels(
    parts: Sequence[NDArray], name: str, classes: Sequence[str] | None
) -> tuple[list[NDArray], tuple[str, ...] | None]:
    """The labels of training and of test together, so that a class has one number in both."""
    kinds = {"whole numbers" if part.dtype.kind in "biu" else part.dtype.kind for part in parts}
    if len(kinds) > 1 or len({part.shape[1:] for part in parts}) > 1:
        raise EvenhandError(
            f"{name}: the labels of the test part differ from those for training in kind or shape: bring them to one "
            "form."
        )
    first = len(parts[0])

    def place(row: int) -> str:
        return f"y[{row}]" if row < first else f"the test part's y[{row - first}]"

    labels, names = validation.array_labels(np.concatenate(parts), name, classes, place)
    return np.split(labels, [first]), names


def _pooled(
    datasets: Mapping[Any, RowsByNumber], x: str | None, y: str | None, name: str
) -> tuple[NDArray, NDArray, list[Any]]:
    """The inputs, labels and clients of all examples, one client after the other."""
    pairs, ids = list[tuple[NDArray, NDArray]](), list[Any]()
    for client, dataset in datasets.items():
        place = f"{name}, client {client!r}"
        for i in range(_length(dataset, place)):
            pair = _pair(dataset[i], x, y, f"{place}, example {i}")
            _check_form(pair, pairs[0] if pairs else pair, f"{place}, example {i}")
            pairs.append(pair)
            ids.append(client)
    inputs, labels = zip(*pairs, strict=True)
    # A list, which keeps the types of ids: as an array, 1 and "1" would be one client.
    return validation.pixels(np.stack(inputs)), np.stack(labels), ids


def _check_form(pair: tuple[NDArray, NDArray], first: tuple[NDArray, NDArray], place: str) -> None:
    """Checks that the inputs and the label of an example are like those of the first one."""
    (inputs, label), (first_inputs, first_label) = pair, first
    if inputs.shape != first_inputs.shape:
        raise EvenhandError(
            f"{place} has inputs of shape {inputs.shape}, the first one of {first_inputs.shape}: pad, crop or resize "
            "them to one shape."
        )
    if label.shape != first_label.shape:
        raise EvenhandError(
            f"{place} has a label of shape {label.shape}, the first one of {first_label.shape}: give labels of one "
            "shape."
        )
    # Bytes are divided by 255, and stacked with others they would be bytes no more.
    if (inputs.dtype == np.uint8) != (first_inputs.dtype == np.uint8):
        raise EvenhandError(
            f"{place} has inputs of type {inputs.dtype}, the first one of {first_inputs.dtype}: give either bytes, "
            "which are divided by 255, or numbers."
        )


def _length(dataset: RowsByNumber, place: str) -> int:
    try:
        length = len(dataset)
    except TypeError:
        raise EvenhandError(
            f"{place}: a {type(dataset).__name__} has no length: give a map-style data set, or a list of its examples."
        ) from None
    if not length:
        raise EvenhandError(f"{place} has no examples: leave the client out.")
    return length


def _pair(example: Any, x: str | None, y: str | None, place: str) -> tuple[NDArray, NDArray]:
    """The inputs and the label of an example as arrays."""
    if isinstance(example, Mapping):
        names = ", ".join(map(repr, example))
        if x is None or y is None or x not in example or y not in example:
            missing = [repr(column) for column in (x, y) if column is not None and column not in example]
            lacks = f" and has no {' and no '.join(missing)}" if missing else ""
            raise EvenhandError(
                f"{place} is a dictionary of {names}{lacks}: name its inputs and labels with x= and y=."
            )
        pair = example[x], example[y]
    elif isinstance(example, tuple | list) and len(example) >= 2:
        pair = example[0], example[1]
    else:
        raise EvenhandError(f"{place} is a {type(example).__name__}: give pairs (x, y) or dictionaries.")
    inputs, label = map(np.asarray, pair)
    return inputs, label
