"""Contract suites: what every method, aggregator, risk and attack must satisfy, whether built in or your own.

Call them from your tests; they raise ``AssertionError`` with a sentence that names the broken law.
"""

from evenhand.testing._aggregator import check_aggregator
from evenhand.testing._algorithm import check_algorithm
from evenhand.testing._attack import check_attack
from evenhand.testing._risk import check_risk
from evenhand.testing._toy import toy_data, toy_model

__all__ = ["check_aggregator", "check_algorithm", "check_attack", "check_risk", "toy_data", "toy_model"]
