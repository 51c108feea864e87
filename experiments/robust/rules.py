"""What the map is of: aggregators, and the attacks that they meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import comb

import evenhand as eh
from evenhand import aggregators, attacks

__all__ = ["SCALED", "STRONGEST", "Scaled", "against", "rules", "threats"]

Scaled = Callable[[float], eh.types.Aggregator]

SCALED = ("geometric median, nu", "clip", "centered clipping", "normalize")
"""Rules with a length to be tuned, in the units of an update."""

STRONGEST = ("ALIE, strongest", "inner product, strongest")
"""Attacks that know the rule."""

_MOST_SETS = 100_000


def rules(malicious: int, clients: int) -> dict[str, Scaled]:
    """Name -> the rule, prepared for so many malicious clients, as a function of its length; most have none."""
    fraction = malicious / clients
    few = min(malicious, max((clients - 3) // 4, 1))
    plain: dict[str, eh.types.Aggregator] = {
        "mean": aggregators.mean(),
        "geometric median": aggregators.geometric_median(5),
        "one-step median": aggregators.geometric_median(1),
        "RFA (from the mean)": aggregators.geometric_median(3, start="mean"),
        "median": aggregators.coordinate_median(),
        "trimmed mean": aggregators.trimmed_mean(fraction),
        "MeaMed": aggregators.meamed(malicious),
        "Krum": aggregators.krum(malicious),
        "multi-Krum": aggregators.multi_krum(malicious),
        "Bulyan": aggregators.bulyan(few),
        "CAF": aggregators.caf(malicious),
        "norm filter": aggregators.norm_filter(malicious),
        "loss filter": aggregators.loss_filter(malicious),
        "clip to median": aggregators.clip(),
        "NNM + median": aggregators.nnm(malicious, then=aggregators.coordinate_median()),
        "NNM + trimmed mean": aggregators.nnm(malicious, then=aggregators.trimmed_mean(fraction)),
        "NNM + Krum": aggregators.nnm(malicious, then=aggregators.krum(malicious)),
        "bucketing + median": aggregators.bucketing(2, then=aggregators.coordinate_median()),
        "ARC + trimmed mean": aggregators.arc(malicious, then=aggregators.trimmed_mean(fraction)),
    }
    if comb(clients, malicious) <= _MOST_SETS:
        plain["MDA"] = aggregators.mda(malicious)
    return {name: lambda length, rule=rule: rule for name, rule in plain.items()} | {
        "geometric median, nu": lambda length: aggregators.geometric_median(5, nu=length),
        "clip": lambda length: aggregators.clip(length),
        "centered clipping": lambda length: aggregators.centered_clipping(length, passes=3),
        "normalize": lambda length: aggregators.normalize(length),
    }


def threats(fraction: float, classes: int) -> dict[str, eh.types.Attack | None]:
    """Name -> the attack by this share of the clients; first, for comparison, none."""
    return {
        "none": None,
        "label flip": attacks.label_flip(fraction, classes=classes),
        "random labels": attacks.random_labels(fraction, classes=classes),
        "uniform labels": attacks.uniform_labels(fraction, classes=classes),
        "relabel 7y+1": attacks.relabel(fraction, tuple((7 * y + 1) % classes for y in range(classes))),
        "feature noise": attacks.feature_noise(fraction, std=1.0),
        "negative": attacks.negative(fraction),
        "Gaussian": attacks.gaussian(fraction),
        "Gaussian, std 1": attacks.gaussian(fraction, std=1.0),
        "model replacement": attacks.both(
            attacks.label_flip(fraction, classes=classes), attacks.model_replacement(fraction, boost=10.0)
        ),
        "sign flip": attacks.sign_flip(fraction),
        "zero": attacks.zero(fraction),
        "not finite": attacks.non_finite(fraction),
        "same value": attacks.same_value(fraction),
        "omniscient": attacks.omniscient(fraction),
        "ALIE": attacks.alie(fraction),
        "inner product": attacks.inner_product(fraction),
        "mimic": attacks.mimic(fraction),
        "min-max": attacks.min_max(fraction),
        "min-sum": attacks.min_sum(fraction),
    }


def against(rule: eh.types.Aggregator, fraction: float) -> Mapping[str, eh.types.Attack]:
    """The strongest ALIE and inner-product manipulation against one rule."""
    alie, inner_product = attacks.alie(fraction, against=rule), attacks.inner_product(fraction, against=rule)
    return dict(zip(STRONGEST, (alie, inner_product), strict=True))
