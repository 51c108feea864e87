"""Watch a run as it goes, stop it when every client is served well enough, and write a report."""

from pathlib import Path

import evenhand as eh

data = eh.data.load("digits", clients=20)
model = eh.models.mlp(features=64, hidden=(32,), classes=10)
method = eh.algorithms.fedprox(eh.local.sgd(model, 0.1, epochs=2, batch_size=10), mu=0.01)

for run in eh.simulation.iterate(method, data, rounds=200, cohort=10, eval_every=5):
    worst = run.history["test_accuracy_worst10"][-1]
    print(f"round {run.info['rounds']:3d}: worst tenth of the clients {worst:.3f}")
    if worst > 0.75:
        break

page = run.report(Path("watch_and_stop.html"), title="stopped early")
print(f"Report: {page}")
