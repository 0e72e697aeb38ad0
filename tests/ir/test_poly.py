"""Sizes in normal form."""

from __future__ import annotations

from itertools import product

from superopt.ir.size_polynomial import sym, value_at

H, Q, R, T = map(sym, "hqrt")


def test_a_window_of_windows_has_one_quotient() -> None:
    nested = ((H // Q) - R) // T
    assert nested == (H - Q * R) // (Q * T)
    assert (H // 2 + 1) // 2 == (H + 2) // 4
    assert (4 * (H // 2)) // 3 == H // 2 + H // 6
    for h, q, r, t in product(range(1, 9), range(1, 4), range(1, 4), range(1, 4)):
        assert value_at(nested, {"h": h, "q": q, "r": r, "t": t}) == (h // q - r) // t


def test_what_is_not_one_quotient_stays() -> None:
    twice = (2 * (H // Q)) // T
    both = (H // Q + R // Q) // T
    for h, q, r, t in product(range(1, 9), range(1, 4), range(1, 4), range(1, 4)):
        at = {"h": h, "q": q, "r": r, "t": t}
        assert value_at(twice, at) == 2 * (h // q) // t
        assert value_at(both, at) == (h // q + r // q) // t
