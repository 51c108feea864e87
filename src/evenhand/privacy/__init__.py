"""Private learning: clipping, noise, sampling and accounting, and the methods made of them."""

__all__ = list[str]()
