"""The standard error of a median is what medians of normal draws do scatter by."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.runtime.paired_benchmark import IQR_OF_NORMAL, beyond_quartiles, median_beyond, median_error


@pytest.mark.parametrize("count", [15, 101])
def test_medians_of_normal_draws_scatter_by_their_standard_error(count: int) -> None:
    draws = 3.0 * np.random.default_rng(0).standard_normal((20_000, count))
    low, high = np.quantile(draws, [0.25, 0.75])
    assert high - low == pytest.approx(3.0 * IQR_OF_NORMAL, rel=0.01)
    assert np.median(draws, axis=1).std() == pytest.approx((high - low) * median_error(count), rel=0.04)


def test_a_single_draw_and_none_are_as_doubtful() -> None:
    assert median_error(0) == median_error(1) > median_error(2)


@pytest.mark.parametrize("count", [15, 31])
def test_either_bound_on_a_median_is_passed_as_seldom_as_is_said(count: int) -> None:
    """Also where 15 % of the draws scatter eight times as far: there the quartiles' bound is by far the closer."""
    source = np.random.default_rng(1)
    draws = source.standard_normal((200_000, count))
    for factors in (1.0, np.where(source.random(draws.shape) < 0.15, 8.0, 1.0)):
        low, middle, high = np.quantile(draws * factors, [0.25, 0.5, 0.75], axis=1)
        deviation = (draws * factors).std(axis=1, ddof=1)
        bound = np.minimum(beyond_quartiles(count, 1e-3) * (high - low), median_beyond(count, 1e-3) * deviation)
        assert (middle > bound).mean() <= 1e-3


def test_quartiles_of_few_draws_say_nothing() -> None:
    assert beyond_quartiles(7, 1e-3) == float("inf")
