"""What to know before trusting a run's numbers: found from its measurements, and written in sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from evenhand.data import FederatedDataset
from evenhand.evaluation._baseline import Baseline, sampled
from evenhand.evaluation._classes import ClassMetrics, ClassTotals, NDArray, Ranking, class_totals, ranking
from evenhand.evaluation.metrics import OF_CLASSES, SPLIT_NAMES, SPLITS, column, is_share, of_global
from evenhand.text import counted, listed
from evenhand.types import Need

Columns: TypeAlias = Mapping[str, NDArray]
Constant: TypeAlias = Callable[[], Baseline | None]

_LOSSES = tuple(f"{split}_loss" for split in SPLITS)
_WORSE, _MUCH_WORSE, _LATEST = 3.0, 100.0, 3
_TINY, _STILL = 1e-6, 1e-5
_LEAST_OF_ONE = 20
_ODDS, _RARE = 20.0, 0.25
_APART, _PERSONAL, _NAMED = 1000.0, 10.0, 5

Kind: TypeAlias = (
    Literal[
        "diverged", "unmoved", "rejected", "guessing", "base_rate", "no_guarantee", "schedule"
    ]  # of the training
    | Literal["untrained", "client_diverged", "unavailable", "unchosen", "unattacked"]  # of single clients
    | Literal["unaccounted", "few_expected"]  # of noise for privacy
    | Literal["scales", "unmeasured"]  # of the data
)


OF_THE_DATA: tuple[Kind, ...] = ("scales", "unmeasured")
"""The kinds that are about the data, and so about every run on them."""


class Finding(NamedTuple):
    """A problem found in a run.

    Attributes:
      kind: ``"diverged"``, ``"unmoved"`` (nothing was learnt because nothing changed), ``"rejected"`` (uploads
        that no honest client can send), ``"guessing"`` (the model does no better than one constant answer),
        ``"base_rate"`` (only its accuracy does no better),
        ``"scales"`` (the features' scales differ too much), ``"unmeasured"`` (clients without rows in the split that
        the numbers are about), ``"untrained"`` (clients that never trained a personal model),
        ``"client_diverged"`` (some clients' personal models), ``"unchosen"`` (clients that cannot choose among the
        models of several levels), ``"no_guarantee"`` (too few uploads for what a robust aggregator guarantees),
        ``"schedule"`` (a schedule that restarts each round), ``"unaccounted"`` (noise without a guarantee),
        ``"few_expected"`` (noise that few clients share), ``"unavailable"`` (clients that were available in no
        round) or ``"unattacked"`` (an attack without a malicious client).
      sentence: what is wrong, since when, by how much, and what to try; plain text of one or more sentences.
      split: the split whose numbers it is about, such as ``"test"``; ``"unseen"`` for the test numbers of clients that
        took no part in the training; empty: no single one.
    """

    kind: Kind
    sentence: str
    split: str = ""


def findings(
    history: Mapping[str, NDArray],
    *,
    per_round: Mapping[str, NDArray],
    classes: Mapping[str, ClassMetrics],
    blank: float,
    class_names: Sequence[str] | None = None,
    scales: Finding | None = None,
    constant: Callable[[], Baseline | None] = lambda: None,
    restarts: bool = False,
    may_rise: bool = False,
    guarantee: Finding | None = None,
    clients: Sequence[Finding | None] = (),
    noun: str = "client",
    asked: Collection[str] = (),
    aucs: Columns = MappingProxyType({}),
    is_exposed: Callable[[], bool] = lambda: False,
) -> tuple[Finding, ...]:
    """All that is wrong with a run, the worst first; before the first round only the features' scales can be.

    Args:
      history: as in :attr:`evenhand.simulation.Run.history`.
      per_round: as in :attr:`evenhand.simulation.Run.per_round`.
      classes: split -> accuracy of each class at each client, for the splits that have classes.
      blank: from :func:`blank_loss`.
      class_names: the names of classes 0, 1, ...; None: their numbers.
      scales: from :func:`feature_scales`.
      constant: :func:`evenhand.evaluation.baseline` of the run, called only where it matters.
      restarts: whether a schedule of the clients' step sizes restarts in every round.
      may_rise: whether the method minimises something else than the mean loss, which may therefore rise: to give up
        false labels, a robust risk raises it without bound.  Only a loss that is not finite is then a divergence.
      guarantee: from :func:`no_guarantee`.
      clients: those about single clients, from :func:`diverged_clients`, :func:`untrained_clients` and
        :func:`unchosen_levels`.
      noun: what the clients are called that the classes and the constant are about, in the singular.
      asked: the names of the metrics that are measured besides, after the last round.
      aucs: split -> the AUC of each client, numbered as in ``classes``, where it has been measured.
      is_exposed: whether some clients are malicious and one upload can move the model as far as it likes; called only
        where training diverged.
    """
    schedule, scaled = _SCHEDULE if restarts else None, scales is None
    others = tuple(finding for finding in (schedule, *clients, guarantee, scales) if finding)
    if not len(history["round"]) or history["round"][-1] < 1:
        return others
    history = _since_measured(history)
    if rejected := _rejected(history, per_round, scaled=scaled):
        others = (rejected, *others)
        # Without any accepted upload nothing was learnt, and only the uploads can say why.
        if not np.any(per_round["reported"]) and _is_still(history):
            return others

    def cure(at_once: bool) -> str:
        return _ROBUST if is_exposed() else _slower(scaled=scaled, at_once=at_once, noun=noun)

    worst = _diverged(history, blank, cure, may_rise=may_rise) or _unmoved(history, per_round, noun)
    worst = worst or _one_class(classes.get("train"), class_names, noun)
    # On test examples or, without any, on the next best split.
    if splits := [split for split in reversed(SPLITS) if split in classes and len(classes[split].counts)]:
        cells, auc = classes[splits[0]], aucs.get(splits[0])
        order = None if worst or auc is None else ranking(cells, np.asarray(auc, np.float64))
        worst = worst or _guessing(splits[0], cells, class_names, constant, noun, asked=asked, order=order)
    else:
        worst = worst or _constant(constant(), noun)
    return (worst, *others) if worst else others


def _since_measured(history: Columns) -> Columns:
    """From the first training loss that is a number on: on a network, nobody may have answered before.

    All of it where none is, since that is a divergence.
    """
    first = int(np.argmax(np.isfinite(np.asarray(history.get("train_loss", [0.0]), np.float64))))
    return {name: values[first:] for name, values in history.items()}


def no_guarantee(needs: Sequence[Need], cohort: int | None, reported: NDArray | None) -> Finding | None:
    """A finding where a robust aggregator gets too few uploads for its guarantee.

    The rule: a cohort of as many clients as are drawn is too small for it, or in some round after the first the
    accepted uploads are, because clients were drawn at random, dropped out, were too slow or were rejected.  Rounds
    without any upload do not count, as they change nothing.

    Args:
      needs: of the method's aggregators.
      cohort: how many clients a round draws; None: a random number.
      reported: accepted uploads in each round so far; None: unknown.
    """
    counts = np.asarray([] if reported is None else reported, np.int64)
    texts = list[str]()
    for need in dict.fromkeys(needs):
        few = [m for m in counts.tolist() if m > 0 and not need.holds(m)]
        if cohort is not None and not need.holds(cohort):
            least, came = need.least(cohort), f"but the cohort has {cohort:,}"
        elif few:
            least = need.least(max(few))
            word, rounds = "too few" if least is None else "fewer", counted(len(counts), "round")
            came = f"but {word} arrived in {len(few):,} of {rounds} (at worst {min(few):,})"
        else:
            continue
        wanted = "more uploads than any cohort has" if least is None else counted(least, "upload")
        texts.append(f"{need.name} needs {wanted}, {came}")
    if not texts:
        return None
    text = (
        f"{'; '.join(texts)}: with so few, the guarantee against malicious clients does not hold. Draw larger cohorts, "
        "or set the aggregator to fewer malicious clients."
    )
    return Finding("no_guarantee", text)


_SCHEDULE = Finding(
    "schedule",
    "The clients' optimiser has a schedule, and it restarts in each round: every round uses only its first steps, as "
    "many as a client takes in one round, so the step size does not change from round to round. Give eh.local.sgd() "
    "a constant step size and schedule=, a function of the round such as eh.local.cosine(rounds) (--schedule).",
)
"""A schedule in the clients' optimiser, which begins again with each round's first step."""


def _rejected(history: Columns, per_round: Columns, *, scaled: bool) -> Finding | None:
    """The server rejected uploads: numbers in them were not finite, or their weights were impossible."""
    rejected = np.asarray(per_round.get("rejected", ()), np.float64)
    if not np.any(rejected):
        return None
    rounds, accepted = np.flatnonzero(rejected), np.asarray(per_round["reported"]) != 0
    text = (
        f"The server rejected {counted(int(rejected.sum()), 'upload')} in {len(rounds):,} of "
        f"{counted(len(rejected), 'round')}, first in round {rounds[0] + 1}: a number in them was not finite, or "
        "their weight was below 0 or above that of the largest client"
    )
    if not accepted.any() and _is_still(history):
        text = f"The model never changed. {text}; none was ever accepted"
    elif empty := int(np.sum(~accepted[rounds])):
        text += f". In {counted(empty, 'round')} none was accepted"
    cure = _slower(scaled=scaled, at_once=rounds[0] == 0)
    return Finding("rejected", f"{text}. If no client is malicious, local training diverged. {cure}")


_Cure: TypeAlias = Callable[[bool], str]
"""What to do about training that diverged, ``at_once`` or later."""


def _diverged(history: Columns, blank: float, cure: _Cure, *, may_rise: bool) -> Finding | None:
    """The training loss ends far above where it was, or some loss is not finite.

    The rule: at the last evaluation, the loss of some split is NaN or infinite; or each of the last three evaluations
    after round 0 is at least 3 times the floor; or the last one is at least 100 times the floor.  The floor is the
    larger of the lowest training loss of any evaluation and the loss of a model that knows nothing (where unknown, the
    first training loss that is a number), and at least 1e-6.

    So a loss that starts near 0 may rise to three times that of a model that knows nothing; so may a loss that a fair,
    robust or private method trades for something else; and one bad round, in the middle or among the last three, is a
    swing, not a divergence.

    The training loss comes first, and the finding names its split: a loss that is not finite on test examples alone
    must neither hide training that diverged nor count as that.
    """
    in_training = _not_finite(history, "train", cure)
    if in_training is None and not may_rise:
        in_training = _risen(history, blank, cure)
    others = (_not_finite(history, split, cure) for split in ("valid", "test"))
    return in_training or next(filter(None, others), None)


def _not_finite(history: Columns, split: str, cure: _Cure) -> Finding | None:
    """The last loss of a split is NaN or infinite."""
    rounds, column = history["round"], np.asarray(history.get(f"{split}_loss", [0.0]), np.float64)
    if math.isfinite(column[-1]):
        return None
    first = 1 + int(np.max(np.flatnonzero(np.isfinite(column)), initial=-1))
    name = SPLIT_NAMES[split]
    begin = "Training diverged" if split == "train" else f"Do not rely on the {name} numbers"
    text = f"{begin}: the {name} loss is not a finite number from round {rounds[first]} on"
    if first > 0:
        text += f"; at round {rounds[first - 1]} it was {_text(column[first - 1])}"
    if split != "train":
        text += f". The training loss is finite, so look for extreme values in the {name} examples first"
    return Finding("diverged", f"{text}. {cure(first <= 1)}", split)


def _risen(history: Columns, blank: float, cure: _Cure) -> Finding | None:
    """The training loss, which is finite at the end, is far above its floor (:func:`_diverged`)."""
    rounds, loss = history["round"], np.asarray(history.get("train_loss", ()), np.float64)
    if len(loss) < 2:  # after a restart, or where nobody answered: there is nothing to compare it with
        return None
    finite = np.where(np.isfinite(loss), loss, np.inf)
    floor = max(float(np.min(finite)), blank if blank > 0 else float(finite[0]), _TINY)
    if np.min(finite[1:][-_LATEST:]) < _WORSE * floor and finite[-1] < _MUCH_WORSE * floor:
        return None
    lowest = int(np.argmin(finite))
    first = 1 + int(np.max(np.flatnonzero(finite < _WORSE * floor), initial=0))
    text = (
        f"Training diverged: the training loss rose from {_text(loss[lowest])} at round {rounds[lowest]} to "
        f"{_text(loss[-1])} at round {rounds[-1]}"
    )
    if first < len(loss) - 1:
        text += f", and from round {rounds[first]} on it stayed at {_text(_WORSE * floor)} or more"
    return Finding("diverged", f"{text}. {cure(first <= 1)}", "train")


_ROBUST = (
    "Some clients are malicious, and one upload can move the model as far as it likes: use a robust aggregator, such "
    "as aggregator=caf(malicious), with the number of malicious clients in a cohort, or where the server may see only "
    "sums aggregator=centered_clipping(radius)."
)


def _slower(*, scaled: bool, at_once: bool, noun: str = "client") -> str:
    size = "hundred times smaller" if at_once else "smaller"
    cures = f"a {size} client step size, clipped gradients, fewer local epochs or a smaller server step size"
    cures = f"a {size} step size or fewer steps" if noun == "group" else cures
    return f"Try {cures}." if scaled else f"Bring the features to one scale first; then try {cures}."


def _unmoved(history: Columns, per_round: Columns, noun: str) -> Finding | None:
    """Training has changed nothing.

    The rule: at every evaluation, each split's loss differs from its value at round 0 by at most 1e-5 of that value,
    and the training loss is not 0, where nothing would be left to learn; or no client reported in any round.  Where
    the training loss at round 0 is unknown, the first evaluation that has one takes its place, if there are later ones.
    """
    rounds, losses = int(history["round"][-1]), np.asarray(history.get("train_loss", ()), np.float64)
    reported = per_round.get("reported")
    if reported is not None and len(reported) and not np.any(reported) and _is_still(history):
        text = (
            f"The model never changed: no client reported in any of the {rounds} rounds, because none was available, "
            "or all of them dropped out, missed the deadline or were stragglers, whose work this method discards. "
            "Change these conditions, or use a method that keeps partial work, such as FedProx."
        )
        return Finding("unmoved", text)
    if len(losses) < 2 or losses[0] == 0 or not _is_still(history):
        return None
    norms = [values for name, values in per_round.items() if name.startswith("update_norm")]
    first = int(history["round"][0])
    text = (
        f"The model did not change: after {rounds} rounds the training loss is {_text(float(losses[0]))}, as "
        f"{f'after {first}' if first else 'before the first'}"
    )
    if norms and not any(np.any(values) for values in norms):
        text += (
            ", and every update had norm 0. Check that the clients' step size is not 0, that the loss depends on "
            "the parameters, and that the aggregator does not reject every upload."
        )
    else:
        step = "step size" if noun == "group" else "client or server step size"
        text += f". Try a larger {step}, unless the model was already trained."
    return Finding("unmoved", text)


def _is_still(history: Columns) -> bool:
    """Whether no loss of any split has changed since the first evaluation."""
    columns = [np.asarray(history[name]) for name in _LOSSES if name in history]
    return not any(np.any(np.abs(x - x[0]) > _STILL * np.abs(x[0])) for x in columns)


def _one_class(cells: ClassMetrics | None, names: Sequence[str] | None, noun: str) -> Finding | None:
    """All training examples, at least 20, are of one class."""
    if cells is None or len(present := np.unique(cells.classes[cells.counts > 0])) != 1:
        return None
    if (examples := int(np.sum(cells.counts))) < _LEAST_OF_ONE:
        return None
    text = (
        f"All {examples:,} training examples{_whose(cells, noun)} are of one class, {_called(present[0], names)}: "
        "there is nothing to learn, and an accuracy of 100 % means nothing. Check which column holds the labels, "
        "or add examples of other classes."
    )
    return Finding("guessing", text)


def _called(number: int, names: Sequence[str] | None) -> str:
    return f"class {number}" if names is None else f"“{names[number]}”"


def _whose(cells: ClassMetrics, noun: str) -> str:
    """Whose examples these are, where they are not simply all clients'."""
    return "" if noun in ("client", "group") else f" of {counted(len(np.unique(cells.clients)), noun)}"


