"""Risks of groups' risks against FedTilt's golden values and against TERM's closed form."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from risk_measures import measure, normal, tilt, tilt_by_hand, two_level

import evenhand as eh
from evenhand.risks import hierarchical, mean, superquantile, tilted

_LOSSES = (0.1, 0.5, 2.0, 0.3, 1.2)
_GROUPS = (0, 0, 0, 1, 1)
_GOLDEN = {
    (0, 0): (0.82, 0.866666666667, 0.75, 0.6),
    (1, 1): (1.08606213174, 1.21816642539, 0.848006694172, 0.684736401494),
    (1, 0): (0.821619831306, 0.866666666667, 0.75, 0.627646111289),
    (0, 1): (1.0701025329, 1.21816642539, 0.848006694172, 0.6),
    (0, -1): (0.620699499762, 0.599836962386, 0.651993305828, 0.6),
    (2, -3): (0.434529537165, 0.377587221497, 0.509367872928, 0.535416540257),
    (-3, 2): (1.15221020111, 1.48553050108, 0.929915214983, 0.220736295342),
    (-1, -1): (0.620374232969, 0.599836962386, 0.651993305828, 0.61244976688),
    (2, 1): (1.10080159951, 1.21816642539, 0.848006694172, 0.75874010946),
    (-0.5, 1): (1.06179063428, 1.21816642539, 0.848006694172, 0.554874387701),
    (-1, 10): (1.5152479205, 1.89013880228, 1.13069762216, 0.412418567196),
    (-0.1, -0.1): (0.796113380482, 0.833779816529, 0.739878415343, 0.597744264779),
    (50, 100): (1.97879736464, 1.98901387711, 1.19306852819, 1.0),
    (50, -10): (0.350986012203, 0.208046235525, 0.369302377837, 0.000472338599527),
    (-50, 50): (1.20446287103, 1.97802775423, 1.18613705639, 9.55879707441e-18),
    (100, -100): (0.297768564533, 0.110986122887, 0.306931471806, 4.63759562898e-9),
}
_WEIGHTS = {
    (2, -3): (0.410425489031, 0.123617781717, 0.00137326950916, 0.435327080114, 0.0292563796286),
    (-3, 2): (0.00460570367366, 0.0102501820302, 0.205880409638, 0.110539386344, 0.668724318314),
    (1, 1): (0.0746085591698, 0.111302891225, 0.4988249511, 0.0911270999523, 0.224136498553),
    (0, 0): (0.2, 0.2, 0.2, 0.2, 0.2),
}
_PAIRS = list(_GOLDEN)


def _pairs() -> tuple[list[float], list[float]]:
    tau, lam = zip(*_PAIRS, strict=True)
    return list(tau), list(lam)


def test_golden_values() -> None:
    """FedTilt's T1, from arithmetic of 50 digits: value, the risks of both classes, the weight of the first."""
    found = two_level(*_pairs(), _LOSSES, _GROUPS, 2)
    class_risks = [tilt(_pairs()[1], np.array(_LOSSES)[np.array(_GROUPS) == g])[0] for g in (0, 1)]
    golden = np.array(list(_GOLDEN.values()))
    np.testing.assert_allclose(found.value, golden[:, 0], rtol=6e-12)
    np.testing.assert_allclose(class_risks[0], golden[:, 1], rtol=6e-12)
    np.testing.assert_allclose(class_risks[1], golden[:, 2], rtol=6e-12)
    np.testing.assert_allclose(found.weights[:, :3].sum(axis=1), golden[:, 3], rtol=1e-9)


def test_golden_weights_are_the_gradient() -> None:
    """FedTilt's T2 and T9."""
    found = two_level(*_pairs(), _LOSSES, _GROUPS, 2)
    for pair, weights in _WEIGHTS.items():
        np.testing.assert_allclose(found.weights[_PAIRS.index(pair)], weights, rtol=1e-11)
    np.testing.assert_allclose(found.gradient, found.weights, atol=1e-12)
    np.testing.assert_allclose(found.weights.sum(axis=1), 1.0, atol=1e-14)
    assert (found.weights >= 0).all()


def test_central_differences_agree() -> None:
    """FedTilt's T9 by differences of step 1e-5, mixed signs and zeros included."""
    tau, lam = [2.0, -3.0, 0.0, 1.0, 0.0], [-3.0, 2.0, 1.5, 0.0, 0.0]
    found = two_level(tau, lam, _LOSSES, _GROUPS, 2)
    for i, step in enumerate(1e-5 * np.eye(5)):
        ends = [two_level(tau, lam, np.array(_LOSSES) + sign * step, _GROUPS, 2).value for sign in (1, -1)]
        np.testing.assert_allclose((ends[0] - ends[1]) / 2e-5, found.weights[:, i], rtol=1e-6, atol=1e-9)


