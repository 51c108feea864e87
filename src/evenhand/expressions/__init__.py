"""Methods and their parts as Python expressions, read without evaluating anything.

``fedprox(mu=0.1, aggregator=risk_weighted(superquantile(0.5)))`` is a tree of calls.  Each call names a public factory
of the kind that is expected in its place: where an aggregator belongs, an aggregator.  What a factory takes is read off
its signature, so that a new factory needs nothing here.  The model is filled in, and so is the clients' local work,
unless the expression has some.

The command line, ``config.json`` and studies write methods this way, and so can a script:

>>> import evenhand as eh
>>> model = eh.models.softmax_regression(features=64, classes=10)
>>> work = eh.local.sgd(model, 0.1, epochs=5)
>>> eh.expressions.parse("averaged(fedprox(mu=0.1))", eh.Algorithm, model, work).name
'averaged(fedprox(mu=0.1))'

The kinds of values that an expression can make, with the factories of each, are in :mod:`~evenhand.expressions.kinds`,
those of other packages in :mod:`~evenhand.expressions.plugins`; expressions are read in
:mod:`~evenhand.expressions.reading`, with several values in braces or one.
"""

from evenhand.expressions import plugins
from evenhand.expressions.kinds import KINDS, Kind, factories, signature
from evenhand.expressions.reading import Braced, ExpressionError, braced, canonical, parse, with_noise

__all__ = [
    "KINDS",
    "Braced",
    "ExpressionError",
    "Kind",
    "braced",
    "canonical",
    "factories",
    "parse",
    "plugins",
    "signature",
    "with_noise",
]