def _constant(against: Baseline | None, noun: str) -> Finding | None:
    """Of real targets, the mean loss over clients is at least that of the best constant.

    With fewer than 20 examples, it must be higher by more than the noise between clients.
    """
    if against is None or against.of_classes:
        return None
    if not against.is_worse and not (against.rows >= _LEAST_OF_ONE and against.loss >= against.constant):
        return None
    metric = against.metric.replace("_", " ")
    answer = "the best constant" if against.answer is None else f"{_text(against.answer)}, the best constant,"
    text = (
        f"The model is no better than a guess in {metric}: mean {_text(against.loss)}; predicting {answer} gives "
        f"{_text(against.constant)} (means over the {counted(against.clients, noun)} with "
        f"{SPLIT_NAMES[against.split]} examples; the constant is fitted to the training examples)."
    )
    return Finding("guessing", f"{text} {_slow(noun, 'targets')}")


def _slow(noun: str, answers: str) -> str:
    step = "step size" if noun == "group" else "client step size"
    return f"Train for more rounds, change the {step}, or check that features and {answers} belong together."


def _unseen_by_accuracy(
    against: Baseline, answer: str, given: ClassTotals, whose: str, *, is_seen: bool, order: Ranking | None
) -> Finding | None:
    """The loss is below that of the classes' shares, though the accuracy is that of the most frequent class.

    Whether the model has learnt, the rule: the likelihood of the examples' labels is at least 20 times that under the
    shares, which a model that knows no more than these exceeds in at most one of 20 cases (Markov's inequality).

    ``is_seen``: whether other metrics show what the model has learnt; None is returned if it has.
    """
    is_proven = against.rows * (against.constant_per_row - against.loss_per_row) >= math.log(_ODDS)
    if is_seen and (is_proven or order is not None):
        return None
    binary = len(given.counts) == 2
    rare = binary and np.min(given.counts) <= _RARE * given.total
    cure, learnt = 'use --metrics auc (Python: metrics="auc")' if binary else "compare losses", "but"
    if not is_proven:
        cure, learnt = f"{cure}, or train for more rounds", "and the examples are too few to show that"
    hidden = f"Accuracy cannot show {'a label this rare' if rare else 'this'}: {cure}."
    text = (
        f"The model's accuracy is no higher than that of always answering {answer}, {100 * given.share:.1f} % of "
        f"the {against.rows:,} {SPLIT_NAMES[against.split]} examples{whose}, {learnt} it has learnt: "
        f"{_against_shares(against)}. {'Train for more rounds.' if is_seen else hidden}"
    )
    return Finding("base_rate", text)


