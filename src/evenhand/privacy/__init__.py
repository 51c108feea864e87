"""Private learning: clipping, noise, sampling and accounting, and the methods made of them."""

from evenhand.privacy.dp_fedavg import dp_fedadam, dp_fedavg
from evenhand.privacy.dp_sgd import dp_sgd
from evenhand.privacy.noisy_mean import AdaptiveClip, adaptive_clip, noisy_mean
from evenhand.privacy.private import private

__all__ = ["AdaptiveClip", "adaptive_clip", "dp_fedadam", "dp_fedavg", "dp_sgd", "noisy_mean", "private"]
