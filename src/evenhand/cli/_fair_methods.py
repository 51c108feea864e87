"""The fair methods that ``evenhand run`` offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from tyro.conf import arg

from evenhand import algorithms
from evenhand.cli._local import LocalOptions, plain_server
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError
from evenhand.types import Algorithm, Model

__all__ = ["AFL", "QMAML", "DeltaFL", "FedMGDA", "FedTilt", "QFedAvg", "QFedSGD", "Term"]


@dataclass(frozen=True)
class QFedAvg:
    """Clients with high loss count for more, by a power q of their loss."""

    name: ClassVar[str] = "qfedavg"
    paper: ClassVar[str] = "Li et al., ICLR 2020"

    q: float = 1.0
    """how much high losses count; 0: none, and clients are drawn by their rows; a large q wants more
    --rounds"""

    def build(self, model: Model, local: LocalOptions, data: FederatedDataset) -> Algorithm:
        """The method for one model."""
        return algorithms.qfedavg(local.work(model), q=self.q)


@dataclass(frozen=True)
class QFedSGD:
    """q-FedAvg with one gradient over all of a client's rows per round; --lr is its step at q = 0."""

    name: ClassVar[str] = "qfedsgd"
    paper: ClassVar[str] = "Li et al., ICLR 2020"

    q: float = 1.0
    """how much high losses count; a large q wants more --rounds"""

    def build(self, model: Model, local: LocalOptions, data: FederatedDataset) -> Algorithm:
        """The method for one model."""
        local.one_gradient(self.name)
        return algorithms.qfedsgd(model, q=self.q, lipschitz=1.0 / local.lr)


@dataclass(frozen=True)
class AFL:
    """The worst mixture of all clients, by one gradient of each per round; --lr is the model's step."""

    name: ClassVar[str] = "afl"
    paper: ClassVar[str] = "Mohri et al., ICML 2019"

    gamma_lambda: float = 0.1
    """γ_λ, the step of the mixture"""

    def build(self, model: Model, local: LocalOptions, data: FederatedDataset) -> Algorithm:
        """The method for one model."""
        local.one_gradient(self.name)
        return algorithms.afl(model, gamma_w=local.lr, gamma_lambda=self.gamma_lambda)


@dataclass(frozen=True)
class Term:
    """Clients weighted by exp(t × loss): fair for t > 0, deaf to outliers for t < 0."""

    name: ClassVar[str] = "term"
    paper: ClassVar[str] = "Li et al., ICLR 2021"

    t: float = 1.0
    """the tilt t, in 1/loss; 0 is FedAvg"""
    running: Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="(default: not used)")] = None
    """average the normaliser over rounds, with this share of the newest one"""

    def build(self, model: Model, local: LocalOptions, data: FederatedDataset) -> Algorithm:
        """The method for one model."""
        return algorithms.term(local.work(model), t=self.t, running=self.running)


@dataclass(frozen=True)
class DeltaFL:
    """Only the worst-off fraction θ of a cohort counts (superquantile)."""

    name: ClassVar[str] = "delta-fl"
    paper: ClassVar[str] = "Pillutla et al., Mach. Learn. 2023"

    theta: float = 0.5
    """θ, the fraction of the clients that counts; 1 is FedAvg"""
    nu: float = 0.0
    """ν, strength of the smoothing; 0: none"""
    filtered: bool = False
    """whole clients whose loss is above the quantile, rather than exact weights"""
    strict: Annotated[bool, arg(help_behavior_hint="(default: they do not)")] = True
    """with --filtered: clients whose loss equals the quantile count too, as the paper prints it"""

    def build(self, model: Model, local: LocalOptions, data: FederatedDataset) -> Algorithm:
        """The method for one model."""
        return algorithms.delta_fl(
            local.work(model),
            theta=self.theta,
            nu=self.nu,
            filtered=self.filtered,
            strict=self.strict,
        )


@dataclass(frozen=True)
class FedTilt:
    """A personal model for each client, even over its classes and rows, near a tilted global one."""

    name: ClassVar[str] = "fedtilt"
    paper: ClassVar[str] = "Zhang et al., 2025"

    tilt_class: float = 1.0
    """τ, over the classes of a client"""
    tilt_sample: float = 0.0
    """λ, over the rows of a class; below 0 against outliers"""
    tilt_server: float = 0.0
    """q, over the clients' distances from the global model"""
    prox_mu: float = 0.01
    """μ that holds personal models near the global one"""

    def build(self, model: Model, local: LocalOptions, data: FederatedDataset) -> Algorithm:
        """The method for one model."""
        if data.num_classes is None:
            raise EvenhandError(
                f"fedtilt needs classes, but {data.name} has real-valued labels: use another method."
            )
        return algorithms.fedtilt(
            local.work(model),
            classes=data.num_classes,
            tilt_class=self.tilt_class,
            tilt_sample=self.tilt_sample,
            tilt_server=self.tilt_server,
            prox_mu=self.prox_mu,
        )


@dataclass(frozen=True)
class FedMGDA:
    """The shortest combination of the clients' unit updates: good for everybody in the cohort."""

    name: ClassVar[str] = "fedmgda"
    paper: ClassVar[str] = "Hu et al., 2022"

    epsilon: float = 0.1
    """ε, how far a client's weight may be from 1/m; 0: equal, 1: any"""
    server_lr: float = 1.0
    """how far a round moves the model at most"""

    def build(self, model: Model, local: LocalOptions, data: FederatedDataset) -> Algorithm:
        """The method for one model."""
        opt = plain_server(self.server_lr)
        return algorithms.fedmgda(local.work(model), epsilon=self.epsilon, server_opt=opt)


@dataclass(frozen=True)
class QMAML:
    """A start from which every client learns well in one step of --lr; evaluated after some of them."""

    name: ClassVar[str] = "qmaml"
    paper: ClassVar[str] = "Li et al., ICLR 2020"

    q: float = 0.1
    """how much high losses count; 0 is first-order MAML; a large q wants more --rounds"""
    finetune_steps: int = 5
    """steps that a client takes on its own rows before it is evaluated; 0: the start itself is"""

    def build(self, model: Model, local: LocalOptions, data: FederatedDataset) -> Algorithm:
        """The method for one model."""
        local.one_gradient(self.name)
        steps = self.finetune_steps
        return algorithms.qmaml(model, q=self.q, step_size=local.lr, finetune_steps=steps)
