"""What ``evenhand run`` and ``evenhand study`` take besides the data.

From top to bottom: the budget of privacy that ``--epsilon`` gives, and the noise that it calls for; a method that
becomes an algorithm once the model is known (:class:`Recipe`); the options that a run and a study share, and those of a
run alone (a study's are in :mod:`evenhand.cli._study`); the trackers of ``--watch``; the clients' local work, with one
value of each option for a run and several for a study.
"""

from __future__ import annotations

import itertools
import math
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy.typing as npt
from tyro.conf import arg

from evenhand import local, watch
from evenhand.cli._arguments import hyphenated, options_of
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError, EvenhandWarning, ModelError, perhaps
from evenhand.evaluation.metrics import BUILT_IN, resolved
from evenhand.expressions import braced, parse, with_noise
from evenhand.expressions.reading import NOISE, outermost, takes
from evenhand.models import linear_regression
from evenhand.privacy import Account, account, spent, usual_delta
from evenhand.simulation.folder import read_params
from evenhand.testing import toy_data, toy_model
from evenhand.types import Algorithm, Model, Privacy

NDArray = npt.NDArray[Any]

_NO_SCHEDULE = "none"
_DEFAULT_EVERY = "(default: 50 evaluations per run, 10 in a study)"
_DEFAULT_DELTA = "(default: a power of ten, at most 1 / clients)"
_DEFAULT_OUT = "(default: runs/METHOD-DATA-SEED)"


# --- --epsilon: the noise that a budget of privacy calls for, or why it does not suffice --------------------


_LEAST_NOISE, _MOST_NOISE, _MOST_CLIENTS = 1e-3, 2.0**14, 10**9


