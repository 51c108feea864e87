"""Prints the seconds from the start of this process to the end of the first round of the FEMNIST CNN."""

import time

BEGIN = time.perf_counter()

import numpy as np  # noqa: E402
import optax  # noqa: E402

import evenhand as eh  # noqa: E402

IMPORTED = time.perf_counter()
rng = np.random.default_rng(0)
x, y = rng.random((400, 28, 28, 1), np.float32), rng.integers(0, 62, 400)
data = eh.data.from_arrays(x, y, np.repeat(np.arange(20), 20), test_fraction=0.2)
method = eh.algorithms.fedavg(eh.models.cnn_femnist(), client_opt=optax.sgd(0.05), steps=1, batch_size=20)
run = eh.simulate(method, data, rounds=1, cohort=10)
print(f"{time.perf_counter() - BEGIN:.3f} {IMPORTED - BEGIN:.3f} {run.info['seconds']['compile']:.3f}")
