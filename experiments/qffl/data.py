"""The data: synthetic devices, and Adult as two devices for the comparison with AFL."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import evenhand as eh

__all__ = ["adult", "synthetic"]

_FIELDS = (
    *("workclass", "education", "marital_status", "occupation", "relationship", "race", "sex"),
    "native_country",
)
_DEVICES = ("PhD", "non-PhD")


def synthetic(
    spread: float | None, clients: int, size_sigma: float, held_out: float, seed: int, *, shared: int = 0
) -> eh.data.FederatedDataset:
    """Synthetic(spread, spread), None: IID; so much of the rows for validation, and as much for testing.

    Args:
      spread: of the clients' models and features.
      clients: how many.
      size_sigma: of the logarithm of their sizes.
      held_out: share of a client's rows for validation, and as much for testing.
      seed: of everything random.
      shared: how many clients are IID, if not all are.
    """
    return eh.data.synthetic(
        *(() if spread is None else (spread, spread)),
        iid=spread is None,
        iid_clients=shared,
        clients=clients,
        seed=seed,
        size_sigma=size_sigma,
        test_fraction=held_out,
        valid_fraction=held_out,
    )


def adult(folder: Path) -> eh.data.FederatedDataset:
    """People with a doctorate on the first device, all others on the second; the label is an income over 50K.

    Each of the eight categorical fields is one-hot, 99 features in all; the numeric ones are left out, as in the
    reference code.  The rows marked as validation by the source are the test rows.

    Args:
      folder: the one with ``adult.npz``.

    Raises:
      SystemExit: there is no such file.
    """
    path = folder / "adult.npz"
    if not path.is_file():
        raise SystemExit(
            f"There is no {path}: say with --data-dir where it is, or leave the claim adult out."
        )
    with np.load(path, allow_pickle=False) as table:
        fields = [table[name] for name in _FIELDS]
        labels = table["label"].astype(np.int32)
        device = (table["education"] != "Doctorate").astype(np.int64)
        held_out = table["is_val"]
    x = np.concatenate([field[:, None] == np.unique(field) for field in fields], axis=1).astype(np.float32)
    none = eh.data.Split(x[:0], labels[:0], np.zeros(len(_DEVICES) + 1, np.int64))
    train, test = (_split(x[rows], labels[rows], device[rows]) for rows in (~held_out, held_out))
    return eh.data.FederatedDataset(train, none, test, _DEVICES, "adult", ("up to 50K", "over 50K"))


def _split(x: np.ndarray, y: np.ndarray, device: np.ndarray) -> eh.data.Split:
    order = np.argsort(device, kind="stable")
    sizes = np.bincount(device, minlength=len(_DEVICES))
    return eh.data.Split(x[order], y[order], np.concatenate([[0], np.cumsum(sizes)]))