class Budget(NamedTuple):
    """What a run may spend.

    Attributes:
      epsilon: at most.
      delta: None: the usual one for the number of clients or examples.
      rounds: in which it is spent.
    """

    epsilon: float
    delta: float | None
    rounds: int

    def expression(self, text: str, data: FederatedDataset, method_of: Callable[[str], Algorithm]) -> str:
        """The method with the least noise that the budget allows, to about three digits, wherever none is given.

        Args:
          text: an expression.
          data: the clients.
          method_of: the method that an expression stands for.

        Raises:
          EvenhandError: the method guarantees no privacy, or no noise suffices.
        """
        if with_noise(text, 1.0) == text:
            return text
        refusal: list[EvenhandError] = []

        def enough(noise: float) -> bool:
            try:
                method = method_of(with_noise(text, noise))
            except EvenhandError as error:  # settings that bear only so much noise, or so little
                if noise == 1.0:
                    raise
                refusal[:] = [error]
                return noise > 1.0
            refusal.clear()
            return self._spent(method, data).epsilon <= self.epsilon

        with warnings.catch_warnings():  # of noise that is only tried
            warnings.simplefilter("ignore", EvenhandWarning)
            least = _least_noise(enough)
        if least is None or refusal:
            why = (
                f": {refusal[0]}" if refusal else " with any noise: give a larger epsilon, or fewer --rounds."
            )
            raise EvenhandError(
                f"--epsilon {self.epsilon:g} cannot be reached by {text:.80} in {self.rounds} rounds{why}"
            )
        return with_noise(text, least)

    def checked(self, method: Algorithm, data: FederatedDataset, *, resumed: bool = False) -> Algorithm:
        """The method, whose guarantee is stated at the budget's delta, after a check that it stays within the budget.

        Args:
          method: the method.
          data: the clients.
          resumed: whether the run has begun, and its noise can no longer be changed.

        Raises:
          EvenhandError: it does not, or guarantees no privacy; the sentence says what would do.
        """
        total, clients = self._spent(method, data), data.num_clients
        assert method.privacy is not None
        if total.epsilon <= self.epsilon:
            return method._replace(privacy=method.privacy._replace(delta=self.delta))
        if resumed:

            def spent_in(rounds: int) -> float:
                return self._replace(rounds=rounds)._spent(method, data).epsilon

            most = bisect_right(range(1, self.rounds), self.epsilon, key=spent_in)
            cure = (
                f"with the noise of this run, it allows at most {most} rounds; for {self.rounds} rounds, start a new "
                f"run in another folder without a {NOISE}"
            )
        else:
            cure = f"leave its {NOISE} out, and the smallest sufficient value is used"
            is_drawn = method.privacy.unit == "client" and method.sampling.scheduled is None
            if is_drawn and (most := self._clients(method.privacy, clients)) is not None:
                cure += f"; or draw cohorts of this size from {most:,} clients (now {clients:,})"
        raise EvenhandError(
            f"--epsilon {self.epsilon:g} does not suffice for {method.name:.80}, which spends {total.epsilon:.4g} in "
            f"{self.rounds} rounds at a delta of {total.delta:g}: {cure}."
        )

    def _spent(self, method: Algorithm, data: FederatedDataset) -> Account:
        if method.privacy is None:
            raise EvenhandError(
                f"--epsilon is for methods that guarantee privacy, and {method.name:.80} does not: try "
                "'dp_fedavg(clip=1)', or put private() around a method with a noisy aggregator."
            )
        units = data.num_clients if method.privacy.unit == "client" else data.train.rows
        return account(method.privacy, rounds=self.rounds, units=units, delta=self.delta)

    def _clients(self, privacy: Privacy, clients: int) -> int | None:
        """How many clients would afford the method with the cohorts that it has; None: no number would."""

        def affords(number: int) -> bool:
            share = clients / number
            rated = [release._replace(rate=release.rate * share) for release in privacy.releases(self.rounds)]
            delta = usual_delta(number) if self.delta is None else self.delta
            return spent(rated, delta=delta).epsilon <= self.epsilon

        high = 2 * clients
        while not affords(high):
            high *= 2
            if high > _MOST_CLIENTS:
                return None
        return bisect_left(range(high), True, lo=high // 2, key=affords)


def _least_noise(enough: Callable[[float], bool]) -> float | None:
    """About the least noise that is enough, to four digits, rounded up and tried last; None: none is."""
    high = 1.0
    while not enough(high):
        high *= 2.0
        if high > _MOST_NOISE:
            return None
    low = high / 2.0 if high > 1.0 else 0.0
    while high - low > 5e-4 * high and high > _LEAST_NOISE:
        middle = (low + high) / 2.0
        low, high = (low, middle) if enough(middle) else (middle, high)
    unit = 10.0 ** (math.floor(math.log10(high)) - 3)
    rounded = float(f"{math.ceil(high / unit) * unit:.4g}")
    return rounded if enough(rounded) else None


# --- a method that becomes an algorithm once the model is known ---------------------------------------------


class Beside(NamedTuple):
    """The files of arrays that stand beside an expression.

    Attributes:
      files: argument -> the file.
      public: ``(x, y)`` in the file of public examples; None: there is none, or it is not read yet.
      is_read: whether the files are read; before, stand-ins have their place.
    """

    files: Mapping[str, Path]
    public: tuple[NDArray, NDArray] | None = None
    is_read: bool = False

    def read(self, labelled: Callable[[Path], tuple[NDArray, NDArray]]) -> Beside:
        """The same once the data are known; ``labelled`` reads public examples in their form."""
        path = self.files.get("public")
        return Beside(self.files, None if path is None else labelled(path), is_read=True)

    def arrays(self, model: Model) -> dict[str, Any]:
        """Argument -> its arrays, for a method that trains ``model``.

        Raises:
          EvenhandError: scales do not fit the model.
        """
        rows = toy_data().train
        made: dict[str, Any] = {"public": (rows.x, rows.y) if self.public is None else self.public}
        if (path := self.files.get("divided_by")) is not None:
            like = jax.eval_shape(model.init, jax.random.key(0))
            ones = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), like)
            made["divided_by"] = read_params(path, like) if self.is_read else ones
        return {name: made[name] for name in self.files}

    def check_used(self, *texts: str) -> None:
        """Refuses a file that no call of the expressions takes."""
        for name in self.files:
            if not any(takes(text, name) for text in texts):
                raise EvenhandError(
                    f"--{hyphenated(name)} has no effect on {texts[0]:.80}, which has no argument {name}: leave it "
                    "out, or take such a method: 'alone(adadps(0.1, clip=1, noise_multiplier=1, rate=0.1, steps=9))'."
                )


