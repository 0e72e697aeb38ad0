"""Build the wheel and check what a user would get: one top-level name, every package, the data files."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare"  # as a user's: what this environment has must not hide what the build lacks
        venv.create(bare, with_pip=True)
        command = [str(bare / "bin" / "python"), "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder]
        subprocess.run([*command, str(ROOT)], check=True)
        wheel = next(Path(folder).glob("superopt-*.whl"))
        names = zipfile.ZipFile(wheel).namelist()
    tops = {n.split("/")[0] for n in names if ".dist-info" not in n}
    sources = {
        str(p.relative_to(ROOT)) for p in tracked() if p.parts and str(p).endswith((".py", ".toml", ".gz", ".json"))
    }
    expected = {s for s in map(installed_name, sources) if s}
    if os.environ.get("SUPEROPT_WITHOUT_PAGES", "") in ("", "0"):
        expected.add("superopt/server/static/app/app.js")
    missing = sorted(expected - set(names))
    missing += [
        f"superopt/compiled/{f}/" for f in ("library", "moves") if not any(f"/compiled/{f}/" in n for n in names)
    ]
    if tops != {"superopt"}:
        print(f"the wheel has the top-level names {sorted(tops)}, not only superopt", file=sys.stderr)
        return 1
    if missing:
        print("not in the wheel: " + ", ".join(missing), file=sys.stderr)
        return 1
    print(f"wheel: {len(names)} files, only superopt/ at the top")
    return 0


def tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in listing.splitlines()]


def installed_name(source: str) -> str:
    """Where a source file lies in the wheel; empty for what does not ship."""
    if source.startswith("superopt/"):
        return source
    if source.startswith("server/web/"):
        return ""  # what the pages are built from
    return f"superopt/{source}" if source.split("/")[0] in ("rules", "verifier", "server") else ""


if __name__ == "__main__":
    sys.exit(main())
