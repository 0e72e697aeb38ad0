"""What two processes must have in common for their results to be the same: code, rules, libraries, and files."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from superopt.ir.disk_cache import OPTIMIZER_PACKAGES, code_digest
from superopt.ir.errors import BackendUnavailable, UsageError

__all__ = ["check", "content_digest", "digest", "here", "libraries", "of_files"]

_PACKAGES = (*OPTIMIZER_PACKAGES, "discovery", "fleet", "frontend")
_LIBRARIES = ("numpy", "onnx", "onnxruntime", "z3-solver", "highspy")


def digest(*parts: object) -> str:
    """SHA-256 of JSON data; of what is none, its text."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


@cache
def libraries() -> Mapping[str, str]:
    """Versions of what results depend on beside superopt, by name."""
    return {name: _version(name) for name in _LIBRARIES}


@cache
def here() -> Mapping[str, str]:
    """What this process has, by name."""
    found = {
        "superopt": _version("superopt"), "superopt's code": code_digest(*_PACKAGES)[:12],
        "the rules": code_digest("rules", data=("*.toml", "*.json"))[:12],
        "Python": ".".join(map(str, sys.version_info[:2])), "machine": platform.machine(),
    }  # fmt: skip
    return {**found, **libraries()}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def check(wanted: Mapping[str, str], files: Mapping[str, str]) -> None:
    """Refuse to work for a client that has something else.

    Args:
        wanted: the client's :func:`here`.
        files: the digest of each file or folder that a task reads.

    Raises:
        BackendUnavailable: this process has other code, rules or libraries.
        UsageError: a file is not there, or is another.
    """
    where = f"worker on {platform.node()}"
    own = here()
    other = [f"{n} {own.get(n, 'not known')} instead of {v}" for n, v in wanted.items() if own.get(n) != v]
    if other:
        raise BackendUnavailable(
            f"is not like the client: {', '.join(other)}", where=where,
            hint="install the same version of superopt and of these libraries there",
        )  # fmt: skip
    for path, content in files.items():
        found = content_digest(Path(path))
        if found != content:
            what = "is not there" if not found else "has other content than the client's"
            raise UsageError(
                f"{path} {what}",
                where=where,
                hint="clients and workers read files under the same path: share the folder",
            )


def of_files(paths: Iterable[Path]) -> dict[str, str]:
    """The digest of each file, and of each folder's files, by absolute path."""
    return {str(path): content_digest(path) for path in {p.absolute() for p in paths}}


def content_digest(path: Path) -> str:
    """SHA-256 of a file, or of a folder's own files; empty where there is none."""
    if path.is_dir():
        return digest(*((p.name, content_digest(p)) for p in sorted(path.iterdir()) if p.is_file()))
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
