"""What a client does to the model that it is served, before it uses it."""

from __future__ import annotations

from collections.abc import Callable

from evenhand.personalization._beside import uncovered
from evenhand.streams import Purpose, stream
from evenhand.types import Algorithm, ClientData, Key, Params

__all__ = ["after"]


def after(method: Algorithm, adapt: Callable[[Params, ClientData, Key], Params], name: str) -> Algorithm:
    """``method`` with one more thing that clients do to their models before each evaluation."""
    before = method.adapt

    def both(params: Params, data: ClientData, key: Key) -> Params:
        if before is None:
            return adapt(params, data, key)
        return adapt(before(params, data, key), data, stream(key, Purpose.PERSONAL))

    return method._replace(adapt=both, privacy=uncovered(method.privacy), name=name)