class Recipe(NamedTuple):
    """A method before its model is known; a run has one, and a study one for each setting.

    Attributes:
      text: its expression.
      work: ``model -> Work``: the local work of the options, where the expression has none.
      limit: the budget of privacy; None: there is none.
      beside: files of arrays that the expression cannot hold.
    """

    text: str
    work: Callable[[Model], local.Work]
    limit: Budget | None = None
    beside: Beside = Beside({})

    def build(self, model: Model) -> Algorithm:
        """The algorithm; a budget of privacy that has not decided the noise yet leaves it at 1."""
        text = self.text if self.limit is None else with_noise(self.text, 1.0)
        return parse(text, Algorithm, model, lambda: self.work(model), self.beside.arrays(model))

    def _build_toy(self, model: Model) -> Algorithm:
        """The algorithm for a model that is not the user's, whom no file of arrays fits."""
        return self._replace(beside=Beside(self.beside.files)).build(model)

    def takes_work(self, model: Model | None = None) -> bool:
        """Whether the method takes its local work from the options, rather than from its expression."""
        asked: list[bool] = []

        def work(model: Model) -> local.Work:
            asked.append(True)
            return self.work(model)

        asking = self._replace(work=work)
        with suppress(ModelError):  # a toy model is not the user's
            asking._build_toy(toy_model()) if model is None else asking.build(model)
        return bool(asked)

    def pools(self) -> bool:
        """Whether the method trains on the examples of all clients together."""
        for model in (toy_model(), linear_regression(1)):  # losses may be for classes, or for real targets
            with suppress(ModelError):
                return self._build_toy(model).pooled is not None
        return False

    def funded(self, data: FederatedDataset, model: Model) -> Recipe:
        """The same with the least noise that the budget of privacy allows on ``data``, where the method has none.

        Raises:
          EvenhandError: the method guarantees no privacy, or no noise suffices.
        """
        if self.limit is None:
            return self

        def method(text: str) -> Algorithm:
            with suppress(ModelError):  # the toy model, which is faster to build, is not the user's
                return self._replace(text=text)._build_toy(toy_model())
            return self._replace(text=text).build(model)

        return self._replace(text=self.limit.expression(self.text, data, method))


# --- what a run and a study share ---------------------------------------------------------------------------


