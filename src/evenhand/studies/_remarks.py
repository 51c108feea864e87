"""What a reader of a study must know before relying on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from evenhand.studies._outcome import Outcome
from evenhand.studies._select import Choice

__all__ = ["remarks_on"]


def remarks_on(
    outcomes: Sequence[Outcome], baseline: str, choices: Mapping[tuple[str, str], Choice | None]
) -> Iterator[str]:
    """Remarks, in sentences.

    Args:
      outcomes: all runs.
      baseline: the method that the others are compared with.
      choices: ``(method, condition)`` -> what was chosen.
    """
    views = [each.view for each in outcomes if each.view is not None]
    yield from dict.fromkeys(
        finding.sentence for view in views for finding in view.findings if finding.kind == "scales"
    )
    if any(view.malicious is not None for view in views):
        yield "Under attack, clients are the honest ones, also for the choice; curves by round are of all clients."
    yield from _on_the_comparison(outcomes, baseline, choices)
    for choice in choices.values():
        yield from () if choice is None else choice.remarks
    for words in ("diverged", "failed"):
        if bad := [each for each in outcomes if each.status == words]:
            first = f"{bad[0].setting}, seed {bad[0].seed}: {bad[0].reason}"
            yield f"{len(bad)} of {len(outcomes)} runs {words}; the first is {first}"
    if stopped := sum(each.status == "stopped" for each in outcomes):
        yield f"{stopped} of {len(outcomes)} runs were stopped early, as asked; none of them can be chosen."


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
        yield "One seed each proves little: give at least five."
