"""What the server and the clients of a round agree on, whoever carries the messages.

The compiled engine, its readable twin and a network are three callers of these functions.  A round has four steps for
each phase of the method:

1. *The cohort.*  The server draws clients (:func:`cohort`).
2. *The clients.*  Each gets ``phase.broadcast``, makes its ``phase.report`` and does its ``phase.work`` with
   :func:`work_key`; malicious ones replace what they send (:func:`false_report`, :func:`false_delta`,
   :func:`colluding`).
3. *The reduction.*  The server rejects what no honest client can send (:func:`accepts_report`,
   :func:`accepts_delta`), weighs the others (:func:`weighed`), and reduces their uploads to one direction: in passes
   of sums (:func:`evenhand.aggregators.in_passes`, each client lifting with :func:`lift_key`), or all at once.
4. *The server.*  It steps (:func:`server_step`).
"""

from evenhand.rounds._malicious import (
    colluding,
    false_delta,
    false_report,
    fresh_data,
    lifted,
    malicious_clients,
    own_rows,
    poisoned,
)
from evenhand.rounds._protocol import (
    RoundState,
    Step,
    Wire,
    accepts_delta,
    accepts_report,
    begin,
    cohort,
    effective,
    largest_weight,
    last_rounds,
    lift_key,
    phase_stream,
    roots,
    server_step,
    traffic,
    weighed,
    wires,
    work_key,
)

__all__ = [
    "RoundState",
    "Step",
    "Wire",
    "accepts_delta",
    "accepts_report",
    "begin",
    "cohort",
    "colluding",
    "effective",
    "false_delta",
    "false_report",
    "fresh_data",
    "largest_weight",
    "last_rounds",
    "lift_key",
    "lifted",
    "malicious_clients",
    "own_rows",
    "phase_stream",
    "poisoned",
    "roots",
    "server_step",
    "traffic",
    "weighed",
    "wires",
    "work_key",
]
