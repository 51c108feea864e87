"""Contract suites: what every method, aggregator, risk and attack must satisfy, whether built in or your own.

Call them from your tests; they raise ``AssertionError`` with a sentence that names the broken law.  Each function's
documentation lists its laws.  Two of them concern mistakes that full cohorts of honest clients do not show: an empty
slot of a cohort has no vote (:func:`check_aggregator`, and :func:`check_algorithm` for a method's aggregators), and a
client uploads how the parameters changed, not the parameters (:func:`check_algorithm`).
"""

from evenhand.testing._algorithm import check_algorithm, toy_data, toy_model
from evenhand.testing._risk import check_risk
from evenhand.testing._uploads import check_aggregator, check_attack

__all__ = ["check_aggregator", "check_algorithm", "check_attack", "check_risk", "toy_data", "toy_model"]
