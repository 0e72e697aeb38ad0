"""What ships prepared is what a first run asks for, and it says the same."""

from __future__ import annotations

import pytest

from superopt.cost import device_profile, load_profile, profile_names
from superopt.egraph import rule_compiler
from superopt.ir import disk_cache
from superopt.passes.precompile import compile_library
from superopt.rules import load_library


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What the checkout made, or, where the code has changed since, what it would make now."""
    folder = tmp_path_factory.mktemp("compiled")
    rule_compiler._alive.clear()
    if not compile_library(folder / "missing"):  # what ships is not written again
        return disk_cache.SHIPPED
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_cache, "SHIPPED", folder / "nothing")
        rule_compiler._alive.clear()
        device_profile._parsed.cache_clear()
        compile_library(folder / "made")
    return folder / "made"


def test_a_first_run_makes_nothing(compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path))
    monkeypatch.setattr(disk_cache, "SHIPPED", compiled)
    rule_compiler._alive.clear()
    library = load_library()
    rules, floats = library.admitted, library.floats("standard")
    assert len(rules) > rule_compiler._WORTH
    prepared = rule_compiler._of_all(tuple(rules), float("inf"), floats)
    lifted = rule_compiler._lifted(prepared, 3, float("inf"), floats)
    assert prepared.sides
    assert lifted
    device_profile._parsed.cache_clear()
    assert all(load_profile(name).records for name in profile_names())
    assert not list(tmp_path.rglob("*"))  # nothing was made, so nothing was kept


def test_what_is_damaged_is_made_again(compiled, tmp_path, monkeypatch):
    monkeypatch.setattr(disk_cache, "SHIPPED", tmp_path / "shipped")
    source = next((compiled / "moves").iterdir())
    path = tmp_path / "shipped" / "moves" / source.name
    path.parent.mkdir(parents=True)
    name = source.name.removesuffix(".zlib")
    path.write_bytes(source.read_bytes())
    assert disk_cache.load_object("moves", name, rule_compiler._CLASSES) is not None
    assert disk_cache.load_object("moves", name, ()) is None  # of other classes
    path.write_bytes(source.read_bytes()[:-40])
    assert disk_cache.load_object("moves", name, rule_compiler._CLASSES) is None