def _against_shares(against: Baseline) -> str:
    return (
        f"its loss per example is {_text(against.loss_per_row)}, and that of predicting the classes' shares in the "
        f"training examples is {_text(against.constant_per_row)}"
    )


def _guessing(
    split: str,
    cells: ClassMetrics,
    names: Sequence[str] | None,
    constant: Constant,
    noun: str,
    *,
    asked: Collection[str],
    order: Ranking | None,
) -> Finding | None:
    """The model does no better than one constant answer on the examples of a split (:class:`ClassTotals`).

    If the loss is below that of the classes' shares, the sentence says that the accuracy hides it, unless the run has
    metrics that show it.  If the model ranks the examples well all the same, its probabilities are wrong.
    """
    given, whose = class_totals(cells), _whose(cells, noun)
    if not given.is_guess:
        return None
    called, against = [_called(c, names) for c in given.classes.tolist()], constant()
    most, is_seen = called[int(np.argmax(given.counts))], any(name in asked for name in OF_CLASSES)
    if against is not None and against.loss_per_row < against.constant_per_row:
        return _unseen_by_accuracy(against, most, given, whose, is_seen=is_seen, order=order)
    examples = f"{SPLIT_NAMES[split]} examples{whose}"
    compared = (
        f"its accuracy over all {examples} is {100 * given.accuracy:.1f} %, and always answering {most}, their most "
        f"frequent class, gives {100 * given.share:.1f} %"
    )
    if order is not None:
        loss = "" if against is None else f"; {_against_shares(against)}"
        text = (
            f"The model ranks examples well (mean auc {order.auc:.3f} over {counted(order.clients, noun)}; a guess has "
            f"0.5), but its probabilities or its threshold are wrong: {compared}{loss}. Judge it by its auc "
            "(--headline auc), measure calibration_error, and choose a threshold on validation examples."
        )
        return Finding("base_rate", text)
    cure = _slow(noun, "labels")
    if given.only is not None:
        answer = called[given.only] + (" (the most frequent)" if called[given.only] == most else "")
        text = f"The model gives one answer, {answer}, for all {given.total:,.0f} {examples}"
        return Finding("guessing", f"{text}: it has learnt nothing that distinguishes them. {cure}")
    return Finding("guessing", f"The model is no better than a guess: {compared}. {cure}")


