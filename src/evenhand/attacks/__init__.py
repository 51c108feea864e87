"""Attacks: what malicious clients do to their examples, their reports and their uploads.

Each is a value for ``eh.simulate(..., attack=...)``.  A ``fraction`` of the clients is drawn once per run;
:func:`by_clients` names them instead, :func:`by_examples` draws clients with a share of the examples, and :func:`both`
puts one attack on top of another.  :func:`during` limits false uploads and reports to some rounds; wrong labels and
features stay in all rounds, except those of :func:`persistent_outliers`.  Attacks act before anything that the server
does against them.
"""

from evenhand.attacks.coalitions import alie, inner_product, mimic, min_max, min_sum, omniscient, same_value
from evenhand.attacks.examples import (
    feature_noise,
    label_flip,
    negative,
    persistent_outliers,
    random_labels,
    relabel,
    reversed_text,
    trigger,
    uniform_labels,
)
from evenhand.attacks.uploads import (
    false_sum,
    gaussian,
    model_replacement,
    non_finite,
    random_model,
    sign_flip,
    zero,
)
from evenhand.attacks.wrappers import both, by_clients, by_examples, during

__all__ = [
    "alie",
    "both",
    "by_clients",
    "by_examples",
    "during",
    "false_sum",
    "feature_noise",
    "gaussian",
    "inner_product",
    "label_flip",
    "mimic",
    "min_max",
    "min_sum",
    "model_replacement",
    "negative",
    "non_finite",
    "omniscient",
    "persistent_outliers",
    "random_labels",
    "random_model",
    "relabel",
    "reversed_text",
    "same_value",
    "sign_flip",
    "trigger",
    "uniform_labels",
    "zero",
]