def test_equal_tilts_ignore_the_groups() -> None:
    """The flat tilted risk, for random groupings; unequal tilts do not ignore them."""
    rng = np.random.default_rng(0)
    ts = [-20.0, -1.0, 0.0, 1e-7, 0.5, 30.0]
    for _ in range(4):
        f, p, groups = rng.normal(size=9), rng.uniform(0.1, 3, 9), rng.integers(0, 4, 9)
        value, weights = tilt(ts, f, p)
        found = two_level(ts, ts, f, groups, 4, p)
        np.testing.assert_allclose(found.value, value, atol=1e-9)
        np.testing.assert_allclose(found.weights, weights, atol=1e-9)
        unequal = two_level(ts, ts[::-1], f, groups, 4, p)
        assert np.abs(unequal.weights - weights).max() > 1e-3


def test_weights_equal_the_closed_form() -> None:
    """TERM's equation 7.85, which divides by the inner tilt: sizes of groups, not their number, count."""
    rng = np.random.default_rng(1)
    f, groups = rng.uniform(0, 2, 9), np.array([0, 0, 0, 0, 1, 1, 2, 2, 2])
    tau, lam = [1.5, -2.0, 3.0, 0.5, 0.1, -3.0], [-1.0, 0.7, 3.0, -0.2, 0.3, -1.5]
    found = two_level(tau, lam, f, groups, 4)
    for row, (t, inner) in enumerate(zip(tau, lam, strict=True)):
        means = np.array([np.mean(np.exp(inner * f[groups == g])) for g in range(3)])
        sizes = np.bincount(groups)
        expected = means[groups] ** (t / inner - 1) * np.exp(inner * f) / (sizes @ means ** (t / inner))
        np.testing.assert_allclose(found.weights[row], expected, rtol=1e-11)


@pytest.mark.parametrize(
    ("outer", "inner", "value"),
    [
        (math.inf, math.inf, 2.0),
        (-math.inf, math.inf, 1.2),
        (math.inf, -math.inf, 0.3),
        (-math.inf, -math.inf, 0.1),
    ],
)
def test_infinite_tilts_are_limits_of_large_ones(outer: float, inner: float, value: float) -> None:
    """FedTilt's T4, and that finite tilts come close with the bound it gives."""
    risk = hierarchical(tilted(outer), tilted(inner), jnp.array(_GROUPS), 2)
    found = measure(risk, _LOSSES)
    assert found.value == pytest.approx(value, abs=1e-15)
    assert found.weights.tolist() == [float(loss == value) for loss in _LOSSES]
    large = two_level([math.copysign(1e4, outer)], [math.copysign(1e4, inner)], _LOSSES, _GROUPS, 2)
    assert float(large.value[0]) == pytest.approx(value, abs=2 * math.log(5) / 1e4)


def test_finite_tilts_stay_near_the_worst_group() -> None:
    """FedTilt's T4: within ``log(n / n_group) / tau`` of the largest group's risk, and of the smallest below 0."""
    for tau in (0.5, 4.0, 50.0, -0.5, -4.0, -50.0):
        value = float(two_level([tau], [1.0], _LOSSES, _GROUPS, 2).value[0])
        group_risks = [tilt_by_hand(1.0, _LOSSES[:3]), tilt_by_hand(1.0, _LOSSES[3:])]
        slack = math.log(5 / (3 if tau > 0 else 2)) / tau
        bounds = (
            (max(group_risks) - slack, max(group_risks))
            if tau > 0
            else (min(group_risks), min(group_risks) - slack)
        )
        assert bounds[0] <= value <= bounds[1]


def test_the_risk_grows_with_either_tilt_and_stays_between_the_losses() -> None:
    """FedTilt's T5 and T8, on random losses, groups and tilts."""
    rng = np.random.default_rng(2)
    grid = [-30.0, -3.0, -0.3, 0.0, 0.3, 3.0]
    for _ in range(10):
        f, groups, fixed = rng.normal(size=9), rng.integers(0, 4, 9), [float(rng.normal(scale=3))] * 6
        for value in (two_level(grid, fixed, f, groups, 4).value, two_level(fixed, grid, f, groups, 4).value):
            assert np.all(np.diff(value) >= -1e-12) and value[-1] > value[0]
            assert f.min() <= value[0] and value[-1] <= f.max()


