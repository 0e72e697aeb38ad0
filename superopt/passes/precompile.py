"""Compile the rule library and the profiles beforehand: ``python -m superopt.passes.precompile``.

To parse, type and compile the library takes ten seconds, to read a profile a quarter of a second. Both follow from
superopt's own files, so a wheel contains the result, and ``make`` computes it for a checkout. After a change of the
code, a run compiles again and keeps the result in its cache.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

__all__ = ["compile_library"]

_PARTS = (3, 4, 5, 6, 8)  # of a Concat: branches of cells, gates of an LSTM, heads; others are made when they occur
_FOLDERS = ("library", "moves", "profiles")


def compile_library(destination: Path) -> list[Path]:
    """Write what a first run of each kind keeps; what an earlier call wrote goes.

    Args:
        destination: the folder; :data:`superopt.ir.disk_cache.SHIPPED` is where it is looked for.
    """
    shutil.rmtree(destination, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="superopt-") as folder:
        before = os.environ.get("SUPEROPT_CACHE")
        os.environ["SUPEROPT_CACHE"] = folder
        try:
            _first_runs()
        finally:
            os.environ.pop("SUPEROPT_CACHE")
            if before is not None:
                os.environ["SUPEROPT_CACHE"] = before
        written: list[Path] = []
        for source in sorted(p for name in _FOLDERS for p in (Path(folder) / name).glob("*")):
            path = destination / source.parent.name / f"{source.name}.zlib"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_compressed(source.read_bytes()))
            written.append(path)
    return written


def _compressed(content: bytes) -> bytes:
    """As zlib has it; stored as it is where nine tenths would be left, as of parts that are compressed one by one: each
    run would take 30 ms to decompress them twice."""
    small = zlib.compress(content, 9)
    return small if 10 * len(small) < 9 * len(content) else zlib.compress(content, 0)


def _first_runs() -> None:
    """Read the profiles and the rules of a greedy search, and search models with so many parts."""
    # here, so that the caller's cache folder is set before
    from superopt.cost import DeviceProfile, ProfileCostModel, load_profile, profile_names
    from superopt.egraph.rule_compiler import store_compiled_rules
    from superopt.ir.graph import Graph, Node, Value
    from superopt.ir.types import DType, TensorType
    from superopt.ops import REGISTRY
    from superopt.passes import SearchOptions, search
    from superopt.rules import load_library
    from superopt.rules.peepholes import peephole_library

    for name in profile_names():
        load_profile(name)
    library = load_library()
    store_compiled_rules(peephole_library(REGISTRY), "standard", _PARTS)
    options = SearchOptions(floats=library.floats("standard"))
    for parts in _PARTS:
        row, whole = TensorType(DType.FLOAT32, (1, 2)), TensorType(DType.FLOAT32, (1, 2 * parts))
        names = tuple(f"x{i}" for i in range(parts))
        node = Node("joined", "Concat", names, ("y",), {"axis": 1})
        model = Graph("parts", tuple(Value(n, row) for n in names), (Value("y", whole),), (), (node,), {"": 21})
        search(model, library.admitted, ProfileCostModel(DeviceProfile({})), options)


if __name__ == "__main__":
    from superopt.ir.disk_cache import SHIPPED

    made = compile_library(SHIPPED)
    print(f"{SHIPPED}: {len(made)} files, {sum(p.stat().st_size for p in made) >> 10} KiB", file=sys.stderr)
