"""The models of the papers on private optimisers have as many parameters as theirs, where the library has them."""

import math

import jax
import pytest

from evenhand import models

MODELS = {
    "film reviews, softmax": (models.softmax_regression(features=10_000, classes=2), 20_002),
    "film reviews, one logit": (models.linear_regression(10_000), 10_001),
    "questions": (models.softmax_regression(features=10_000, classes=500), 5_000_500),
    "autoencoder": (models.autoencoder(784), 2_837_314),
    "ratings of films": (models.matrix_factorisation(943, 1682), 262_500),
}


@pytest.mark.parametrize("name", MODELS)
def test_there_are_as_many_parameters_as_in_the_paper(name):
    model, count = MODELS[name]
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == count
