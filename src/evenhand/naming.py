"""The names of values made of functions, and of metrics that several models have."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

__all__ = ["measured", "of_model", "short"]


def of_model(metric: str, model: str) -> str:
    """The name of one model's metric where several models have it: ``"accuracy (level)"``."""
    return f"{metric} ({model})"


def measured(metric: str) -> str:
    """The metric's name without that of the model, which :func:`of_model` added."""
    return metric.split(" (", 1)[0]


def short(self: Any) -> str:
    """A short ``repr`` of a NamedTuple of functions: its name if it has one, else the names of its functions.

    Parts that have their default value are left out.

    Example:
      >>> import evenhand as eh
      >>> eh.aggregators.mean()
      Sum(init=mean.init, lift=mean.lift, lower=mean.lower)
      >>> eh.models.softmax_regression(features=64, classes=10)
      <Model softmax_regression(features=64, classes=10)>
    """
    kind, parts, defaults = type(self).__name__, self._asdict(), self._field_defaults
    if parts.get("name"):
        return f"<{kind} {parts['name']}>"
    shown = [
        f"{name}={_text(part)}"
        for name, part in parts.items()
        if not (name in defaults and defaults[name] is part)
    ]
    return f"{kind}({', '.join(shown)})"


def _text(part: Any) -> str:
    if isinstance(part, partial):
        return _text(part.func)
    if isinstance(part, tuple) and hasattr(part, "_asdict"):
        return short(part)
    if isinstance(part, Mapping):
        return f"{{{', '.join(map(str, part))}}}"
    name = getattr(part, "__qualname__", None)
    return repr(part) if name is None else str(name).replace("<locals>.", "")
