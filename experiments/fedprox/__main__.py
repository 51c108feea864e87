"""FedProx: what stragglers and unlike clients do to federated averaging, and how a proximal term helps.

Checks figures 1 to 5, 7, 9 and 12 of Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020
(arXiv 1812.06127), on its synthetic data, and figures 1 and 7 to 10 on MNIST.  From the root of the repository:

    python -m experiments.fedprox --seeds 5 --data-dir <folder with mnist.npz> --out experiments/fedprox/results
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import optax
import tyro

import evenhand as eh
from evenhand.studies import Outcome
from experiments.fairness import Experiment, by_name
from experiments.fedprox.claims import Claim, Trial, trials
from experiments.fedprox.saved import draw, save, table


@dataclass(frozen=True, kw_only=True)
class Config(Experiment):
    """What is run.  The defaults are the paper's, with the place they come from, or else "ours"."""

    claims: tuple[Claim, ...] = field(default_factory=lambda: get_args(Claim))
    """Figures 1, 7, 2, 9, 5, 3, 4 and 12, in this order; then, on MNIST, figures 1, 7 and 8, and figures 9 and 10."""
    data_dir: Path = Path("data")
    """Folder with mnist.npz: x_train, y_train, x_test and y_test, images of 28 x 28 bytes and their digits."""
    out: Path = Path("experiments/fedprox/results")
    """Folder that gets one JSON file and one picture per claim."""
    folder: Path | None = None
    """Folder that keeps each run (ours): an experiment that was stopped goes on, and claims share their runs."""
    seeds: int = 5
    """Runs of figures 1, 2 and 7 and of MNIST, each on a data set of its own (ours: the paper shows one run)."""
    more_seeds: int = 3
    """The same for the other figures (ours)."""
    clients: int = 30
    """Section 5.1: 30 devices."""
    cohort: int = 10
    """Section 5.1: 10 devices are selected in each round."""
    rounds: int = 200
    """Figures 1 and 2: the axis ends at 200."""
    epochs: int = 20
    """Figures 1 and 2: E = 20.  Figure 9 has E = 1."""
    learning_rate: float = 0.01
    """Appendix C.2: 0.01 on synthetic data."""
    batch_size: int = 10
    """Appendix C.2: 10."""
    max_size: int = 6000
    """Most rows a client can have (ours: sizes are LogNormal(4, 2) + 50; one can outweigh all the others)."""
    sampling_max_size: int = 300
    """The same for figure 12 (ours: scheme A keeps drawing the largest clients, which takes long)."""
    eval_every: int = 2
    """Rounds between two evaluations (ours: the paper evaluates every round, as here for figure 7)."""
    variance_every: int = 10
    """Rounds between two measurements of the gradients' variance; a multiple of the above (ours)."""
    mnist_clients: int = 1000
    """Table 1: 1,000 devices."""
    mnist_rounds: int = 100
    """Figure 1: the axis of MNIST ends at 100."""
    mnist_learning_rate: float = 0.03
    """Appendix C.2: 0.03 on MNIST."""
    last: int = 20
    """The mean over so many rounds at the end is reported beside the final value, which is noisy (ours)."""


_SPREADS = {"(0, 0)": 0.0, "(0.5, 0.5)": 0.5, "(1, 1)": 1.0, "(1, 1) capped": 1.0}


def dataset(config: Config, name: str, seed: int) -> eh.data.FederatedDataset:
    """The clients of a seed.  Section 5.1: 80 % of a device's rows are for training."""
    if name == "MNIST":
        return mnist(config, seed)
    return eh.data.synthetic(
        *() if name == "IID" else (_SPREADS[name],) * 2,
        iid=name == "IID",
        clients=config.clients,
        max_size=config.sampling_max_size if name.endswith("capped") else config.max_size,
        test_fraction=0.2,
        seed=seed,
    )


