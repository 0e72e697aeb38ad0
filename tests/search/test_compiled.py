"""What ships prepared is what a first run asks for, and it says the same."""

from __future__ import annotations

import pytest

from superopt.cost import load_profile, profile, profile_names
from superopt.ir import kept
from superopt.rules import load_library
from superopt.search import moves
from superopt.search.compiled import compile_library


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What the checkout made, or, where the code has changed since, what it would make now."""
    folder = tmp_path_factory.mktemp("compiled")
    moves._alive.clear()
    if not compile_library(folder / "missing"):  # what ships is not written again
        return kept.SHIPPED
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "SHIPPED", folder / "nothing")
        moves._alive.clear()
        profile._parsed.cache_clear()
        compile_library(folder / "made")
    return folder / "made"


def test_a_first_run_makes_nothing(compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path))
    monkeypatch.setattr(kept, "SHIPPED", compiled)
    moves._alive.clear()
    library = load_library()
    rules, floats = library.admitted, library.floats("standard")
    assert len(rules) > moves._WORTH
    prepared = moves._of_all(tuple(rules), float("inf"), floats)
    lifted = moves._lifted(prepared, 3, float("inf"), floats)
    assert prepared.sides
    assert lifted
    profile._parsed.cache_clear()
    assert all(load_profile(name).records for name in profile_names())
    assert not list(tmp_path.rglob("*"))  # nothing was made, so nothing was kept


def test_what_is_damaged_is_made_again(compiled, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "SHIPPED", tmp_path / "shipped")
    source = next((compiled / "moves").iterdir())
    path = tmp_path / "shipped" / "moves" / source.name
    path.parent.mkdir(parents=True)
    name = source.name.removesuffix(".zlib")
    path.write_bytes(source.read_bytes())
    assert kept.kept("moves", name, moves._CLASSES) is not None
    assert kept.kept("moves", name, ()) is None  # of other classes
    path.write_bytes(source.read_bytes()[:-40])
    assert kept.kept("moves", name, moves._CLASSES) is None