def test_order_and_names_of_groups_do_not_matter() -> None:
    """FedTilt's T7 c, and empty groups."""
    found = two_level(*_pairs(), _LOSSES, _GROUPS, 2)
    order = [3, 1, 4, 0, 2]
    turned = two_level(*_pairs(), np.array(_LOSSES)[order], 2 - 2 * np.array(_GROUPS)[order], 5)
    np.testing.assert_allclose(turned.value, found.value, atol=1e-13)
    np.testing.assert_allclose(turned.weights, found.weights[:, order], atol=1e-13)
    np.testing.assert_allclose(turned.gradient, found.gradient[:, order], atol=1e-13)


def test_one_group_has_no_outer_tilt_and_groups_of_one_loss_have_no_inner_tilt() -> None:
    """FedTilt's T7 e and the edge cases of its batches."""
    tilts = [-5.0, 0.0, 0.3, 7.0]
    one = two_level(tilts, [1.3] * 4, _LOSSES, [0] * 5, 5)
    np.testing.assert_allclose(one.value, tilt([1.3], _LOSSES)[0][0], rtol=1e-13)
    alone = two_level([1.3] * 4, tilts, _LOSSES, range(5), 5)
    np.testing.assert_allclose(alone.value, one.value, rtol=1e-13)


def test_padding_is_in_no_group() -> None:
    """The risk of the losses without the padding, also where a whole group is padding."""
    padded = two_level(*_pairs(), [*_LOSSES, np.nan, 1e9], [*_GROUPS, 0, 2], 3, [1, 1, 1, 1, 1, 0, 0])
    found = two_level(*_pairs(), _LOSSES, _GROUPS, 2)
    np.testing.assert_allclose(padded.value, found.value, rtol=1e-12)
    np.testing.assert_allclose(padded.gradient[:, :5], found.gradient, atol=1e-12)
    assert not padded.weights[:, 5:].any() and not padded.gradient[:, 5:].any()


def test_three_levels_follow_the_recursion() -> None:
    """TERM's E10: equal tilts are flat; one super-group is two levels; otherwise the recursion by hand."""
    rng = np.random.default_rng(3)
    f = rng.uniform(0, 2, 9)
    fine, coarse = np.array([0, 0, 1, 1, 1, 2, 2, 3, 3]), np.array([0, 0, 0, 0, 0, 1, 1, 1, 1])

    @jax.jit
    def three(m: jax.Array, t: jax.Array, tau: jax.Array, supers: jax.Array) -> jax.Array:
        within = hierarchical(tilted(t), tilted(tau), jnp.asarray(fine), 4)
        return hierarchical(tilted(m), within, supers, 2).value(jnp.asarray(f))

    def depth(m: float, t: float, tau: float, supers: np.ndarray) -> float:
        with jax.enable_x64(True):
            return float(three(*(jnp.asarray(x) for x in (m, t, tau, supers))))

    def by_hand(m: float, t: float, tau: float) -> float:
        risks, sizes = [], []
        for group in (0, 1):
            names = sorted(set(fine[coarse == group]))
            within = [tilt_by_hand(tau, f[fine == g]) for g in names]
            risks.append(tilt_by_hand(t, within, [np.sum(fine == g) for g in names]))
            sizes.append(np.sum(coarse == group))
        return tilt_by_hand(m, risks, sizes)

    assert depth(1.5, 1.5, 1.5, coarse) == pytest.approx(tilt_by_hand(1.5, f), rel=1e-12)
    two = float(two_level([2.0] * 6, [-1.0] * 6, f, fine, 4).value[0])
    assert depth(-4.0, 2.0, -1.0, np.zeros(9, int)) == pytest.approx(two, rel=1e-12)
    assert depth(-4.0, 2.0, -1.0, coarse) == pytest.approx(by_hand(-4.0, 2.0, -1.0), rel=1e-12)
    assert abs(depth(-4.0, 2.0, -1.0, coarse) - two) > 1e-2


def test_other_risks_can_be_nested() -> None:
    """By hand: the worst of three groups of sizes 2, 3 and 4 by their means, counted by size."""
    f, groups = np.arange(9.0), np.array([0, 0, 1, 1, 1, 2, 2, 2, 2])
    risk = hierarchical(superquantile(5 / 9), mean(), jnp.array(groups), 3)
    found = measure(risk, f)
    assert found.value == pytest.approx(6.5 * 4 / 5 + 3.0 / 5)
    np.testing.assert_allclose(found.weights, normal([0, 0, 1 / 3, 1 / 3, 1 / 3, 1, 1, 1, 1]), atol=1e-12)


def test_a_risk_may_be_made_inside_a_compiled_function() -> None:
    groups = jnp.array([0, 0, 1])

    @jax.jit
    def compiled(losses: jax.Array) -> jax.Array:
        return hierarchical(superquantile(0.1), mean(), groups, 2).value(losses)

    assert float(compiled(jnp.array([1.0, 3.0, 4.0]))) == 4.0


