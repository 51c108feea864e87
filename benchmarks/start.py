"""Prints what the first round of a fresh process costs: python benchmarks/start.py [logistic | mlp | cnn].

Seconds from the start of the process to the end of the round, then those of importing, of preparing the round
(tracing and compiling), and of the processor, all cores together.
"""

import sys
import time

BEGIN = time.perf_counter()

import numpy as np  # noqa: E402

import evenhand as eh  # noqa: E402

# The package imports a name when it is asked for.
eh.models, eh.data, eh.algorithms, eh.local, eh.simulate  # noqa: B018
IMPORTED = time.perf_counter()
MODELS = {
    "logistic": lambda: eh.models.softmax_regression(28 * 28, classes=62),
    "mlp": lambda: eh.models.mlp(28 * 28, classes=62),
    "cnn": eh.models.cnn_femnist,
}
task = sys.argv[1] if len(sys.argv) > 1 else "cnn"
rng = np.random.default_rng(0)
x, y = rng.random((400, 28, 28, 1), np.float32), rng.integers(0, 62, 400)
data = eh.data.from_arrays(
    x if task == "cnn" else x.reshape(400, -1), y, np.repeat(np.arange(20), 20), test_fraction=0.2
)
method = eh.algorithms.fedavg(eh.local.sgd(MODELS[task](), 0.05, steps=1, batch_size=20))
run = eh.simulate(method, data, rounds=1, cohort=10)
spent = (time.perf_counter() - BEGIN, IMPORTED - BEGIN, run.info["seconds"]["compile"], time.process_time())
print(" ".join(f"{seconds:.3f}" for seconds in spent))
