"""What each further run of a newly built method keeps of the memory: python benchmarks/memory.py [runs] [method].

One process per method builds it again and again and trains it for two rounds.  The last column is the memory after
all runs over that after the first 20; above 1.05 something is kept for ever.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

SETTLED = 20
"""Runs after which all caches are full."""
METHODS = ("fedavg", "scaffold", "ditto", "finetune", "fedalt", "apfl", "mocha")


def megabytes() -> float:
    """The memory of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def once(name: str) -> None:
    """Builds a method, model and data included, and trains it."""
    import evenhand as eh

    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 64)).astype(np.float32)
    y = (x[:, :2] > 0) @ np.array([1, 0 if name == "mocha" else 2])
    data = eh.data.from_arrays(x, y, np.arange(600) % 20, test_fraction=0.2)
    if name == "mocha":
        eh.personalization.mocha(data.train, lam=0.1, outer=2, inner=20)
        return
    model = eh.models.softmax_regression(features=64, classes=4)
    work = eh.local.sgd(model, 0.1, epochs=1, batch_size=10)
    of = eh.algorithms, eh.personalization
    make: dict[str, Callable[[], eh.Algorithm]] = {
        "fedavg": lambda: of[0].fedavg(work),
        "scaffold": lambda: of[0].scaffold(work),
        "ditto": lambda: of[1].ditto(of[0].fedavg(work), work, lam=0.1),
        "finetune": lambda: of[1].finetune(of[0].fedavg(work), work),
        "fedalt": lambda: of[1].fedalt(work, personal="bias"),
        "apfl": lambda: of[1].apfl(work),
    }
    eh.simulate(make[name](), data, rounds=2)


def after_runs(name: str, runs: int) -> Iterator[float]:
    """The memory after each run."""
    warnings.simplefilter("ignore")
    for _ in range(runs):
        once(name)
        yield megabytes()


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    if len(sys.argv) > 2:
        sizes = list(after_runs(sys.argv[2], runs))
        settled, last = sizes[SETTLED - 1], sizes[-1]
        each = (last - settled) / (runs - SETTLED)
        print(
            f"{sys.argv[2]:10} {sizes[0]:8.0f} {settled:8.0f} {last:8.0f} {each:8.2f} {last / settled:8.3f}"
        )
        return
    print(f"{'method':10} {'first MB':>8} {SETTLED:>5} MB {runs:>5} MB {'a run':>8} {'ratio':>8}", flush=True)
    for name in METHODS:
        subprocess.run([sys.executable, __file__, str(runs), name], check=True)


if __name__ == "__main__":
    main()
