"""What each aggregator costs on a hundred stacked uploads of a million numbers, as a ratio of plain products.

    python benchmarks/robust.py [--repeats 5] [--uploads 100] [--numbers 1000000]

All are timed in turns, in one process, on the machine's devices, among which the numbers are dealt as in a round, and
each right after its yardstick, since the memory that another rule has let go makes the next one slower.
The yardsticks are a product with ones (the mean of the uploads without any weight or check), the products of all
uploads with each other, and ``numpy.median``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evenhand import aggregators as agg
from evenhand.aggregators import reduce_uploads
from evenhand.devices import Devices, everywhere, over
from evenhand.types import Upload

RULES: dict[str, tuple[Any, str, float | None]] = {
    "mean": (agg.mean(), "product with ones", 1.5),
    "geometric median, 5 passes": (agg.geometric_median(5), "mean", 8.0),
    "centered clipping": (agg.centered_clipping(10.0), "mean", None),
    "median": (agg.coordinate_median(), "numpy.median", 0.5),
    "trimmed mean": (agg.trimmed_mean(0.2), "numpy.median", 0.5),
    "MeaMed": (agg.meamed(20), "numpy.median", None),
    "Krum": (agg.krum(20), "all products", 1.3),
    "multi-Krum": (agg.multi_krum(20), "all products", None),
    "Bulyan": (agg.bulyan(20), "all products", None),
    "CAF": (agg.caf(20), "all products", None),
    "NNM, then mean": (agg.nnm(20, then=agg.mean()), "all products", 1.3),
    "bucketing, then mean": (agg.bucketing(2, then=agg.mean()), "mean", None),
    "clip to the median, then mean": (agg.clip(), "mean", None),
}


def functions(deltas: Any, mesh: Any) -> dict[str, Callable[[], Any]]:
    """Name -> a call that takes the time to be measured."""
    m = deltas.shape[0]
    ones, present = everywhere(mesh, (jnp.ones(m), jnp.ones(m, bool)))
    keys = everywhere(mesh, jax.random.split(jax.random.key(0), m))
    product = jax.jit(lambda x, w: w @ x)
    squares = jax.jit(lambda x: jnp.matmul(x, x.T, precision="highest"))
    host = np.asarray(deltas)
    found: dict[str, Callable[[], Any]] = {
        "product with ones": lambda: product(deltas, ones),
        "all products": lambda: squares(deltas),
        "numpy.median": lambda: np.median(host, axis=0),
    }
    for name, (rule, _, _) in RULES.items():

        @jax.jit
        def reduce(x: Any, w: Any, present: Any, keys: Any, rule: Any = rule) -> Any:
            state = rule.init(jnp.zeros_like(x[0]), m)
            return reduce_uploads(rule, Upload(x, w, w), present, state, keys[0], keys)[0]

        found[name] = lambda reduce=reduce: reduce(deltas, ones, present, keys)
    return found


def timed(call: Callable[[], Any]) -> float:
    """Seconds of a call, after one that is not counted."""
    jax.block_until_ready(call())
    begin = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--uploads", type=int, default=100)
    parser.add_argument("--numbers", type=int, default=1_000_000)
    asked = parser.parse_args()
    mesh = over(jax.device_count())
    rows = np.random.default_rng(0).standard_normal((asked.uploads, asked.numbers), np.float32)
    deltas = jax.jit(lambda x: Devices(mesh).by_coordinate(x, 1))(jnp.asarray(rows))
    calls = functions(deltas, mesh)
    for call in calls.values():
        jax.block_until_ready(call())
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    ratios: dict[str, list[float]] = {name: [] for name in RULES}
    for _ in range(asked.repeats):
        for name, (_, yardstick, _) in RULES.items():
            seconds[yardstick].append(reference := timed(calls[yardstick]))
            seconds[name].append(own := timed(calls[name]))
            ratios[name].append(own / reference)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    print(
        f"{asked.uploads} uploads of {asked.numbers:,} numbers, {jax.device_count()} devices, "
        f"medians of {asked.repeats}"
    )
    for name, value in median.items():
        line = f"{name:32} {value:8.3f} s"
        if name in RULES:
            _, yardstick, aim = RULES[name]
            line += f"  {statistics.median(ratios[name]):6.2f} x {yardstick}" + (
                f" (aim {aim:g})" if aim else ""
            )
        print(line)


if __name__ == "__main__":
    main()
