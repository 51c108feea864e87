"""Five methods on the same heterogeneous clients, stragglers and seeds: who serves the worst clients best?"""

import evenhand as eh

data = eh.data.load("digits", clients=30, alpha=0.1)
model = eh.models.softmax_regression(features=64, classes=10)
work = eh.local.sgd(model, 0.1, epochs=5, batch_size=10)

methods = {
    "FedAvg": eh.algorithms.fedavg(work),
    "FedProx": eh.algorithms.fedprox(work, mu=0.1),
    "SCAFFOLD": eh.algorithms.scaffold(work),
    "FedDane": eh.algorithms.feddane(work, mu=0.1),
    "FedYogi": eh.algorithms.fedavg(work, server_opt=eh.server_opt.fedyogi(0.1), keep_partial=True),
}

print(f"{'':10}{'mean':>8}{'worst 10 %':>12}{'std':>8}")
for name, method in methods.items():
    run = eh.simulate(method, data, rounds=30, cohort=10, eval_every=30, systems=eh.systems.stragglers(0.5))
    scores = run.summary("test")
    print(f"{name:10}{scores['mean']:8.3f}{scores['worst10']:12.3f}{scores['std']:8.3f}")
