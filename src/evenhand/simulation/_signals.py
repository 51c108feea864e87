"""Ctrl-C, at a moment when nothing is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["uninterrupted"]


@contextmanager
def uninterrupted() -> Generator[None]:
    """Holds Ctrl-C back until what is within is whole; only the main thread can, and only it gets Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt
