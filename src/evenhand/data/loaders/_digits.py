"""The handwritten digits that ship with scikit-learn."""

from __future__ import annotations

import numpy as np

from evenhand.data._dataset import FederatedDataset
from evenhand.data.loaders._options import Options, Pool, pooled

__all__ = ["DEFAULT_CLIENTS", "load_digits"]

DEFAULT_CLIENTS = 30


def load_digits(options: Options) -> FederatedDataset:
    """1,797 digits of 8 x 8 pixels in [0, 1], flattened, spread over clients."""
    # Imported late: it takes a second that no other data set should wait for.
    from sklearn import datasets

    x, y = datasets.load_digits(return_X_y=True)
    pool = Pool((np.asarray(x) / 16).astype(np.float32), np.asarray(y).astype(np.int32))
    clients = DEFAULT_CLIENTS if options.clients is None else options.clients
    return pooled("digits", pool, None, tuple("0123456789"), options, clients)
