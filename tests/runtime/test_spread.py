"""The standard error of a median is what medians of normal draws do scatter by."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.runtime.spread import IQR_OF_NORMAL, median_error


@pytest.mark.parametrize("count", [15, 101])
def test_medians_of_normal_draws_scatter_by_their_standard_error(count: int) -> None:
    draws = 3.0 * np.random.default_rng(0).standard_normal((20_000, count))
    low, high = np.quantile(draws, [0.25, 0.75])
    assert high - low == pytest.approx(3.0 * IQR_OF_NORMAL, rel=0.01)
    assert np.median(draws, axis=1).std() == pytest.approx((high - low) * median_error(count), rel=0.04)


def test_a_single_draw_and_none_are_as_doubtful() -> None:
    assert median_error(0) == median_error(1) > median_error(2)
