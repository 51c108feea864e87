"""What a reader of a study must know before relying on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from evenhand.evaluation import OF_THE_DATA, Finding, least_pairs, unmeasured
from evenhand.studies._outcome import Outcome
from evenhand.studies._select import Choice

__all__ = ["remarks_on"]


def remarks_on(
    outcomes: Sequence[Outcome], baseline: str, choices: Mapping[tuple[str, str], Choice | None], split: str
) -> Iterator[str]:
    """Remarks, in sentences.

    Args:
      outcomes: all runs.
      baseline: the method that the others are compared with.
      choices: ``(method, condition)`` -> what was chosen.
      split: the examples by which settings are chosen.
    """
    views = [each.view for each in outcomes if each.view is not None]
    for kind in OF_THE_DATA:
        yield from _once([next((x for x in view.findings if x.kind == kind), None) for view in views])
    if len({str(each.setting) for each in outcomes}) > len(choices):
        yield from _once([_without_a_say(each, split) for each in outcomes if each.view is not None])
    if any(view.malicious is not None for view in views):
        yield "Under attack, clients are the honest ones, also for the choice and in curves by round."
    yield from _on_the_comparison(outcomes, baseline, choices)
    for choice in choices.values():
        yield from () if choice is None else choice.remarks
    for words in ("diverged", "failed"):
        if bad := [each for each in outcomes if each.status == words]:
            yield f"{len(bad)} of {len(outcomes)} runs {words}; the first is {_first(bad)}"
    if bad := [each for each in outcomes if each.status == "done" and each.reason]:
        runs = f"{len(bad)} of {len(outcomes)} runs have test numbers that are not finite"
        yield f"{runs}, which has no say in the choice; the first is {_first(bad)}"
    if stopped := sum(each.status == "stopped" for each in outcomes):
        yield f"{stopped} of {len(outcomes)} runs were stopped early, as asked; none of them can be chosen."


def _once(findings: Sequence[Finding | None]) -> Iterator[str]:
    """What several runs have found, in one sentence: the first, and how many have it where not all of them do."""
    sentences = [finding.sentence for finding in findings if finding is not None]
    if sentences:
        is_same = len(set(sentences)) == 1 and len(sentences) == len(findings)
        runs = (
            f"{len(sentences)} of {len(findings)}"
            if len(sentences) < len(findings)
            else f"all {len(findings)}"
        )
        yield sentences[0] + ("" if is_same else f" (In {runs} runs; the numbers are those of the first.)")


def _without_a_say(outcome: Outcome, split: str) -> Finding | None:
    """The clients that have no examples by which settings are chosen."""
    seen = outcome.seen
    if split != "valid" or seen is None or split not in seen.sizes:
        return None
    return unmeasured(seen.sizes, split=split, noun="client" if seen.whole is None else "honest client")


def _first(outcomes: Sequence[Outcome]) -> str:
    return f"{outcomes[0].setting}, seed {outcomes[0].seed}: {outcomes[0].reason}"


def _on_the_comparison(
    outcomes: Sequence[Outcome], baseline: str, choices: Mapping[tuple[str, str], Choice | None]
) -> Iterator[str]:
    """Where it is less than it seems."""
    tried: dict[str, set[str]] = {}
    for each in outcomes:
        tried.setdefault(each.setting.method, set()).add(str(each.setting))
    if len(set(map(len, tried.values()))) > 1:
        counts = ", ".join(f"{method} {len(of)}" for method, of in tried.items())
        yield f"The methods were not tuned equally: settings tried were {counts}."
    sound = {method for (method, _), choice in choices.items() if choice is not None}
    if sound and baseline in tried and baseline not in sound:
        yield f"{baseline}, which the others are compared with, has no sound setting: name another baseline."
    if len(tried) > 1 and len({each.seed for each in outcomes}) == 1:
        yield f"One seed each proves little: give at least {least_pairs()}."
