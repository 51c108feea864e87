"""Reviews of no meaning, in the form of those that the experiments on IMDB read."""

import numpy as np


def tiny_reviews(folder):
    """Writes 60 for training and 30 for tests, of five words each."""
    random = np.random.default_rng(0)
    arrays = {}
    for part, rows in (("train", 60), ("test", 30)):
        arrays[f"{part}_indptr"] = np.arange(0, 5 * rows + 1, 5, dtype=np.int32)
        arrays[f"{part}_indices"] = random.integers(10_000, size=5 * rows).astype(np.uint16)
        arrays[f"{part}_counts"] = np.ones(5 * rows, np.uint8)
        arrays[f"{part}_label"] = (np.arange(rows) % 2).astype(np.uint8)
    np.savez(folder / "imdb_bow.npz", **arrays)