@dataclass(frozen=True)
class SharedOptions:
    """How long to train, with which clients, and what to measure."""

    evaluations: ClassVar[int]
    """How often a run is evaluated, unless --eval-every says so."""

    rounds: int = 50
    """communication rounds T"""
    cohort: int | Literal["all"] = "all"
    """clients drawn per round m"""
    systems: Annotated[str | None, arg(metavar="SYSTEMS", help_behavior_hint="(default: none)")] = None
    """availability, speed and dropouts: 'chain(diurnal(24, 4), dropouts(0.1))'; see `evenhand list systems`"""
    attack: Annotated[str | None, arg(metavar="ATTACK", help_behavior_hint="(default: none)")] = None
    """what malicious clients do: 'sign_flip(0.2)' for a fifth of the clients; see `evenhand list attacks`"""
    epsilon: Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="(default: no limit)")] = None
    """privacy budget epsilon; if the method's noise_multiplier is omitted, the smallest sufficient value is used"""
    delta: Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint=_DEFAULT_DELTA)] = None
    """privacy budget delta, the probability that goes with --epsilon"""
    public: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """file of public examples, in the format of --data, for methods with a parameter public, such as adadps"""
    divided_by: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """.npz file of gradient scales, like the params.npz of a run folder, for methods with a parameter divided_by"""
    eval_every: Annotated[int | None, arg(metavar="INT", help_behavior_hint=_DEFAULT_EVERY)] = None
    """rounds between evaluations of all clients"""
    eval_clients: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: all)")] = None
    """evaluate only this many clients, drawn once per run; metrics, clients.csv and report cover only these"""
    metrics: Annotated[str | None, arg(metavar="METRIC,...", help_behavior_hint="(default: none)")] = None
    """further metrics of each client, measured after the last round: auc, macro_f1, ...; see `evenhand list metrics`"""
    untrained: Literal["global", "initial"] = "global"
    """model for clients whose personal model never trained: the current global model, or the initial model"""
    watch: Annotated[str | None, arg(metavar="TRACKER,...", help_behavior_hint="(default: none)")] = None
    """experiment trackers to log to: tensorboard (files in the folder), mlflow, wandb"""
    masks: bool = False
    """draw the masks of secure sums, which cancel: the same results to the bit, in more time"""
    quiet: bool = False
    """print nothing but errors"""

    @property
    def clients_per_round(self) -> int | None:
        """The size of a cohort; None: all clients."""
        return None if self.cohort == "all" else self.cohort

    @property
    def every(self) -> int:
        """Rounds between two evaluations."""
        return max(1, self.rounds // self.evaluations) if self.eval_every is None else self.eval_every

    @property
    def beside(self) -> Beside:
        """The files of arrays that stand beside the method's expression, not read yet."""
        files = {"public": self.public, "divided_by": self.divided_by}
        return Beside({name: Path(path) for name, path in files.items() if path is not None})

    @property
    def limit(self) -> Budget | None:
        """The budget of privacy; None: there is none.

        Raises:
          EvenhandError: a delta without an epsilon, or a number out of range.
        """
        if self.epsilon is None:
            if self.delta is not None:
                raise EvenhandError("--delta needs --epsilon: give both, or read epsilon from the report.")
            return None
        if not 0 < self.epsilon < math.inf or not (self.delta is None or 0 < self.delta < 1):
            raise EvenhandError(
                f"--epsilon {self.epsilon} --delta {self.delta}: give a finite epsilon above 0, and a delta between "
                "0 and 1."
            )
        return Budget(self.epsilon, self.delta, self.rounds)


# --- how a run trains, and where it is written --------------------------------------------------------------


@dataclass(frozen=True)
class TrainingOptions(SharedOptions):
    """How long to train, with which clients, and where to write the run."""

    evaluations: ClassVar[int] = 50

    stragglers: float = 0.0
    """share of each cohort that is slow and does only part of its work"""
    seed: int = 0
    """seed of the initial model, cohorts, batches and stragglers"""
    unseen: float = 0.0
    """share of clients held out of training, to measure how well the method serves unseen clients"""
    unseen_seed: int = 0
    """seed for drawing the clients of --unseen"""
    start: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="(default: a new model)")] = None
    """start training from the global model of this run folder"""
    lanes: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: automatic)")] = None
    """clients trained in parallel on a device"""
    checkpoint: float | Literal["off"] = 10.0
    """seconds between checkpoints, for `evenhand resume`; 0: at each evaluation; off: none"""
    headline: Annotated[
        str | None, arg(metavar="METRIC", help_behavior_hint="(default: accuracy, else loss)")
    ] = None
    """metric of the summary, the report and `evenhand compare`: accuracy, loss, or one of --metrics, such as auc"""
    keep: str = "last"
    """evaluated round that the results are from: last, or best:SPLIT:STATISTIC, such as best:valid:worst10"""
    diagnostics: bool = False
    """after training, measure the dissimilarity B of clients' gradients and the inexactness gamma of local work"""
    private_metrics: bool = False
    """also estimate mean, percentiles and tails over clients from a secure histogram, each with its error bound"""
    private_limit: Annotated[
        float | None, arg(metavar="FLOAT", help_behavior_hint="(default: accuracies only)")
    ] = None
    """public upper bound of the losses in --private-metrics; larger losses are clipped to it"""
    keep_personal: bool = False
    """keep personal models even with --checkpoint off or --keep best:..., or if they take more than 4 GB"""
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint=_DEFAULT_OUT)] = None
    """the run folder"""
    overwrite: bool = False
    """replace an earlier run in that folder"""
    config: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """take options from the config.json of an earlier run; options given here take precedence"""
    dry_run: bool = False
    """time a few rounds, print the estimated work, memory and time of the run, and write nothing"""


