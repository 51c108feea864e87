"""The methods that ``evenhand run`` offers: their hyper-parameters, and how each becomes an Algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

from tyro.conf import subcommand

from evenhand import algorithms, server_opt
from evenhand.cli import _fair_methods as fair
from evenhand.cli._expression import built
from evenhand.cli._local import LocalOptions, plain_server
from evenhand.data import FederatedDataset
from evenhand.local import Work
from evenhand.types import Algorithm, Model

__all__ = ["METHODS", "Composed", "Method"]


@dataclass(frozen=True)
class FedAvg:
    """Local training, then the mean of the models, weighted by rows."""

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"

    server_lr: float = 1.0
    """the server's step η_g on the mean change; 1 is plain averaging"""

    def build(self, model: Model, local: LocalOptions, data: FederatedDataset) -> Algorithm:
        """The method for one model."""
        return algorithms.fedavg(local.work(model), server_opt=plain_server(self.server_lr))


@dataclass(frozen=True)
class FedProx:
    """FedAvg with a proximal term; the partial work of stragglers counts."""

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al., MLSys 2020"

    mu: float = 1.0
    """μ of the proximal term (μ/2) ||w - w^t||²; keep lr × μ below 2"""
    server_lr: float = 1.0
    """the server's step η_g on the mean change; 1 is plain averaging"""

    def build(self, model: Model, local: LocalOptions, data: FederatedDataset) -> Algorithm:
        """The method for one model."""
        return algorithms.fedprox(local.work(model), mu=self.mu, server_opt=plain_server(self.server_lr))


@dataclass(frozen=True)
class FedProxAdaptive:
    """FedProx whose μ rises when the training loss rises, and falls with it."""

    name: ClassVar[str] = "fedprox-adaptive"
    paper: ClassVar[str] = "Li et al., MLSys 2020, section 5.3.2"

    mu0: float = 0.0
    """the first μ, a multiple of 0.1"""
    server_lr: float = 1.0
    """the server's step η_g on the mean change; 1 is plain averaging"""

    def build(self, model: Model, local: LocalOptions, data: FederatedDataset) -> Algorithm:
        """The method for one model."""
        opt = plain_server(self.server_lr)
        return algorithms.fedprox_adaptive(local.work(model), mu0=self.mu0, server_opt=opt)


@dataclass(frozen=True)
class FedDane:
    """Local gradients corrected by a global gradient, collected in an extra exchange."""

    name: ClassVar[str] = "feddane"
    paper: ClassVar[str] = "Li et al., Asilomar 2019"

    mu: float = 0.001
    """μ of the proximal term (μ/2) ||w - w^t||²"""
    server_lr: float = 1.0
    """the server's step η_g on the mean change; 1 is plain averaging"""

    def build(self, model: Model, local: LocalOptions, data: FederatedDataset) -> Algorithm:
        """The method for one model."""
        return algorithms.feddane(local.work(model), mu=self.mu, server_opt=plain_server(self.server_lr))


@dataclass(frozen=True)
class Scaffold:
    """Control variates, kept by server and clients, against client drift."""

    name: ClassVar[str] = "scaffold"
    paper: ClassVar[str] = "Karimireddy et al., ICML 2020"

    server_lr: float = 1.0
    """the server's step η_g on the mean change"""

    def build(self, model: Model, local: LocalOptions, data: FederatedDataset) -> Algorithm:
        """The method for one model."""
        return algorithms.scaffold(local.work(model), server_opt=plain_server(self.server_lr))


@dataclass(frozen=True)
class FedAdam:
    """FedAvg with Adam on the server."""

    name: ClassVar[str] = "fedadam"
    paper: ClassVar[str] = "Reddi et al., ICLR 2021"

    server_lr: float = 0.1
    """the server's step η"""
    b1: float = 0.9
    """β₁, decay of the first moment"""
    b2: float = 0.99
    """β₂, decay of the second moment"""
    tau: float = 1e-3
    """τ, the degree of adaptivity; small adapts more"""

    def build(self, model: Model, local: LocalOptions, data: FederatedDataset) -> Algorithm:
        """The method for one model."""
        opt = server_opt.fedadam(self.server_lr, b1=self.b1, b2=self.b2, tau=self.tau)
        return algorithms.fedavg(local.work(model), server_opt=opt)


