"""Digests of superopt's own code, by which kept results are named."""

import pytest

from superopt.ir.disk_cache import SEARCH_PACKAGES, code_digest


def test_the_search_is_digested() -> None:
    """The packages exist, and each of them counts."""
    assert len({code_digest(p) for p in SEARCH_PACKAGES}) == len(SEARCH_PACKAGES)


def test_a_package_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no package 'search'"):
        code_digest("search", "rules")