def check_headline(options: TrainingOptions, model: Model | None = None) -> None:
    """Refuses a headline that the run will not have.

    Args:
      options: of the run.
      model: what is trained; None: it is not known yet.

    Raises:
      EvenhandError: it is not measured, or not in the round that is kept.
    """
    name, asked = options.headline, [metric.name for metric in resolved(options.metrics or ())]
    if name is None:
        return
    if name in asked:
        if options.keep != "last":
            raise EvenhandError(
                f"--headline {name} with --keep {options.keep:.60}: the metrics of --metrics are measured after the "
                "last round only: leave one of the two out."
            )
        return
    if name in BUILT_IN:
        metrics = ",".join([*asked, name])
        raise EvenhandError(f"--headline {name}: it is not measured: add --metrics {metrics}.")
    names = ["loss", *(() if model is None else model.metrics), *asked]
    if model is not None and name not in names:
        hint = perhaps(name, names)
        raise EvenhandError(
            f"--headline {name!r:.40}: the model does not measure it{hint}: choose from {', '.join(names)}, or add it "
            "to --metrics."
        )


def check_private(options: TrainingOptions, model: Model | None = None) -> None:
    """Refuses private metrics that have no bounds.

    Args:
      options: of the run.
      model: what is trained; None: it is not known yet.

    Raises:
      EvenhandError: a limit that is no limit, or without private metrics; or there is nothing to measure without one.
    """
    limit = options.private_limit
    if limit is not None and not (options.private_metrics and 0.0 < limit < math.inf):
        raise EvenhandError(
            f"--private-limit {limit:g}: give a finite number above 0, together with --private-metrics."
            if options.private_metrics
            else "--private-limit has no effect without --private-metrics: give both."
        )
    if options.private_metrics and limit is None and model is not None and "accuracy" not in model.metrics:
        raise EvenhandError(
            f"--private-metrics: {model.name or 'the model':.60} has no accuracy: to use its loss, "
            "give an upper bound of it, such as --private-limit 10."
        )


# --- --watch: trackers by name ------------------------------------------------------------------------------


_TRACKERS: Mapping[str, Callable[[Path], watch.Watcher]] = {
    "tensorboard": lambda folder: watch.tensorboard(folder / "tensorboard"),
    "mlflow": lambda folder: watch.mlflow(),
    "wandb": lambda folder: watch.wandb(folder=folder, group=folder.name),
}


def check_watch(text: str | None) -> list[str]:
    """The names in ``--watch``.

    Raises:
      EvenhandError: there is no such tracker.
    """
    names = [] if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in _TRACKERS:
            hint = perhaps(name, _TRACKERS) or f" among {', '.join(_TRACKERS)}"
            raise EvenhandError(f"--watch {name!r:.40}: there is no such tracker{hint}.")
    return list(dict.fromkeys(names))


def trackers(text: str | None, folder: Path, config: Mapping[str, Any] | None = None) -> list[watch.Watcher]:
    """What ``--watch`` names.

    Args:
      text: names with commas between them; None: none.
      folder: of the run or study, for their files.
      config: what ``config.json`` holds, for a run: it is logged as settings, under the folder's name.

    Raises:
      EvenhandError: there is no such tracker, or its package is not installed.
    """
    made = [_TRACKERS[name](folder) for name in check_watch(text)]
    return made if config is None else [_of_run(tracker, folder, config) for tracker in made]


def _of_run(tracker: watch.Watcher, folder: Path, config: Mapping[str, Any]) -> watch.Watcher:
    def begin(name: str, settings: Mapping[str, Any]) -> watch.Watched:
        return tracker.begin(folder.name, {**config["options"], **settings, "method": config["method"]})

    return watch.Watcher(begin)


# --- the clients' local work: of a run, and of a study, whose options may have several values each ----------


@dataclass(frozen=True)
class LocalOptions:
    """Local training of a client in one round."""

    lr: float = 0.1
    """the clients' learning rate (step size) η, for plain gradient descent"""
    epochs: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: 1)")] = None
    """passes E over a client's examples per round"""
    steps: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: not used)")] = None
    """batches per round, instead of --epochs"""
    batch_size: int | float | Literal["all"] = 10
    """examples per batch; below 1, the share of a client's examples"""
    schedule: Annotated[str | None, arg(metavar="SCHEDULE", help_behavior_hint="(default: none)")] = None
    """learning-rate schedule by round, such as 'steps(0.5, every=20)'; see `evenhand list schedules`"""

    def work(self, model: Model) -> local.Work:
        """The local work, for one model."""
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise EvenhandError(f"--lr {self.lr} is not a step size: give a number above 0.")
        if self.epochs is not None and self.steps is not None:
            raise EvenhandError("--epochs and --steps exclude each other: give one of them.")
        epochs = 1 if self.epochs is None and self.steps is None else self.epochs
        size = None if self.batch_size == "all" else self.batch_size
        text, schedule = self.schedule, None
        if text is not None and text.strip() != _NO_SCHEDULE:
            # A schedule takes no local work.
            schedule = parse(text, local.Schedule, model, lambda: local.sgd(model, self.lr, epochs=1))
        return local.sgd(model, self.lr, epochs=epochs, steps=self.steps, batch_size=size, schedule=schedule)