def headline_of(sizes: Mapping[str, NDArray]) -> str:
    """The split that headlines are about: test where any client has examples in it, else validation, else training."""
    return next((split for split in reversed(SPLITS) if np.any(sizes.get(split, 0))), SPLITS[0])


_SEEN = "The model was trained on these examples, so they do not show how it serves new ones. "
# Clients that are set aside are divided in the same way, so setting some aside gives no test examples.
_MORE = "Test numbers need {}s with more examples, or a larger share of test examples."
_SINGLE = "Each has one example, which is for training: test numbers need {}s with several."
_INCLUDED = {
    "valid": 'Training examples cover all {}s: --select train:mean (Python: select=("train", "mean")).',
    "test": "To test on new clients, set whole clients aside with --unseen (Python: eh.data.hold_out_clients).",
}
"""What helps where a split leaves clients out; a method that has groups in their place cannot set some aside."""


def unmeasured(
    sizes: Mapping[str, NDArray],
    *,
    split: str = "test",
    noun: str = "client",
    metric: str = "accuracy",
    train: NDArray | None = None,
    cure: str | None = None,
) -> Finding | None:
    """A finding where clients have no examples in a split and are therefore in none of the numbers about it.

    The rule: at least one client has no example in the split.  Where no client has one, headlines are about
    :func:`headline_of` instead, and the finding names that split and the clients that it leaves out.

    Args:
      sizes: split -> examples of each client that the numbers are about, ``(K,)``.
      split: ``"test"`` for the headline; ``"valid"`` for the examples that choose a study's settings.
      noun: what these clients are called, in the singular.
      metric: what ``train`` is.
      train: a metric of each client on its training examples, ``(K,)``, which covers the clients that are left out;
        None: unknown.
      cure: a sentence on what helps; None: the usual one.

    Example:
      >>> import numpy as np
      >>> unmeasured({"train": np.array([8, 1, 1]), "test": np.array([2, 0, 0])}).sentence.split(".")[0]
      '2 of 3 clients have no test examples and are in none of these numbers'
      >>> unmeasured({"train": np.array([8, 8]), "test": np.array([2, 2])}) is None
      True
    """
    lacking = np.asarray(sizes.get(split, np.zeros_like(next(iter(sizes.values()))))) == 0
    count, clients, name = int(np.sum(lacking)), len(lacking), SPLIT_NAMES[split]
    if not count:
        return None
    many, kind = counted(clients, noun), noun.split()[-1]
    if count < clients:
        verbs = ("has", "is") if count == 1 else ("have", "are")
        place = "none of these numbers" if split == "test" else "none of the numbers that choose settings"
        text = f"{count:,} of {many} {verbs[0]} no {name} examples and {verbs[1]} in {place}."
    else:
        subject = f"None of {many} has" if clients > 1 else f"The only {noun} has no"
        text, instead = f"{subject} {name} examples", headline_of(sizes)
        if split == "valid":
            text += ", so settings cannot be chosen by them."
            return Finding("unmeasured", f"{text} {_INCLUDED[split].format(kind)}", split)
        text += f": there are no {name} numbers, and the numbers shown are of {SPLIT_NAMES[instead]} examples"
        if cure is None:
            are_single = max(np.max(rows) for rows in sizes.values()) <= 1
            cure = f"{_SEEN if instead == 'train' else ''}{(_SINGLE if are_single else _MORE).format(kind)}"
        if left_out := int(np.sum(np.asarray(sizes[instead]) == 0)):
            text += f", which {left_out:,} of {many} {'lacks' if left_out == 1 else 'lack'}"
        text += "."
    if train is not None and count < clients and np.isfinite(train).all():
        means = [_shown(float(np.mean(values)), metric) for values in (train[lacking], train)]
        text += (
            f" On training examples, {'its' if count == 1 else 'their mean'} {metric.replace('_', ' ')} is {means[0]}, "
            f"and the mean over all {many} is {means[1]}."
        )
    usual = "" if split == "test" and kind == "group" else _INCLUDED[split].format(kind)
    return Finding("unmeasured", f"{text} {usual if cure is None else cure}".rstrip(), split)


