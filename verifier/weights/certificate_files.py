"""Certificates of rewrites that depend on the elements of weights, as a folder that is checked without the finder.

``certificate.json`` lists the rewrites in order: the claims about the model so far, and the file of the graph that the
rewrite produces. The graphs share one file of weights, which stores equal weights once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from superopt.formats import load
from superopt.formats.json_writer import save_together
from superopt.formats.safe_file_access import read_plain, replace_file
from superopt.ir.errors import InvalidModel, NotEquivalent, SuperoptError, UsageError, printable
from superopt.ir.graph import Graph
from superopt.rules.weight_claims import WeightRewriteCertificate
from superopt.verifier.weights.claim_checker import ClaimCheckCounts, check_values

__all__ = ["MANIFEST", "check_folder", "write_folder"]

MANIFEST = "certificate.json"
_FORMAT, _VERSION = "superopt.values", 1
_LARGEST = 1 << 30  # bytes of a manifest that is read


def write_folder(folder: Path, stages: Sequence[tuple[Graph, WeightRewriteCertificate]]) -> None:
    """Write rewrites, each of what the one before made, so that they can be checked against the model they start from.

    Args:
        folder: is made, or has nothing of the names that are written.
        stages: what each rewrite makes, and what it claims.

    Raises:
        UsageError: a file exists already, or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}") from error
    names = [f"after-{number}.json" for number, _ in enumerate(stages, 1)]
    rows = [{"after": name, "claims": c.as_json()} for name, (_, c) in zip(names, stages, strict=True)]
    save_together(
        {folder / name: graph for name, (graph, _) in zip(names, stages, strict=True)}, folder / "weights.safetensors"
    )
    text = json.dumps({"format": _FORMAT, "version": _VERSION, "rewrites": rows}, indent=1) + "\n"
    replace_file(folder / MANIFEST, text.encode())


def _manifest(folder: Path) -> bytes:
    try:
        return read_plain(folder / MANIFEST, _LARGEST)
    except SuperoptError as error:
        raise error.within(printable(str(folder / MANIFEST))) from error


def check_folder(model: Graph, folder: Path, *, seed: int = 0) -> tuple[Graph, tuple[ClaimCheckCounts, ...]]:
    """Check what :func:`write_folder` wrote against a model, rewrite by rewrite.

    Returns:
        The graph that the last rewrite makes, and what was checked of each.

    Raises:
        UsageError: there is no such folder. InvalidModel: it cannot be read.
        NotEquivalent: a claim or a rewritten place does not hold; the message says which, and of which rewrite.
    """
    where = printable(str(folder))
    if not folder.is_dir():
        raise UsageError("is no folder", where=where, hint="name what superopt optimize --certificates DIR wrote")
    if not (folder / MANIFEST).exists():
        hint = "superopt optimize --certificates DIR writes them; where nothing rests on weights there are none"
        raise UsageError(f"holds no certificates: there is no {MANIFEST}", where=where, hint=hint)
    try:
        data = json.loads(_manifest(folder))
        rows = [(str(r["after"]), WeightRewriteCertificate.from_json(r["claims"])) for r in data["rewrites"]]
        known = (data["format"], data["version"]) == (_FORMAT, _VERSION)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidModel(f"{folder / MANIFEST} is not a certificate of values: {error!r}") from error
    if not known or not rows:
        raise InvalidModel(f"{folder / MANIFEST} is not a certificate of values of version {_VERSION}")
    held = []
    for number, (name, certificate) in enumerate(rows, 1):
        if Path(name).name != name:
            raise InvalidModel(f"{folder / MANIFEST} names {name!r}, which is not a file beside it")
        after = load(folder / name)
        try:
            held.append(check_values(model, after, certificate, seed=seed))
        except NotEquivalent as error:
            raise NotEquivalent(f"rewrite {number}: {error}") from error
        model = after
    return model, tuple(held)
