"""Methods that are private for clients, and how much noise each needs for an epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import optax

import evenhand as eh
from evenhand import privacy

__all__ = ["Rival", "Setting", "rivals"]

Numbers = Mapping[str, Any]
_LEAST = 0.01
"""The noise of Delta-FL at an infinite epsilon, where its histogram must have some."""


@dataclass(frozen=True)
class Setting:
    """How long one kind of clients is trained on, and what is tried there.

    Attributes:
      clients: how many.
      strangers: how many others, where there are any.
      cohort: clients of a round, on average.
      rounds: of each run.
      learning_rate: of the clients.
      batch_size: of the clients; None: all rows, and so one step.
      clips: of updates.
      rates: step sizes of the server.
      adam_rates: of a server with Adam.
      tree_rates: of DP-FTRL's server, whose noise is larger.
      largest_loss: to which Delta-FL clips losses.
    """

    clients: int
    strangers: int
    cohort: int
    rounds: int
    learning_rate: float
    batch_size: int | None
    clips: tuple[float, ...]
    rates: tuple[float, ...]
    adam_rates: tuple[float, ...]
    tree_rates: tuple[float, ...]
    largest_loss: float

    @property
    def delta(self) -> float:
        """One in the number of clients."""
        return 1.0 / self.clients

    @property
    def rate(self) -> float:
        """The chance with which a client is drawn."""
        return self.cohort / self.clients


class Rival(NamedTuple):
    """A method, and what is tried of it.

    Attributes:
      make: noise multiplier and settings -> the method.
      grid: six settings.
      noise: epsilon -> the noise multiplier.
      cohort: clients of a round, where their number is fixed.
    """

    make: Callable[[float, Numbers], eh.Algorithm]
    grid: Mapping[str, Sequence[Any]]
    noise: Callable[[float], float]
    cohort: int | None = None


def rivals(setting: Setting, model: eh.Model, thetas: Sequence[float] = (0.5,)) -> dict[str, Rival]:
    """All methods; each takes six settings."""
    work = eh.local.sgd(model, setting.learning_rate, epochs=1, batch_size=setting.batch_size)
    drawn: dict[str, Any] = {"rate": setting.rate}
    clips, rates, count_noise = setting.clips, setting.rates, setting.cohort / 20

    def averaging(noise: float, n: Numbers) -> eh.Algorithm:
        server = optax.sgd(n["lr"])
        return privacy.dp_fedavg(work, clip=n["clip"], noise_multiplier=noise, server_opt=server, **drawn)

    def following(noise: float, n: Numbers) -> eh.Algorithm:
        clip = privacy.adaptive_clip(clips[1], quantile=n["quantile"], noise=count_noise)
        server = optax.sgd(n["lr"])
        return privacy.dp_fedavg(work, clip=clip, noise_multiplier=noise, server_opt=server, **drawn)

    def adam(noise: float, n: Numbers) -> eh.Algorithm:
        return privacy.dp_fedadam(work, clip=n["clip"], noise_multiplier=noise, server_lr=n["lr"], **drawn)

    def in_turns(noise: float, n: Numbers) -> eh.Algorithm:
        given: dict[str, Any] = {"cohort": setting.cohort, "clients": setting.clients}
        server = optax.sgd(n["lr"])
        return privacy.dp_ftrl(work, clip=n["clip"], noise_multiplier=noise, server_opt=server, **given)

    def tail(theta: float) -> Callable[[float, Numbers], eh.Algorithm]:
        def make(noise: float, n: Numbers) -> eh.Algorithm:
            given: dict[str, Any] = {"theta": theta, "largest_loss": setting.largest_loss}
            given |= {"server_opt": optax.sgd(n["lr"]), **drawn}
            return privacy.dp_delta_fl(work, clip=n["clip"], noise_multiplier=noise or _LEAST, **given)

        return make

    usual = _noise(setting)
    return {
        "DP-FedAvg": Rival(averaging, {"clip": clips, "lr": rates}, usual),
        "adaptive clip": Rival(following, {"quantile": (0.2, 0.6), "lr": rates}, usual),
        "DP-FedAdam": Rival(adam, {"clip": clips, "lr": setting.adam_rates}, usual),
        "DP-FTRL": Rival(
            in_turns, {"clip": clips, "lr": setting.tree_rates}, _tree_noise(setting), setting.cohort
        ),
        **{
            f"DP-Delta-FL, theta={theta:g}": Rival(tail(theta), {"clip": clips, "lr": rates}, usual)
            for theta in thetas
        },
    }


def _noise(setting: Setting) -> Callable[[float], float]:
    def found(epsilon: float) -> float:
        if math.isinf(epsilon):
            return 0.0
        given: dict[str, Any] = {"rate": setting.rate, "steps": setting.rounds, "delta": setting.delta}
        return privacy.noise_for(epsilon=epsilon, **given)

    return found


def _tree_noise(setting: Setting) -> Callable[[float], float]:
    """Each turn of DP-FTRL is one release, under noise that its promise tells."""
    turn = -(-setting.clients // setting.cohort)

    def found(epsilon: float) -> float:
        if math.isinf(epsilon):
            return 0.0
        turns = -(-setting.rounds // turn)
        whole = privacy.noise_for(epsilon=epsilon, rate=1.0, steps=turns, delta=setting.delta)
        return whole * math.sqrt(turn.bit_length())

    return found
