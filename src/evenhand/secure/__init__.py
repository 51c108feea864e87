"""Sums of which a server learns nothing but the sum: fixed point, masks, shares, and the protocol around them.

:func:`evenhand.aggregators.secure` puts them under any aggregator that needs sums only.  Masks and shares need the
package ``cryptography``, which ``pip install 'evenhand[secure]'`` brings.
"""

from evenhand.secure._fixed_point import (
    LIMB_BITS,
    FixedPoint,
    carried,
    fixed_point,
    from_limbs,
    masked_sum,
    masked_uploads,
    masked_words,
    to_limbs,
)
from evenhand.secure._primitives import SEED_BYTES, SHARE_BYTES, join, public_key, split
from evenhand.secure._protocol import (
    SEALED_BYTES,
    Cost,
    Offer,
    Plan,
    Revealed,
    Secret,
    TooFewError,
    Transcript,
    advertise,
    mask,
    plan,
    recover,
    reveal,
    run_protocol,
    secure_sum,
    share,
)

__all__ = [
    "LIMB_BITS",
    "SEALED_BYTES",
    "SEED_BYTES",
    "SHARE_BYTES",
    "Cost",
    "FixedPoint",
    "Offer",
    "Plan",
    "Revealed",
    "Secret",
    "TooFewError",
    "Transcript",
    "advertise",
    "carried",
    "fixed_point",
    "from_limbs",
    "join",
    "mask",
    "masked_sum",
    "masked_uploads",
    "masked_words",
    "plan",
    "public_key",
    "recover",
    "reveal",
    "run_protocol",
    "secure_sum",
    "share",
    "split",
    "to_limbs",
]
