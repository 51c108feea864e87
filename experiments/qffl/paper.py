"""The paper's numbers, as its tables print them."""

from __future__ import annotations

__all__ = ["ADULT", "HETEROGENEITY", "TEST", "TRAIN"]

Table = dict[str, dict[str, float]]

_SPREAD = ("weighted_mean", "worst10", "best10", "variance", "angle", "kl")

_TEST = {
    "q=0": (80.8, 18.8, 100.0, 724.0, 19.5, 0.083),
    "q=0.1": (81.1, 22.1, 100.0, 666.0, 18.4, 0.070),
    "q=1": (79.0, 31.1, 100.0, 472.0, 16.0, 0.049),
    "q=2": (74.7, 32.2, 99.9, 410.0, 15.6, 0.044),
    "q=5": (67.2, 30.0, 94.3, 369.0, 16.3, 0.048),
    "uniform sampling": (82.2, 30.0, 100.0, 525.0, 15.6, 0.048),
}
_TRAIN = {
    "q=0": (81.7, 23.6, 100.0, 597.0, 17.5, 0.061),
    "q=1": (78.9, 41.8, 96.8, 292.0, 12.5, 0.027),
    "uniform sampling": (83.5, 42.6, 100.0, 366.0, 13.4, 0.031),
}
_BY_CLIENTS = {"q=0": 77.3, "q=1": 76.3}
_HETEROGENEITY = {
    "IID, 100 devices": ((89.2, 70.9, 100.0, 85.0), (89.0, 70.3, 100.0, 88.0)),
    "IID, 50 devices": ((87.1, 66.5, 100.0, 107.0), (86.8, 66.5, 100.0, 109.0)),
    "(1, 1), 100 devices": ((83.0, 36.8, 100.0, 452.0), (82.7, 43.5, 100.0, 362.0)),
    "(1, 1), 50 devices": ((84.5, 43.3, 100.0, 370.0), (85.1, 47.3, 100.0, 317.0)),
    "(2, 2), 100 devices": ((82.6, 25.5, 100.0, 618.0), (82.2, 31.9, 100.0, 484.0)),
    "(2, 2), 50 devices": ((85.9, 36.8, 100.0, 421.0), (85.9, 39.1, 100.0, 396.0)),
}


def _named(rows: dict[str, tuple[float, ...]]) -> Table:
    return {method: dict(zip(_SPREAD, numbers, strict=False)) for method, numbers in rows.items()}


TEST = _named(_TEST)
"""Tables 4.1, 4.7, 4.9 and 4.11."""
TRAIN = _named(_TRAIN)
"""Tables 4.6 and 4.8."""
for _method, _mean in _BY_CLIENTS.items():
    TEST[_method]["mean"] = _mean

HETEROGENEITY = _named(
    {
        f"{name}, q={q}": numbers
        for name, both in _HETEROGENEITY.items()
        for q, numbers in zip((0, 1), both, strict=True)
    }
)
"""Table 4.10."""

ADULT: Table = {
    "q=0": {"average": 83.2, "PhD": 69.9, "non-PhD": 83.3},
    "AFL": {"average": 82.5, "PhD": 73.0, "non-PhD": 82.6},
    "q=0.01": {"average": 82.6, "PhD": 74.1, "non-PhD": 82.7},
    "q=2": {"average": 82.3, "PhD": 74.4, "non-PhD": 82.4},
}
"""Table 4.2."""