def _shown(x: float, metric: str) -> str:
    return f"{100 * x:.1f} %" if is_share(metric) else _text(x)


def diverged_clients(
    losses: Columns, initial: NDArray, trained: NDArray, names: Sequence[str], noun: str = "client"
) -> Finding | None:
    """A finding where clients' personal models diverged, whatever became of the global model.

    The rule: at a client that trained, the training loss of the personal model at the last evaluation is not finite,
    or over 10 times the larger of two losses on the same examples: that of the global model then, and that of the
    initial model; the larger counts as at least 1e-6.  Neither depends on how often the run was evaluated.

    Args:
      losses: metric -> ``(K,)`` on the training examples of the evaluated clients; without a ``"global_loss"`` there
        are no personal models, and nothing is found.
      initial: the loss of the initial model on them, ``(K,)``.
      trained: which of the clients are meant, bool ``(K,)``.
      names: the clients' ids.
      noun: what one of those that are meant is called, in the singular.
    """
    if of_global("loss") not in losses or not len(initial):
        return None
    own, alone = losses["loss"], losses[of_global("loss")]
    usual = np.maximum(np.fmax(alone, initial), _TINY)
    bad = np.flatnonzero(trained & ~(np.isfinite(own) & (own <= _PERSONAL * usual)))
    if not len(bad):
        return None
    excess = np.where(np.isfinite(own[bad]), own[bad] / usual[bad], np.inf)
    bad = bad[np.argsort(-excess, kind="stable")]
    shown = [f"{names[k]} ({_text(float(own[k]))}, usually {_text(float(usual[k]))})" for k in bad[:_NAMED]]
    more = [f"{len(bad) - _NAMED:,} more"] if len(bad) > _NAMED else []
    text = (
        f"The personal models of {len(bad):,} of {counted(int(trained.sum()), noun)} diverged: their training loss "
        f"is not finite, or over {_PERSONAL:g} times the usual one, which is the larger of the global and the initial "
        f"model's. By client: {listed([*shown, *more])}. Means and worst tenths include them. Try a smaller step size "
        "for the personal models, or a method that keeps them closer to the global model."
    )
    return Finding("client_diverged", text)


