"""A made-up run with everything that a report shows."""

from __future__ import annotations

from typing import Any

import numpy as np

from evenhand.report import RunView

__all__ = ["view"]


def view(
    title: str = "fedavg", clients: int = 30, *, seed: int = 0, accuracy: bool = True, **changes: Any
) -> RunView:
    """A run with everything a report shows; the last client has no test rows."""
    rng = np.random.default_rng(seed)
    train = rng.integers(5, 400, clients)
    test = np.maximum(train // 5, 1)
    test[-1] = 0 if clients > 1 else test[-1]
    loss = rng.gamma(2.0, 0.3, clients)
    last = {"loss": np.where(test > 0, loss, np.nan), "accuracy": np.where(test > 0, np.exp(-loss), np.nan)}
    first = {"loss": 0.9 * loss, "accuracy": np.exp(-0.9 * loss)}
    rounds = np.arange(0, 51, 10)
    history = {"round": rounds, "mu": 0.1 * rounds, "constant": np.ones(6)}
    for split in ("train", "test"):
        history |= {f"{split}_loss": np.exp(-rounds / 20), f"{split}_accuracy": 1 - np.exp(-rounds / 20) / 2}
    history |= {"test_accuracy_worst10": 1 - np.exp(-rounds / 40), "test_accuracy_best10": np.full(6, 0.99)}
    history |= {f"{split}_accuracy_mean": 0.9 * history[f"{split}_accuracy"] for split in ("train", "test")}
    if not accuracy:
        history = {key: values for key, values in history.items() if "accuracy" not in key}
        del last["accuracy"], first["accuracy"]
    info = {"rounds": 50, "cohort": 10, "seed": seed, "method": title, "data": "digits"}
    info |= {
        "seconds": {"compile": 1.5, "train": 2.5},
        "command": f"evenhand run {title}",
        "versions": {"jax": "0.10"},
    }
    made = RunView(
        title=title,
        history=history,
        sizes={"train": train, "valid": np.zeros_like(train), "test": test},
        client_ids=[f"user {k}" for k in range(clients)],
        clients={"train": first, "test": last},
        info=info,
        config={"method": title, "mu": 0.1 + 0.2, "data": {"name": "digits", "clients": clients}},
    )
    return made._replace(**changes)