def test_groups_that_do_not_fit_are_refused() -> None:
    """A sentence with both shapes."""
    risk = hierarchical(mean(), mean(), jnp.array([0, 1]), 2)
    with pytest.raises(eh.EvenhandError, match=r"groups of shape \(2,\) for losses of shape \(3,\)"):
        risk.value(jnp.ones(3))
    with pytest.raises(eh.EvenhandError, match=r"num_groups=2\.5: give a whole number"):
        hierarchical(mean(), mean(), jnp.array([0, 1, 2]), 2.5)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("kind", "num_groups"), [(np.int8, 128), (np.uint8, 257), (bool, 2)])
def test_groups_may_have_a_type_that_does_not_hold_their_number(kind: type, num_groups: int) -> None:
    groups, losses = np.array([0, 1, 1, 0]), jnp.array([1.0, 2.0, 5.0, 9.0])
    wide, narrow = (
        hierarchical(mean(), superquantile(0.1), g, num_groups) for g in (groups, groups.astype(kind))
    )
    assert float(narrow.value(losses)) == float(wide.value(losses)) == 7.0
    np.testing.assert_array_equal(narrow.weights(losses), wide.weights(losses))


def test_a_loss_without_a_group_does_not_vanish() -> None:
    """Known groups are checked when the risk is made; traced ones make the number NaN."""
    mean = eh.risks.mean()
    with pytest.raises(eh.EvenhandError, match="num_groups=2"):
        eh.risks.hierarchical(mean, mean, jnp.array([0, 1, 2]), 2)
    for groups in (np.array([0.5, 1.0, 1.0]), np.array(["a", "b", "b"])):
        with pytest.raises(
            eh.EvenhandError, match=f"groups of type {groups.dtype}: .* a whole number from 0"
        ):
            eh.risks.hierarchical(mean, mean, groups, 2)

    def all_of(groups: jax.Array) -> tuple[jax.Array, ...]:
        risk, losses = eh.risks.hierarchical(mean, tilted(1.0), groups, 2), jnp.array([1.0, 2.0, 30.0])
        return *jax.value_and_grad(risk.value)(losses), risk.weights(losses)

    compiled = jax.jit(all_of)
    for outside in ([0, 1, 2], [2, 2, 2], [-1, 0, 1]):  # of the second, no group has any loss
        assert all(jnp.isnan(part).all() for part in compiled(jnp.array(outside)))
    value, gradient, weights = compiled(jnp.array([0, 1, 0]))
    np.testing.assert_allclose(value, (2 * (30 - np.log(2)) + 2) / 3, rtol=1e-6)
    np.testing.assert_allclose(gradient, weights, atol=1e-6)

    def padded(groups: jax.Array) -> jax.Array:
        losses, weights = jnp.array([1.0, 2.0, 30.0]), jnp.array([1.0, 1.0, 0.0])
        return eh.risks.hierarchical(mean, mean, groups, 2).value(losses, weights)

    np.testing.assert_allclose(jax.jit(padded)(jnp.array([0, 1, -1])), 1.5, rtol=1e-6)


def test_clients_with_a_label_beyond_the_classes_are_rejected() -> None:
    """A gradient of 0 would train them on nothing, in silence; a simulation knows of them before it starts."""
    data = eh.data.from_arrays(
        np.ones((4, 2), np.float32), np.array([0, 1, 2, 2]), client=np.array([0, 0, 1, 1]), test_fraction=0.0
    )
    work = eh.local.sgd(eh.models.softmax_regression(features=2, classes=3), 0.1, steps=1)
    method = eh.algorithms.fedtilt(work, classes=2, tilt_class=1.0, prox_mu=np.inf)
    for refused in (method, eh.algorithms.fedtilt(work, classes=2, tilt_class=1.0, tied=True)):
        with pytest.raises(
            eh.EvenhandError, match=r"fedtilt\(.*has classes=2, but .* has 3 classes: give it classes=3"
        ):
            eh.simulate(refused, data, rounds=2)
    eh.simulate(eh.algorithms.fedtilt(work, classes=3, tilt_class=1.0), data, rounds=1)
    # As in a deployment, whose server does not know the labels.
    with pytest.warns(eh.errors.EvenhandWarning, match="rejected 2 uploads"):
        run = eh.simulate(method._replace(classes=None), data, rounds=2)
    assert run.per_round["rejected"].tolist() == [1, 1] and run.per_round["reported"].tolist() == [1, 1]
    assert (run.per_round["update_norm"] > 1e-3).all()
