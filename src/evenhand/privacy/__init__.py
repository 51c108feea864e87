"""Private learning: clipping, noise, sampling and accounting, and the methods made of them."""

from evenhand.privacy._per_example import clip_factors, clipped_sum

__all__ = ["clip_factors", "clipped_sum"]
