"""Private learning: clipping, noise, sampling and accounting, and the methods made of them."""

from evenhand.privacy.adadps import adadps
from evenhand.privacy.adas import adas
from evenhand.privacy.dp2 import delayed_rmsprop, dp2
from evenhand.privacy.dp2_extra_query import dp2_extra_query
from evenhand.privacy.dp_adam_pub import dp_adam_pub
from evenhand.privacy.dp_fedavg import dp_fedadam, dp_fedavg
from evenhand.privacy.dp_r_pub import dp_r_pub
from evenhand.privacy.dp_sgd import dp_sgd
from evenhand.privacy.ideal import ideal_adadps
from evenhand.privacy.noisy_mean import AdaptiveClip, adaptive_clip, noisy_mean
from evenhand.privacy.pda_dpmd import pda_dpmd
from evenhand.privacy.private import private
from evenhand.privacy.projected_adagrad import projected_adagrad
from evenhand.privacy.scale_then_privatize import scale_then_privatize
from evenhand.privacy.scales import tfidf_scales, token_frequencies
from evenhand.privacy.warm_start import warm_start

__all__ = [
    "AdaptiveClip",
    "adadps",
    "adaptive_clip",
    "adas",
    "delayed_rmsprop",
    "dp2",
    "dp2_extra_query",
    "dp_adam_pub",
    "dp_fedadam",
    "dp_fedavg",
    "dp_r_pub",
    "dp_sgd",
    "ideal_adadps",
    "noisy_mean",
    "pda_dpmd",
    "private",
    "projected_adagrad",
    "scale_then_privatize",
    "tfidf_scales",
    "token_frequencies",
    "warm_start",
]
