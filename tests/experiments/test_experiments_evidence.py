"""Findings with intervals and their rival explanations are what the saved differences say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from experiments import evidence
from experiments.evidence import Finding, Rival

BETTER = [{"p90": value} for value in (10.0, 11.5, 9.0, 12.0, 10.5)]
WORSE = [{"p90": value} for value in (12.0, 14.0, 11.5, 13.5, 13.0)]


def _difference(mean: float, half: float) -> dict[str, object]:
    return {"mean": mean, "low": mean - half, "high": mean + half, "seeds": [mean - 0.5, mean + 0.5]}


def _rivals(*contrasts: dict[str, object]) -> list[Rival]:
    names = zip(("tuning", "seeds", "selection"), contrasts, strict=False)
    return [Rival(kind, f"idea of {kind}", f"run for {kind}", contrast) for kind, contrast in names]


def test_the_interval_is_that_of_the_differences_at_equal_seeds() -> None:
    contrast = evidence.contrast(BETTER, WORSE, "p90")
    seeds = np.array([-2.0, -2.5, -2.5, -1.5, -2.5])
    low, high = stats.t.interval(0.95, 4, seeds.mean(), stats.sem(seeds))
    assert contrast["seeds"] == seeds.tolist()
    assert [contrast[name] for name in ("mean", "low", "high")] == pytest.approx([-2.2, low, high])
    # The interval of independent seeds is wider: the seeds differ by more than the methods.
    separate = stats.ttest_ind([seed["p90"] for seed in BETTER], [seed["p90"] for seed in WORSE])
    assert high - low < np.diff(separate.confidence_interval()).item()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (_difference(-2.0, 1.0), _difference(-1.0, 0.5), "the finding stands"),
        (_difference(-2.0, 1.0), _difference(-1.0, 1.5), "the difference is no longer clear"),
        (_difference(-2.0, 1.0), _difference(1.0, 0.5), "the difference is reversed"),
        (_difference(0.1, 1.0), _difference(-0.1, 0.5), "no clear difference there, either"),
        (_difference(0.1, 1.0), _difference(-1.0, 0.5), "a difference appears"),
        # Equal differences at all seeds show no noise, so they show nothing.
        (_difference(-2.0, 1.0), _difference(-1.0, 0.0), "the difference is no longer clear"),
    ],
)
def test_outcomes_follow_from_the_intervals(
    before: dict[str, object], after: dict[str, object], words: str
) -> None:
    assert evidence.outcome(before, after) == words


def test_the_section_states_the_finding_and_lists_each_explanation() -> None:
    finding = Finding("The tail of A differs from that of B by {}.", evidence.contrast(BETTER, WORSE, "p90"))
    rivals = _rivals(_difference(-1.0, 0.5), _difference(-2.0, 3.0), _difference(1.0, 0.25))
    lines = evidence.section(evidence.claims(finding, rivals)).splitlines()
    difference = "-2.2 points (95 % interval -2.8 to -1.6; lower on 5 of 5 seeds)"
    assert lines[0] == f"**Finding.** The tail of A differs from that of B by {difference}."
    assert lines[4:] == [
        "| Tuning: idea of tuning | run for tuning | -1.0 [-1.5, -0.5] | the finding stands |",
        "| Seeds: idea of seeds | run for seeds | -2.0 [-5.0, +1.0] | the difference is no longer clear |",
        "| Selection: idea of selection | run for selection | +1.0 [+0.8, +1.2] | the difference is reversed |",
    ]


def test_a_missing_explanation_and_a_sentence_without_its_difference_are_refused() -> None:
    contrast = _difference(-1.0, 0.5)
    with pytest.raises(ValueError, match="no rival explanation by selection"):
        evidence.claims(Finding("By {}.", contrast), _rivals(contrast, contrast))
    with pytest.raises(ValueError, match=r"needs \{\} for its difference"):
        evidence.claims(Finding("By much.", contrast), _rivals(contrast, contrast, contrast))