def untrained_clients(
    last_round: NDArray,
    history: Mapping[str, NDArray],
    *,
    initial: bool,
    adapts: bool,
    chosen: NDArray | None = None,
    noun: str = "client",
) -> Finding | None:
    """A finding where some clients have never trained a personal model, though others have.

    Args:
      last_round: when each client last trained, ``(N,)``; 0: never.
      history: as in :attr:`evenhand.simulation.Run.history`.
      initial: whether these clients are served what they have kept since the start, not the global model.
      adapts: whether clients adapt the model that they are served to their examples.
      chosen: the positions of the clients that headlines are about; None: all.
      noun: what one of these is called, in the singular.
    """
    untrained = (last_round if chosen is None else last_round[chosen]) == 0
    if not untrained.any() or not last_round.any():
        return None
    alone = np.asarray(history.get(column("train", of_global("loss")), [0.0, 1.0]), np.float64)
    served = "the current global model"
    if initial:
        served = "the personal model as it was initialised"
    elif np.all(alone == alone[0]):
        served = "the global model, which has not changed since the start"
    text = (
        f"{int(untrained.sum()):,} of {counted(len(untrained), noun)} never trained in "
        f"{counted(int(history['round'][-1]), 'round')}, and are served {served}"
        f"{', which they adapt to their examples' if adapts else ''}; their results say nothing about trained personal "
        "models. More rounds or a larger cohort reach more clients."
    )
    return Finding("untrained", text)


