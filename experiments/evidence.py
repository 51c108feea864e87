"""What an experiment found, in one sentence with an interval, and the rival explanations that further runs test.

Runs at equal seeds share clients, cohorts and batches, so the interval is that of the differences at equal seeds
(:func:`evenhand.evaluation.paired_difference`).  A rival explanation says that the finding comes from the tuning, from
the seeds, or from what was selected, and names the run that would show it.  An experiment saves both with its numbers
(:func:`claims`), and its page has the text that :func:`section` makes of them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from evenhand.evaluation import paired_difference
from experiments.fairness import Measures

__all__ = ["Finding", "Kind", "Rival", "claims", "contrast", "outcome", "section"]

Kind: TypeAlias = Literal["tuning", "seeds", "selection"]
Contrast: TypeAlias = dict[str, Any]
"""A difference as it is saved: its mean, both ends of the 95 % interval, and that of each seed."""


class Finding(NamedTuple):
    """What an experiment found.

    Attributes:
      sentence: the finding with ``{}`` where the difference goes.
      contrast: the difference that it rests on.
      unit: of the difference.
      digits: after the decimal point.
    """

    sentence: str
    contrast: Contrast
    unit: str = "points"
    digits: int = 1


class Rival(NamedTuple):
    """Another explanation of a finding.

    Attributes:
      kind: what the finding would come from.
      idea: the explanation.
      run: the run that tests it.
      contrast: the same difference in that run.
    """

    kind: Kind
    idea: str
    run: str
    contrast: Contrast


def contrast(method: Sequence[Measures], baseline: Sequence[Measures], measure: str) -> Contrast:
    """By how much a measure of a method exceeds that of a baseline at equal seeds, with its 95 % interval.

    Args:
      method: the measures of each seed.
      baseline: likewise, in the same order.
      measure: which of them.
    """
    ours, theirs = ([seed[measure] for seed in seeds] for seeds in (method, baseline))
    difference = paired_difference(ours, theirs)
    return {
        "mean": difference.mean,
        "low": difference.low,
        "high": difference.high,
        "seeds": [a - b for a, b in zip(ours, theirs, strict=True)],
    }


def outcome(finding: Contrast, rival: Contrast) -> str:
    """What a run that tests a rival explanation makes of the finding, by the sides of 0 on which the intervals lie."""
    before, after = _side(finding), _side(rival)
    if before == after:
        return "the finding stands" if before else "no clear difference there, either"
    if not after:
        return "the difference is no longer clear"
    return "the difference is reversed" if before else "a difference appears"


def claims(finding: Finding, rivals: Sequence[Rival]) -> dict[str, Any]:
    """The finding and its rival explanations, to be saved with the numbers of an experiment.

    Raises:
      ValueError: one of the three kinds of explanation is missing, or the sentence has no place for the difference.
    """
    if missing := set(get_args(Kind)) - {rival.kind for rival in rivals}:
        raise ValueError(f"no rival explanation by {', '.join(sorted(missing))}")
    if finding.sentence.count("{}") != 1:
        raise ValueError(f"the sentence needs {{}} for its difference: {finding.sentence}")
    return {
        "finding": finding._asdict(),
        "rivals": [
            {**rival._asdict(), "outcome": outcome(finding.contrast, rival.contrast)} for rival in rivals
        ],
    }


def section(saved: Mapping[str, Any]) -> str:
    """The finding and the table of rival explanations in Markdown, from what :func:`claims` made.

    Args:
      saved: the content of the JSON file, or the part of it that has the keys ``finding`` and ``rivals``.
    """
    finding = saved["finding"]
    unit, digits = finding["unit"], finding["digits"]
    sentence = finding["sentence"].format(_long(finding["contrast"], unit, digits))
    lines = [
        *textwrap.wrap(f"**Finding.** {sentence}", 120, break_on_hyphens=False),
        "",
        f"| Rival explanation | Run that tests it | Difference there, {unit} | Outcome |",
        "|---|---|---:|---|",
    ]
    for rival in saved["rivals"]:
        difference = _short(rival["contrast"], digits)
        name = f"{rival['kind'].capitalize()}: {rival['idea']}"
        lines.append(f"| {name} | {rival['run']} | {difference} | {rival['outcome']} |")
    return "\n".join(lines)


def _side(difference: Contrast) -> int:
    """-1 or 1 if the interval lies below or above 0, else 0; an interval without width shows no noise."""
    if difference["low"] == difference["high"]:
        return 0
    return int(difference["low"] > 0) - int(difference["high"] < 0)


def _long(difference: Contrast, unit: str, digits: int) -> str:
    """Such as ``-2.1 points (95 % interval -3.0 to -1.2; lower on 5 of 5 seeds)``."""
    seeds = difference["seeds"]
    word = "lower" if difference["mean"] < 0 else "higher"
    count = sum(seed != 0 and (seed < 0) == (word == "lower") for seed in seeds)
    low, mean, high = (f"{difference[name]:+.{digits}f}" for name in ("low", "mean", "high"))
    return f"{mean} {unit} (95 % interval {low} to {high}; {word} on {count} of {len(seeds)} seeds)"


def _short(difference: Contrast, digits: int) -> str:
    """Such as ``-2.1 [-3.0, -1.2]``."""
    low, mean, high = (f"{difference[name]:+.{digits}f}" for name in ("low", "mean", "high"))
    return f"{mean} [{low}, {high}]"
