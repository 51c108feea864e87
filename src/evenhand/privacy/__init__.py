"""Private learning: clipping, noise, sampling and accounting, and the methods made of them.

A method lists what it gives away (:class:`evenhand.types.Release`), :func:`spent` adds it up, and :func:`noise_for`
says how much noise a budget calls for.  For releases on samples, ``accountant="pld"`` needs the package
``dp-accounting``, which ``pip install 'evenhand[privacy]'`` brings.  Aggregators and local work of this package carry
what they give away with them; :func:`private` makes the guarantee for a whole method, or says why it cannot.
"""

from evenhand.privacy._discrete_gaussian import (
    Law,
    discrete_gaussian,
    discrete_gaussian_error,
    discrete_gaussian_law,
    discrete_mean,
    psi,
)
from evenhand.privacy._preconditioners import tfidf_scales, token_frequencies
from evenhand.privacy._quantile import (
    Histogram,
    Sensitivity,
    concentrated,
    concentrated_epsilon,
    dyadic_partition,
    histogram,
    histogram_for,
    no_wrap_modulus,
    quantile,
    quantile_error,
    quantile_sum,
)
from evenhand.privacy._renyi import (
    ORDERS,
    ORDERS_FEDERATED,
    ORDERS_FINE,
    Spent,
    amplified,
    epsilon_of_rdp,
    epsilon_of_zcdp,
    joint,
    rdp,
)
from evenhand.privacy.accounting import (
    Account,
    account,
    clients_for,
    epsilon,
    noise_for,
    spent,
    steps_for,
    usual_delta,
)
from evenhand.privacy.adadps import adadps, adadps_fl, adas, ideal_adadps
from evenhand.privacy.audit import Audit, audit_mean, audit_scores, audit_work, least_epsilon
from evenhand.privacy.client_level import dp_fedadam, dp_fedavg, private, promise
from evenhand.privacy.dp2 import Staleness, delayed_rmsprop, dp2, dp2_extra_query, staleness
from evenhand.privacy.dp_delta_fl import dp_delta_fl
from evenhand.privacy.dp_fed2 import dp_fed2
from evenhand.privacy.dp_ftrl import (
    CorrelatedNoise,
    Correlation,
    StreamingMatrix,
    dp_ftrl,
    streamed_noise,
    toeplitz_noise,
    tree_noise,
)
from evenhand.privacy.dp_sgd import dp_sgd, scale_then_privatize
from evenhand.privacy.dp_term import dp_term
from evenhand.privacy.gaussian import AdaptiveClip, adaptive_clip, noisy_mean
from evenhand.privacy.per_example import clip_factors, clipped_sum
from evenhand.privacy.public_data import dp_adam_pub, dp_r_pub, pda_dpmd, projected_adagrad, warm_start
from evenhand.privacy.secure_delta_fl import secure_delta_fl
from evenhand.privacy.update_rules import Iteration, Noise, Query, UpdateRule, private_work

__all__ = [
    "ORDERS",
    "ORDERS_FEDERATED",
    "ORDERS_FINE",
    "Account",
    "AdaptiveClip",
    "Audit",
    "CorrelatedNoise",
    "Correlation",
    "Histogram",
    "Iteration",
    "Law",
    "Noise",
    "Query",
    "Sensitivity",
    "Spent",
    "Staleness",
    "StreamingMatrix",
    "UpdateRule",
    "account",
    "adadps",
    "adadps_fl",
    "adaptive_clip",
    "adas",
    "amplified",
    "audit_mean",
    "audit_scores",
    "audit_work",
    "clients_for",
    "clip_factors",
    "clipped_sum",
    "concentrated",
    "concentrated_epsilon",
    "delayed_rmsprop",
    "discrete_gaussian",
    "discrete_gaussian_error",
    "discrete_gaussian_law",
    "discrete_mean",
    "dp2",
    "dp2_extra_query",
    "dp_adam_pub",
    "dp_delta_fl",
    "dp_fed2",
    "dp_fedadam",
    "dp_fedavg",
    "dp_ftrl",
    "dp_r_pub",
    "dp_sgd",
    "dp_term",
    "dyadic_partition",
    "epsilon",
    "epsilon_of_rdp",
    "epsilon_of_zcdp",
    "histogram",
    "histogram_for",
    "ideal_adadps",
    "joint",
    "least_epsilon",
    "no_wrap_modulus",
    "noise_for",
    "noisy_mean",
    "pda_dpmd",
    "private",
    "private_work",
    "projected_adagrad",
    "promise",
    "psi",
    "quantile",
    "quantile_error",
    "quantile_sum",
    "rdp",
    "scale_then_privatize",
    "secure_delta_fl",
    "spent",
    "staleness",
    "steps_for",
    "streamed_noise",
    "tfidf_scales",
    "toeplitz_noise",
    "token_frequencies",
    "tree_noise",
    "usual_delta",
    "warm_start",
]