def unavailable_clients(availability: NDArray, rounds: int, *, noun: str = "client") -> Finding | None:
    """A finding where some clients were available in no round.

    Args:
      availability: the share of the rounds in which each client was available, ``(K,)``.
      rounds: how many these are.
      noun: what one of the clients is called, in the singular.

    Example:
      >>> import numpy as np
      >>> unavailable_clients(np.array([0.5, 0.0, 1.0]), 10).sentence.split(":")[0]
      '1 of 3 clients was never available in 10 rounds'
      >>> unavailable_clients(np.array([0.5, 0.1]), 10) is None
      True
    """
    never = int(np.sum(availability == 0))
    if not never:
        return None
    verb, whose, them = ("was", "its", "it") if never == 1 else ("were", "their", "them")
    text = (
        f"{never:,} of {counted(len(availability), noun)} {verb} never available in {counted(rounds, 'round')}: "
        f"nothing was learnt from {whose} examples, but the numbers over clients include {them}. "
        "More rounds may reach clients that are rarely available."
    )
    return Finding("unavailable", text)


def unchosen_levels(rows: NDArray, level: str, noun: str = "client") -> Finding | None:
    """A finding where clients have no examples on which to choose among the models of several levels.

    Args:
      rows: how many such examples each client has, ``(K,)``.
      level: the level that a client without any is served.
      noun: what one of the clients is called, in the singular.

    Example:
      >>> import numpy as np
      >>> unchosen_levels(np.array([4, 0, 3]), "theta=0.8").sentence.split(":")[0]
      '1 of 3 clients has no validation examples to choose a level on, and is served theta=0.8'
      >>> unchosen_levels(np.array([4, 3]), "theta=0.8") is None
      True
    """
    lacking, clients = int(np.sum(rows == 0)), len(rows)
    if not lacking:
        return None
    if lacking == clients:
        text = f"No {noun} has validation examples to choose a level on, and all are served {level}"
    else:
        has, served = ("has", "is") if lacking == 1 else ("have", "are")
        text = (
            f"{lacking:,} of {counted(clients, noun)} {has} no validation examples to choose a level on, and "
        )
        text += f"{served} served {level}"
    cure = "keep some examples of each client for validation with --valid-fraction 0.2 (Python: valid_fraction=0.2)."
    return Finding("unchosen", f"{text}: {cure}")


