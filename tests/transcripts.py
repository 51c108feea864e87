"""Traces of a client's numbers in what has reached a server: the numbers of its update, in each form on the wire."""

import numpy as np

WINDOW = 8
"""Bytes that are searched for; by chance they are in a megabyte with a probability of ``2**-44``."""


def traces(forms):
    """Name -> the windows of a client's numbers, by the form that they are in.

    Args:
      forms: name -> array; each number of 8 bytes is a window, and each pair of neighbours of 4 bytes.
    """
    windows = {}
    for name, array in forms.items():
        text, step = np.ascontiguousarray(array).tobytes(), array.dtype.itemsize
        starts = range(0, len(text) - WINDOW + 1, step)
        cut = {text[start : start + WINDOW] for start in starts}
        # Zeros and other constants are everywhere, and nobody's.
        windows[name] = {window for window in cut if len(set(window)) > 3}
        assert windows[name], f"{name}: nothing to search for"
    return windows


def traced(forms, transcript):
    """The names of the forms of which at least one window is in the transcript, and how many are.

    Args:
      forms: as for :func:`traces`.
      transcript: all bytes that have reached the server.
    """
    found = {name: sum(window in transcript for window in windows) for name, windows in traces(forms).items()}
    return {name: count for name, count in found.items() if count}
