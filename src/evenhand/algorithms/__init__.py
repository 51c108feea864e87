"""Federated methods, one file each."""

from evenhand.algorithms.afl import afl
from evenhand.algorithms.alone import alone
from evenhand.algorithms.averaged import averaged
from evenhand.algorithms.delta_fl import delta_fl
from evenhand.algorithms.delta_fl_levels import delta_fl_levels
from evenhand.algorithms.fedavg import fedavg
from evenhand.algorithms.feddane import feddane
from evenhand.algorithms.fedex_lora import fedex_lora
from evenhand.algorithms.fedmgda import fedmgda
from evenhand.algorithms.fedprox import fedprox, fedprox_adaptive
from evenhand.algorithms.fedprox_measured import fedprox_measured
from evenhand.algorithms.fedtilt import fedtilt
from evenhand.algorithms.qfedavg import qfedavg, qfedsgd
from evenhand.algorithms.qmaml import qmaml
from evenhand.algorithms.scaffold import scaffold
from evenhand.algorithms.side_by_side import side_by_side
from evenhand.algorithms.term import term

__all__ = [
    "afl",
    "alone",
    "averaged",
    "delta_fl",
    "delta_fl_levels",
    "fedavg",
    "feddane",
    "fedex_lora",
    "fedmgda",
    "fedprox",
    "fedprox_adaptive",
    "fedprox_measured",
    "fedtilt",
    "qfedavg",
    "qfedsgd",
    "qmaml",
    "scaffold",
    "side_by_side",
    "term",
]
