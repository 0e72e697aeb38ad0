"""Times, counts and bytes as reports show them: three digits or so, with a unit."""

from __future__ import annotations

import re
from collections.abc import Mapping

from superopt.ir.errors import printable

__all__ = [
    "bytes_text",
    "count_text",
    "counted",
    "scientific_text",
    "speedup_text",
    "time_text",
    "times_text",
    "unbroken",
]

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_UNIT = re.compile(
    r"(?<=\d) (?=(?:s|ms|µs|ns|%|×|B|[KMGT]iB|[kMGT]|[kMGT]?(?:FLOPs?|B)(?:/s)?|nodes?|steps?|rules?|times|models?"
    r"|rounds|trials|FLOP per byte)\b|(?:%|×)|→ \d)|(?<=[±×≈→]) (?=\d)"
)


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


def speedup_text(ratio: float, times: str = " ×") -> str:
    """``3.7 ×``: by which factor a ratio of after ÷ before is faster, or slower where it is above 1."""
    factor = 1.0 / ratio if 0.0 < ratio < 1.0 else ratio
    return f"{factor:.{0 if factor >= 10 else 1 if factor >= 2 else 2}f}{times}"


def scientific_text(value: float, digits: int = 2) -> str:
    """``1.6×10⁻⁶``: a small number as people write it."""
    if value == 0.0:
        return "0"
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa}×10{str(int(exponent)).translate(_RAISED)}"


def unbroken(text: str) -> str:
    """A text in which no number stands in another line than its unit: the spaces between them do not break."""
    return _UNIT.sub("\u00a0", text)
