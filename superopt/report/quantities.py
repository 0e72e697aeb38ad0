"""Times, counts and bytes as reports show them: three digits or so, with a unit."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.ir.errors import printable

__all__ = ["bytes_text", "count_text", "counted", "time_text", "times_text"]


def time_text(microseconds: float) -> str:
    """``12.3 ms``, ``850 µs`` …"""
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.2f} s"
    return f"{microseconds / 1e3:.2f} ms" if microseconds >= 1e3 else f"{microseconds:.1f} µs"


def times_text(before: float, after: float) -> str:
    """``5.8 → 4.9 µs``: two times in microseconds, in the unit of the first."""
    scale, unit = (1e6, "s") if before >= 1e6 else (1e3, "ms") if before >= 1e3 else (1.0, "µs")
    digits = 1 if unit == "µs" else 2
    return f"{before / scale:.{digits}f} → {after / scale:.{digits}f} {unit}"


def count_text(value: float | None, unit: str = "") -> str:
    """``4.1 G`` …; a dash for what is not known."""
    if value is None:
        return "–"
    for scale, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.2f} {letter}{unit}"
    return f"{value:g} {unit}".rstrip()


def bytes_text(value: float | None) -> str:
    """``97.5 MiB`` …; a dash for what is not known."""
    if value is None:
        return "–"
    for scale, letter in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(value) >= scale:
            return f"{value / scale:.1f} {letter}"
    return f"{value:g} B"


def counted(operators: Mapping[str, int]) -> str:
    """Operators with how many of each, the first ones."""
    named = [f"{printable(op)} x{n}" if n > 1 else printable(op) for op, n in list(operators.items())[:4]]
    return ", ".join(named) + (" …" if len(operators) > 4 else "")
