"""The rewrites that a library is asked to know (``docs/tour.toml``): none of them is given to discovery."""

from __future__ import annotations

from pathlib import Path

from superopt.rules import Rule
from superopt.rules.library import parse_file

__all__ = ["tour"]

FILE = Path(__file__).parent.parent.parent / "docs" / "tour.toml"


def tour() -> list[Rule]:
    """The rewrites, with their names as ids."""
    return list(parse_file(FILE))
