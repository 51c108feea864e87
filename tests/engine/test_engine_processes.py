"""A cohort spread over the devices of two processes gives the same as in one process."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

import evenhand as eh
from nursery import Nursery

PROGRAM = """
import json, os, sys
os.environ["XLA_FLAGS"] = os.environ["XLA_FLAGS"].replace("--xla_force_host_platform_device_count=2", "")
import jax
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_compilation_cache_dir", sys.argv[3])
jax.distributed.initialize(f"localhost:{sys.argv[2]}", num_processes=2, process_id=int(sys.argv[1]))
import numpy as np, optax
import evenhand as eh
from evenhand.devices import everywhere, here, over
work = eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=2, batch_size=4)
method = eh.algorithms.scaffold(work)
run = eh.simulate(method, eh.testing.toy_data(), rounds=4, cohort=6, eval_every=2, seed=3)
parts = jax.sharding.NamedSharding(over(4), jax.sharding.PartitionSpec("clients"))
divided = jax.make_array_from_callback((8,), parts, lambda index: np.arange(8.0, dtype=np.float32)[index])
assert here(divided).tolist() == np.asarray(everywhere(over(4), divided)).tolist() == list(range(8))
result = {"devices": run.info["devices"], "w": np.ravel(run.params["w"]).tolist()}
result["loss"] = run.history["test_loss"].tolist()
median = eh.algorithms.fedavg(work, aggregator=eh.aggregators.coordinate_median())
for name, value, how in (("streamed", method, {"stream": True}), ("median", median, {})):
    run = eh.simulate(value, eh.testing.toy_data(), rounds=4, cohort=6, eval_every=2, seed=3, **how)
    result[name] = np.ravel(run.params["w"]).tolist()
print(json.dumps(result))
jax.distributed.shutdown()  # waits for the other process, which would fail if this one had just gone
"""


def test_two_processes_agree_with_one(nursery: Nursery, tmp_path: Path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    cache = str(Path(__file__).parents[2] / ".jax_cache")
    shown = [tmp_path / str(process) for process in (0, 1)]
    children = [
        nursery.start("program", shown[process], source=PROGRAM, arguments=[str(process), str(port), cache])
        for process in (0, 1)
    ]
    codes = [child.wait() for child in children]
    assert codes == [0, 0], [path.read_text()[-2000:] for path in shown]
    printed = [json.loads(path.read_text().splitlines()[-1]) for path in shown]
    assert printed[0] == printed[1] and printed[0]["devices"] == 4

    work = eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=2, batch_size=4)
    method = eh.algorithms.scaffold(work)
    alone = eh.simulate(method, eh.testing.toy_data(), rounds=4, cohort=6, eval_every=2, seed=3)
    np.testing.assert_allclose(printed[0]["w"], np.ravel(alone.params["w"]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(printed[0]["loss"], alone.history["test_loss"], rtol=1e-5)
    # Rows that each process streams, whose padding is NaN, and uploads that no process alone has.
    np.testing.assert_allclose(printed[0]["streamed"], printed[0]["w"], rtol=1e-5, atol=1e-6)
    median = eh.algorithms.fedavg(work, aggregator=eh.aggregators.coordinate_median())
    by_median = eh.simulate(median, eh.testing.toy_data(), rounds=4, cohort=6, eval_every=2, seed=3)
    np.testing.assert_allclose(printed[0]["median"], np.ravel(by_median.params["w"]), rtol=1e-5, atol=1e-6)
    assert not np.allclose(printed[0]["median"], printed[0]["w"], rtol=1e-3)
    other = eh.simulate(method, eh.testing.toy_data(), rounds=4, cohort=6, eval_every=2, seed=4)
    assert not np.allclose(printed[0]["w"], np.ravel(other.params["w"]), rtol=1e-3)


EXAMPLE = Path(__file__).parents[2] / "examples" / "several_processes.py"


def results(out: Path, environments: list[dict[str, str]], options: list[list[str]]) -> list[str]:
    """What the example prints, as a user starts it: a process for each of the environments."""
    own = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(EXAMPLE), *given, "--out", str(out)],
            env={**own, "JAX_NUM_CPU_DEVICES": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment, given in zip(environments, options, strict=True)
    ]
    printed = [process.communicate(timeout=120) for process in processes]
    assert not any(process.returncode for process in processes), printed
    assert eh.load_run(out).info["rounds"] == 20
    # The library that adds over the network says that it is connected, on standard output.
    first, *others = ([x for x in text.splitlines() if not x.startswith("[Gloo]")] for text, _ in printed)
    assert not any(others)
    return first


def free_port(first: int = 0) -> int:
    """One of all that are free, or of the 4,096 from ``first``."""
    for offset in range(4096):
        with socket.socket() as taken:
            try:
                taken.bind(("localhost", first and first + (os.getpid() + offset) % 4096))
            except OSError:
                continue
            return taken.getsockname()[1]
    raise AssertionError("no port is free")


def test_the_example_gives_the_same_by_address_and_as_tasks_of_slurm(tmp_path: Path) -> None:
    alone = results(tmp_path / "alone", [{"JAX_NUM_CPU_DEVICES": "2"}], [[]])
    address = f"localhost:{free_port()}"
    given = [["--coordinator", address, "--processes", "2", "--process", str(i)] for i in range(2)]
    both = results(tmp_path / "both", [{}, {}], given)
    assert both[0].startswith("2 devices in 2 processes") and len(both) == 3
    assert both[1:] == alone[1:]
    # Slurm gives a step no port: JAX derives it from the number of the job.
    first = 65535 - 4096 + 1
    job = {"SLURM_JOB_ID": str(free_port(first) - first), "SLURM_STEP_NODELIST": "localhost"}
    tasks = [{**job, "SLURM_NTASKS": "2", "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)} for i in range(2)]
    assert results(tmp_path / "slurm", tasks, [["--slurm"]] * 2) == both
