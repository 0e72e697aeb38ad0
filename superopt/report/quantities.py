"""Times, counts and bytes as reports show them: three digits or so, with a unit."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.ir.errors import printable

__all__ = ["bytes_text", "count_text", "counted", "time_text"]


def time_text(microseconds: float) -> str:
    """``12.3 ms``, ``850 µs`` …"""
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.2f} s"
    return f"{microseconds / 1e3:.2f} ms" if microseconds >= 1e3 else f"{microseconds:.1f} µs"


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
