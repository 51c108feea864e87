"""Personal models: methods that leave each client with a personal model, one file each.

Ditto and finetuning go around any global method; the others are methods by themselves.  MOCHA is a solver of its own.
"""

from evenhand.personalization import methods as methods  # a module, with the same name for the method of runs
from evenhand.personalization.apfl import apfl
from evenhand.personalization.ditto import ditto
from evenhand.personalization.dynamic_ditto import dynamic_ditto
from evenhand.personalization.fedalt import fedalt, fedbn, fedsim
from evenhand.personalization.fedbabu import fedbabu
from evenhand.personalization.finetune import ewc, finetune, skl
from evenhand.personalization.l2gd import l2gd, l2sgd
from evenhand.personalization.local_only import local_only
from evenhand.personalization.mapper import mapper
from evenhand.personalization.mocha import Mocha, mocha
from evenhand.personalization.per_fedavg import per_fedavg
from evenhand.personalization.pfedme import pfedme

__all__ = [
    "Mocha",
    "apfl",
    "ditto",
    "dynamic_ditto",
    "ewc",
    "fedalt",
    "fedbabu",
    "fedbn",
    "fedsim",
    "finetune",
    "l2gd",
    "l2sgd",
    "local_only",
    "mapper",
    "mocha",
    "per_fedavg",
    "pfedme",
    "skl",
]
