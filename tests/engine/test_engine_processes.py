"""A cohort spread over the devices of two processes gives the same as in one process."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

import evenhand as eh

PROGRAM = """
import json, sys
import jax
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_compilation_cache_dir", sys.argv[3])
jax.distributed.initialize(f"localhost:{sys.argv[2]}", num_processes=2, process_id=int(sys.argv[1]))
import numpy as np, optax
import evenhand as eh
from evenhand.devices import everywhere, here, over
method = eh.algorithms.scaffold(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=2, batch_size=4))
run = eh.simulate(method, eh.testing.toy_data(), rounds=4, cohort=6, eval_every=2, seed=3)
parts = jax.sharding.NamedSharding(over(4), jax.sharding.PartitionSpec("clients"))
divided = jax.make_array_from_callback((8,), parts, lambda index: np.arange(8.0, dtype=np.float32)[index])
assert here(divided).tolist() == np.asarray(everywhere(over(4), divided)).tolist() == list(range(8))
result = {"devices": run.info["devices"], "w": np.ravel(run.params["w"]).tolist()}
result["loss"] = run.history["test_loss"].tolist()
print(json.dumps(result))
"""


def test_two_processes_agree_with_one():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    flags = os.environ["XLA_FLAGS"].replace("--xla_force_host_platform_device_count=4", "")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    cache = str(Path(__file__).parents[2] / ".jax_cache")
    commands = [[sys.executable, "-c", PROGRAM, str(process), str(port), cache] for process in (0, 1)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for command in commands
    ]
    outputs = [process.communicate(timeout=180) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    printed = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
    assert printed[0] == printed[1] and printed[0]["devices"] == 4

    method = eh.algorithms.scaffold(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=2, batch_size=4))
    alone = eh.simulate(method, eh.testing.toy_data(), rounds=4, cohort=6, eval_every=2, seed=3)
    np.testing.assert_allclose(printed[0]["w"], np.ravel(alone.params["w"]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(printed[0]["loss"], alone.history["test_loss"], rtol=1e-5)
    other = eh.simulate(method, eh.testing.toy_data(), rounds=4, cohort=6, eval_every=2, seed=4)
    assert not np.allclose(printed[0]["w"], np.ravel(other.params["w"]), rtol=1e-3)
