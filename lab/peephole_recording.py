"""Record which rules the results of whole searches rest on: ``python -m lab.peephole_recording [GOLDEN…] [--out
FILE]``.

The recorded results of ``python -m lab.golden`` (the corpus, tiny and full-size, and 20 networks) say which rules were
applied in each. ``--effort quick`` applies all of them (:mod:`superopt.rules.peepholes`). With
``--check`` nothing is written, and the exit code is 1 where the shipped list differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from superopt.formats.safe_file_access import replace_file
from superopt.rules import load_library
from superopt.rules.peepholes import FORMAT, PEEPHOLES, VERSION

__all__ = ["main", "recorded"]

_GOLDEN = Path(__file__).resolve().parents[1] / "corpus" / "golden"


def recorded(files: Sequence[Path]) -> dict[str, Any]:
    """The list as JSON data: each rule of the library that a recorded result rests on, and in how many results.

    Args:
        files: written by ``python -m lab.golden``.
    """
    library, count = load_library(), Counter[str]()
    for file in files:
        rows: Mapping[str, Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
        count.update(rule for row in rows.values() for rule in row["rules"] or () if rule in library)
    return {
        "format": FORMAT, "version": VERSION, "sources": [f.name for f in files], "rules": dict(sorted(count.items())),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the list, or compare it."""
    parser = argparse.ArgumentParser(prog="python -m lab.peephole_recording", description=__doc__)
    parser.add_argument("golden", nargs="*", type=Path, default=sorted(_GOLDEN.glob("*.json")))
    parser.add_argument("--out", type=Path, default=PEEPHOLES)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where FILE differs")
    chosen = parser.parse_args(arguments)
    text = json.dumps(recorded(chosen.golden), indent=1) + "\n"
    same = chosen.out.exists() and chosen.out.read_text(encoding="utf-8") == text
    if not same and not chosen.check:
        replace_file(chosen.out, text.encode(), force=True)
    return int(chosen.check and not same)


if __name__ == "__main__":
    sys.exit(main())
