"""Initial values and forms of input."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evenhand.errors import EvenhandError
from evenhand.models._linear import glorot_uniform, vector_rows
from evenhand.models._networks import image_rows


@pytest.mark.parametrize("shape", [(6, 64), (3, 2, 2, 48)])
def test_glorot_uniform_draws_what_flax_draws(shape: tuple[int, ...]) -> None:
    key = jax.random.key(3)
    expected = nn.initializers.glorot_uniform()(key, shape, jnp.float32)
    np.testing.assert_allclose(glorot_uniform(key, shape), expected, rtol=1e-6, atol=1e-6)
    assert not np.array_equal(glorot_uniform(jax.random.key(4), shape), expected)


def test_rows_are_brought_into_shape_or_refused() -> None:
    x = jnp.arange(2 * 12, dtype=jnp.uint8).reshape(2, 2, 3, 2)
    assert vector_rows(x, 12).shape == (2, 12) and vector_rows(x, 12).dtype == jnp.float32
    np.testing.assert_array_equal(image_rows(x.reshape(2, 12), (2, 3, 2)), x)
    assert image_rows(jnp.zeros((4, 2, 3)), (2, 3, 1)).shape == (4, 2, 3, 1)
    for wrong in (x.transpose(0, 3, 1, 2), x[:, :1], x.reshape(-1)):
        with pytest.raises(EvenhandError, match="made for images of shape"):
            image_rows(wrong, (2, 3, 2))
    with pytest.raises(EvenhandError, match="made for 10 features"):
        vector_rows(x, 10)