@dataclass(frozen=True)
class GridOptions:
    """Local training of a client in one round; several values, as in 0.01,0.1, are tried with every method."""

    lr: Annotated[str, arg(metavar="FLOAT,...")] = "0.1"
    """the clients' learning rates (step sizes) η"""
    epochs: Annotated[str | None, arg(metavar="INT,...", help_behavior_hint="(default: 1)")] = None
    """passes E over a client's examples per round"""
    steps: Annotated[str | None, arg(metavar="INT,...", help_behavior_hint="(default: not used)")] = None
    """batches per round, instead of --epochs"""
    batch_size: Annotated[str, arg(metavar="INT,...")] = "10"
    """examples per batch; below 1, the share of a client's; all: a client's examples at once"""
    schedule: Annotated[str | None, arg(metavar="SCHEDULE,...", help_behavior_hint="(default: none)")] = None
    """learning-rate schedules by round; each of several is tried, as in 'none, steps(0.5, every=20)'"""

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The options that have several values, and the step size, so that more step sizes only add settings."""
        return {name: values for name, values in self._values().items() if len(values) > 1 or name == "lr"}

    def work(self, model: Model, chosen: Mapping[str, Any]) -> local.Work:
        """The local work with one value of each option: the ``chosen`` one, or else the first."""
        setting = {name: values[0] for name, values in self._values().items()}
        setting |= {name: chosen[name] for name in self.axes if name in chosen}
        return LocalOptions(**setting).work(model)

    def _values(self) -> dict[str, list[Any]]:
        taken = options_of(LocalOptions)
        texts = {name: text for name, text in vars(self).items() if text is not None}
        listed = {"schedule": schedules(texts.pop("schedule"))} if "schedule" in texts else {}
        return {
            name: several(name, text, taken[f"--{hyphenated(name)}"].read) for name, text in texts.items()
        } | listed


def schedules(text: str) -> list[str]:
    """The schedules of ``--schedule``: one expression, several with commas between them, or with values in braces.

    Raises:
      EvenhandError: they cannot be read, or one of them is given twice.

    Example:
      >>> schedules("none, steps(0.5, every=2)")
      ['none', 'steps(0.5, every=2)']
      >>> schedules("steps({0.5, 0.1}, every=2)")
      ['steps(0.5, every=2)', 'steps(0.1, every=2)']
    """
    within = text if "{" in text else f"{{{text}}}"
    expression = braced(f"sgd(schedule={within})")
    choices = itertools.product(*expression.axes.values())
    filled = [expression.fill(dict(zip(expression.axes, choice, strict=True))) for choice in choices]
    calls = [outermost(call).keywords for call in filled]
    if len(set(filled)) < len(filled) or any(set(words) != {"schedule"} for words in calls):
        raise EvenhandError(
            f"--schedule {text!r:.60} is not understood: give a schedule, or distinct ones as in "
            "'none, steps(0.5, every=20)'."
        )
    return [words["schedule"] for words in calls]


def several(name: str, text: str, read: Callable[[str], Any]) -> list[Any]:
    """The values that an option has.

    Raises:
      EvenhandError: they cannot be read, or one of them is given twice.
    """
    try:
        values = [read(value.strip()) for value in text.removesuffix(",").split(",")]
    except ValueError:
        values = []
    if not values or len(set(values)) < len(values):
        raise EvenhandError(
            f"--{hyphenated(name)} {text!r:.40} is not understood: give a number, or distinct ones as in 1,2."
        )
    return values
