"""Contract suites: what every method, aggregator, risk and attack must satisfy, whether built in or your own.

Call the ``check_`` functions from your tests; they raise ``AssertionError`` with a sentence that names the broken law.
Each function's documentation lists its laws.  The ``_checks`` functions give the same laws one by one, as checks with a
name that pytest shows: ``@pytest.mark.parametrize("check", eh.testing.algorithm_checks(method), ids=lambda check:
check.name)`` over ``def test_it(check): check()``.

Some laws concern mistakes that runs with full cohorts of honest clients do not show: an empty slot of a cohort has no
vote (:func:`check_aggregator`, and :func:`check_algorithm` for a method's aggregators), draws and noise come from the
keys that are passed in, padding does not count, weights are those of the sampling, and a client uploads how the
parameters changed, not the parameters.  What no check sees is listed in ``docs/extending.md``.
"""

from evenhand.testing._algorithm import algorithm_checks, check_algorithm
from evenhand.testing._check import Check, toy_data, toy_model
from evenhand.testing._risk import check_risk, risk_checks
from evenhand.testing._uploads import aggregator_checks, attack_checks, check_aggregator, check_attack

__all__ = [
    "Check",
    "aggregator_checks",
    "algorithm_checks",
    "attack_checks",
    "check_aggregator",
    "check_algorithm",
    "check_attack",
    "check_risk",
    "risk_checks",
    "toy_data",
    "toy_model",
]