@dataclass(frozen=True)
class FedYogi:
    """FedAvg with Yogi on the server."""

    name: ClassVar[str] = "fedyogi"
    paper: ClassVar[str] = "Reddi et al., ICLR 2021"

    server_lr: float = 0.1
    """the server's step η"""
    b1: float = 0.9
    """β₁, decay of the first moment"""
    b2: float = 0.99
    """β₂, decay of the second moment"""
    tau: float = 1e-3
    """τ, the degree of adaptivity; small adapts more"""

    def build(self, model: Model, local: LocalOptions, data: FederatedDataset) -> Algorithm:
        """The method for one model."""
        opt = server_opt.fedyogi(self.server_lr, b1=self.b1, b2=self.b2, tau=self.tau)
        return algorithms.fedavg(local.work(model), server_opt=opt)


@dataclass(frozen=True)
class FedAdagrad:
    """FedAvg with Adagrad on the server."""

    name: ClassVar[str] = "fedadagrad"
    paper: ClassVar[str] = "Reddi et al., ICLR 2021"

    server_lr: float = 0.1
    """the server's step η"""
    b1: float = 0.0
    """β₁, decay of the first moment"""
    tau: float = 1e-3
    """τ, the degree of adaptivity; small adapts more"""

    def build(self, model: Model, local: LocalOptions, data: FederatedDataset) -> Algorithm:
        """The method for one model."""
        opt = server_opt.fedadagrad(self.server_lr, b1=self.b1, tau=self.tau)
        return algorithms.fedavg(local.work(model), server_opt=opt)


@dataclass(frozen=True)
class FedAvgM:
    """FedAvg with momentum on the server."""

    name: ClassVar[str] = "fedavgm"
    paper: ClassVar[str] = "Hsu et al., 2019"

    server_lr: float = 1.0
    """the server's step η"""
    momentum: float = 0.9
    """β of v ← βv + Δ; 0 is FedAvg"""

    def build(self, model: Model, local: LocalOptions, data: FederatedDataset) -> Algorithm:
        """The method for one model."""
        opt = server_opt.fedavgm(self.server_lr, momentum=self.momentum)
        return algorithms.fedavg(local.work(model), server_opt=opt)


@dataclass(frozen=True)
class Composed:
    """Any composition of methods and parts, as in Python: `evenhand run 'fedprox(mu=0.1, server_opt=fedadam(0.1))'`."""

    name: ClassVar[str] = "composed"
    paper: ClassVar[str] = "`evenhand list` has the parts"

    expression: str
    """the method, such as 'averaged(fedprox(mu=0.1))'; it may stand in the place of METHOD, without this option"""

    def build(self, model: Model, local: LocalOptions, data: FederatedDataset) -> Algorithm:
        """The method for one model."""
        asked: list[bool] = []

        def work() -> Work:
            asked.append(True)
            return local.work(model)

        method = built(self.expression, Algorithm, model, work)
        if not asked:
            local.not_given("This method has local work of its own, or needs none")
        return method


METHODS = (
    FedAvg,
    FedProx,
    FedProxAdaptive,
    FedDane,
    Scaffold,
    FedAdam,
    FedYogi,
    FedAdagrad,
    FedAvgM,
    fair.QFedAvg,
    fair.QFedSGD,
    fair.AFL,
    fair.Term,
    fair.DeltaFL,
    fair.FedTilt,
    fair.FedMGDA,
    fair.QMAML,
    Composed,
)

Method: TypeAlias = (
    Annotated[FedAvg, subcommand(FedAvg.name)]
    | Annotated[FedProx, subcommand(FedProx.name)]
    | Annotated[FedProxAdaptive, subcommand(FedProxAdaptive.name)]
    | Annotated[FedDane, subcommand(FedDane.name)]
    | Annotated[Scaffold, subcommand(Scaffold.name)]
    | Annotated[FedAdam, subcommand(FedAdam.name)]
    | Annotated[FedYogi, subcommand(FedYogi.name)]
    | Annotated[FedAdagrad, subcommand(FedAdagrad.name)]
    | Annotated[FedAvgM, subcommand(FedAvgM.name)]
    | Annotated[fair.QFedAvg, subcommand(fair.QFedAvg.name)]
    | Annotated[fair.QFedSGD, subcommand(fair.QFedSGD.name)]
    | Annotated[fair.AFL, subcommand(fair.AFL.name)]
    | Annotated[fair.Term, subcommand(fair.Term.name)]
    | Annotated[fair.DeltaFL, subcommand(fair.DeltaFL.name)]
    | Annotated[fair.FedTilt, subcommand(fair.FedTilt.name)]
    | Annotated[fair.FedMGDA, subcommand(fair.FedMGDA.name)]
    | Annotated[fair.QMAML, subcommand(fair.QMAML.name)]
    | Annotated[Composed, subcommand(Composed.name)]
)
