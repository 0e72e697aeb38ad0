"""Digests of superopt's own code, by which kept results are named."""

from pathlib import Path

import pytest

import superopt
from superopt.ir.disk_cache import OPTIMIZER_PACKAGES, SEARCH_PACKAGES, code_digest


def test_the_search_is_digested() -> None:
    """The packages exist, and each of them counts."""
    assert len({code_digest(p) for p in SEARCH_PACKAGES}) == len(SEARCH_PACKAGES)


def test_a_package_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no package 'search'"):
        code_digest("search", "rules")


def test_every_package_is_said_to_decide_a_result_or_not_to() -> None:
    """A new package that no cache knows of would let kept results outlive a change of it."""
    root = Path(superopt.__file__).parent
    packages = {p.parent.name for p in root.glob("*/__init__.py")}
    others = {"benchmark", "cli", "discovery", "fleet", "frontend", "gate", "placement", "server"}
    assert packages == {*OPTIMIZER_PACKAGES, *others}
