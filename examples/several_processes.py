"""One simulation in several processes, on one machine or on many: run this program in each of them.

Alone: python several_processes.py
By address: python several_processes.py --coordinator HOST:PORT --processes 2 --process 0, and 1
As tasks of Slurm: srun --ntasks 2 python several_processes.py --slurm
"""

import argparse

import jax

import evenhand as eh

parser = argparse.ArgumentParser()
parser.add_argument("--coordinator", help="where process 0 listens, HOST:PORT")
parser.add_argument("--processes", type=int, help="how many there are")
parser.add_argument("--process", type=int, help="which of them this is, from 0")
parser.add_argument("--slurm", action="store_true", help="take all three from Slurm")
parser.add_argument("--out", default="runs/several", help="the run's folder, which process 0 writes")
asked, _ = parser.parse_known_args()

if asked.slurm or asked.coordinator:
    jax.distributed.initialize(asked.coordinator, asked.processes, asked.process)

data = eh.data.load("digits", clients=30, alpha=0.1)
model = eh.models.softmax_regression(features=64, classes=10)
method = eh.algorithms.scaffold(eh.local.sgd(model, 0.1, epochs=5, batch_size=10))
run = eh.simulate(method, data, rounds=20, cohort=10, eval_every=20)
accuracy = run.summary("test")
if jax.process_index() == 0:
    run.save(asked.out)
    print(f"{run.info['devices']} devices in {jax.process_count()} processes, {data.num_clients} clients")
    print(f"mean test accuracy {accuracy['mean']:.3f}")
    print(f"worst 10 % of clients {accuracy['worst10']:.3f}")
if jax.process_count() > 1:
    jax.distributed.shutdown()  # waits for the others
