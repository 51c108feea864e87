"""Five methods on the same unlike clients, stragglers and seeds: who serves the worst clients best?"""

import optax

import evenhand as eh

data = eh.data.load("digits", clients=30, alpha=0.1)
model = eh.models.softmax_regression(features=64, classes=10)
work = {"client_opt": optax.sgd(0.1), "epochs": 5, "batch_size": 10}

methods = {
    "FedAvg": eh.algorithms.fedavg(model, **work),
    "FedProx": eh.algorithms.fedprox(model, mu=0.1, **work),
    "SCAFFOLD": eh.algorithms.scaffold(model, **work),
    "FedDane": eh.algorithms.feddane(model, mu=0.1, **work),
    "FedYogi": eh.algorithms.fedavg(model, server_opt=eh.server_opt.fedyogi(0.1), keep_partial=True, **work),
}

print(f"{'':10}{'mean':>8}{'worst 10 %':>12}{'std':>8}")
for name, method in methods.items():
    run = eh.simulate(method, data, rounds=30, cohort=10, eval_every=30, systems=eh.systems.stragglers(0.5))
    told = run.summary("test")
    print(f"{name:10}{told['mean']:8.3f}{told['worst10']:12.3f}{told['std']:8.3f}")