def feature_scales(data: FederatedDataset, names: Sequence[str] | None = None) -> Finding | None:
    """A finding where the features' scales are so different that one step size cannot suit them all.

    The rule: a column's scale is the root mean square of its non-zero values, since those are what a gradient meets,
    however rare they are; together with 1, the scale of an intercept, the columns' scales span a factor of 1000 or
    more.  Examples of more than one axis, such as images, are one column; integers (tokens) have no scale.  At most
    1024 evenly spaced training examples and 4 million numbers are read, whatever the size of the data.

    Args:
      data: the clients' examples.
      names: the names of the columns; None: those in the table, else their positions, from 0.
    """
    if data.train.x.dtype.kind != "f":
        return None
    x = np.asarray(sampled(data.train.x), np.float64)
    flat = x.ndim == 2
    squares = np.square(x).reshape(len(x), -1) if flat else np.square(x).reshape(-1, 1)
    filled = np.count_nonzero(squares, axis=0)
    columns = np.flatnonzero(filled)
    if not len(columns):
        return None
    scale = np.sqrt(np.sum(squares, axis=0)[columns] / filled[columns])
    low, high = int(np.argmin(scale)), int(np.argmax(scale))
    if max(scale[high], 1.0) / min(scale[low], 1.0) < _APART:
        return None
    if names is None and data.features is not None:
        names = data.features.inputs
    names = names if names is not None or not flat else [f"column {k}" for k in range(x.shape[1])]
    smallest, largest = (
        f"{'the features' if names is None else names[columns[k]]} (about {_text(scale[k])})"
        for k in (low, high)
    )
    text = f"Features are far from a scale of 1: {largest if scale[high] >= _APART else smallest}"
    if scale[high] / scale[low] >= _APART:
        text = f"Features are on very different scales, from {smallest} to {largest}"
    text += ": one step size can hardly suit them all, and training may diverge or stall."
    cure = "Standardise each feature: subtract its mean over the training data and divide by its standard deviation."
    return Finding("scales", f"{text} {cure}")


def _text(x: float) -> str:
    return f"{x:,.0f}" if 1e3 <= abs(x) < 1e6 else f"{x:.3g}"