def mnist(config: Config, seed: int) -> eh.data.FederatedDataset:
    """Clients with two neighbouring digits each, in log-normal numbers (appendix C.1).

    Each pixel has mean 0 and deviation 1 over all 70,000 images, as in the authors' code.

    Raises:
      SystemExit: there is no file of the images.
    """
    path = config.data_dir / "mnist.npz"
    if not path.is_file():
        raise SystemExit(
            f"There is no {path}: say with --data-dir where it is, or leave the claims mnist out."
        )
    with np.load(path, allow_pickle=False) as table:
        images = np.concatenate([table["x_train"], table["x_test"]])
        y = np.concatenate([table["y_train"], table["y_test"]]).astype(np.int32)
    x = images.reshape(len(y), -1).astype(np.float32)
    x = (x - x.mean(axis=0, dtype=np.float64)) / (x.std(axis=0, dtype=np.float64) + 1e-3)
    client = eh.data.partition.consecutive(y, clients=config.mnist_clients, seed=seed)
    return eh.data.from_arrays(x.astype(np.float32), y, client, test_fraction=0.2, seed=seed)


def methods(config: Config, features: int, learning_rate: float) -> dict[str, eh.Algorithm]:
    """One object per method for the whole session, so that equal shapes are compiled once."""
    model = eh.models.softmax_regression(features=features, classes=10)
    descent = optax.sgd(learning_rate)
    work = eh.local.sgd(model, descent, epochs=config.epochs, batch_size=config.batch_size)
    single = eh.local.sgd(model, descent, epochs=1, batch_size=config.batch_size)
    by_size = eh.sampling.proportional()
    return {
        "FedAvg": eh.algorithms.fedavg(work),
        "mu=0": eh.algorithms.fedprox(work, mu=0.0),
        "mu=1": eh.algorithms.fedprox(work, mu=1.0),
        "FedAvg, E=1": eh.algorithms.fedavg(single),
        "mu=0, E=1": eh.algorithms.fedprox(single, mu=0.0),
        "mu=1, E=1": eh.algorithms.fedprox(single, mu=1.0),
        "adaptive from 0": eh.algorithms.fedprox_adaptive(work, mu0=0.0),
        "adaptive from 1": eh.algorithms.fedprox_adaptive(work, mu0=1.0),
        "FedDane": eh.algorithms.feddane(work, mu=0.0),
        "mu=0, scheme A": eh.algorithms.fedprox(work, mu=0.0, sampling=by_size),
        "mu=1, scheme A": eh.algorithms.fedprox(work, mu=1.0, sampling=by_size),
    }


def unlike(every: int, run: eh.Run) -> dict[str, float]:
    """How unlike the clients' gradients are, every so many rounds."""
    if run.info["rounds"] % every:
        return {}
    found = eh.evaluation.dissimilarity(run.algorithm.model, run.params, run.data.train)
    return {"gradient_variance": found.gradient_variance, "uniform_variance": found.uniform_variance}


def main(config: Config) -> None:
    """Runs the claims, each condition as a study of its methods, and saves each claim as soon as it is done."""
    synthetic = methods(config, 60, config.learning_rate)
    digits = methods(config, 28 * 28, config.mnist_learning_rate)
    for claim in config.claims:
        on_mnist = claim.startswith("mnist")
        runs = dict[Trial, list[Outcome]]()
        conditions = dict.fromkeys((trial.dataset, trial.stragglers) for trial in trials(claim))
        for name, share in conditions:
            # Whether a run has converged or diverged is a matter of consecutive rounds.
            each_round = claim == "accuracy" or on_mnist
            every, apart = (1, ", each round") if each_round else (config.eval_every, "")
            here = [trial for trial in trials(claim) if (trial.dataset, trial.stragglers) == (name, share)]
            study = eh.study(
                {trial.method: (digits if on_mnist else synthetic)[trial.method] for trial in here},
                partial(dataset, config, name),
                rounds=config.mnist_rounds if on_mnist else config.rounds,
                seeds=config.seeds
                if claim in ("stragglers", "accuracy", "heterogeneity") or on_mnist
                else config.more_seeds,
                cohort=config.cohort,
                eval_every=every,
                systems=eh.systems.stragglers(share) if share else None,
                measure=partial(unlike, config.variance_every),
                folder=config.under(f"{name}, {share:.0%}{apart}"),
                progress=True,
            )
            runs |= {trial: by_name(study)[trial.method] for trial in here}
        ordered = [(trial, runs[trial]) for trial in trials(claim)]
        path = save(config.out / f"{claim}.json", claim, asdict(config), ordered)
        print(table(path), f"Figure: {draw(path)}", sep="\n", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.fedprox", description=__doc__))
