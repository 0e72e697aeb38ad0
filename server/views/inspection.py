"""A model that was sent, looked at before it is optimized: its facts and its drawing, from a process of its own.

The model comes from a stranger, so it is read as a job reads it: in a private folder, with limits on memory, time and
files, and next to no environment. ``python -c`` starts :func:`main`; the facts go to standard output.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import superopt
from superopt.ir.errors import ResourceLimit, SuperoptError
from superopt.server.http.body import ReceivedModel, sidecars
from superopt.server.http.problems import HttpProblem, from_outcome
from superopt.server.jobs.blobs import Blobs
from superopt.server.settings import ServiceLimits

__all__ = ["ModelInspector", "main"]

log = logging.getLogger("superopt.serve")
_ROOT = str(Path(superopt.__file__).parents[1])
_START = "import sys; sys.path.append({root!r}); from superopt.server.views.inspection import main; main()"
_SECONDS = 60.0  # of the clock: ten times what the largest model of the corpus takes
_TURN = 20.0  # seconds that a request waits for another's
_MEMORY = 4 << 30  # bytes of address space; weights stay where they are


class ModelInspector:
    """Looks at models, one at a time.

    Args:
        blobs: the store that models are received into.
        limits: of the service.
    """

    def __init__(self, blobs: Blobs, limits: ServiceLimits) -> None:
        self._blobs = blobs
        self._limits = limits
        self._turn = threading.Lock()

    def inspected(self, upload: ReceivedModel) -> dict[str, Any]:
        """A model's facts and drawing, as JSON data (``superopt.inspection`` with a ``comparison`` with itself).

        Raises:
            HttpProblem: the model's own where it is not valid or too large; 503 while another one is looked at.
        """
        if not self._turn.acquire(timeout=_TURN):
            raise HttpProblem(503, "unavailable", "another model is being looked at", retry_after=5)
        try:
            with tempfile.TemporaryDirectory(prefix="inspect-", dir=self._blobs.work) as folder:
                for part in ("in", "tmp"):
                    (Path(folder) / part).mkdir(mode=0o700)
                self._blobs.copy(upload.model, Path(folder) / "in" / "model")
                for name, digest in sidecars(upload.weights).items():
                    self._blobs.copy(digest, Path(folder) / "in" / name)
                found = self._run(folder)
        finally:
            self._turn.release()
        if "error" in found:
            raise from_outcome(found["error"])
        return found

    def _run(self, folder: str) -> dict[str, Any]:
        given = {"memory": min(_MEMORY, self._limits.job_memory), "result": self._limits.result, "seconds": _SECONDS}
        environment = {"PATH": os.defpath, "HOME": f"{folder}/tmp", "TMPDIR": f"{folder}/tmp", "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", _START.format(root=_ROOT)], input=json.dumps(given).encode(),
                capture_output=True, timeout=_SECONDS, check=False, cwd=folder, env=environment,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return _limit(f"it could not be read within {_SECONDS:.0f} seconds")
        if done.returncode != 0 or not done.stdout:
            log.warning("a model was not read (%d): %s", done.returncode, done.stderr[-2000:].decode(errors="replace"))
            return _limit("it could not be read within the memory and time for it")
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def _limit(what: str) -> dict[str, Any]:
    return {"error": {"what": what, "exit_code": ResourceLimit.exit_code}}


def main() -> None:
    """Look at the model in ``in/``; the limits come as JSON on standard input."""
    from superopt.server.jobs.child import confine

    confine(json.loads(sys.stdin.read()))
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # what a library prints is no part of the answer
        try:
            found = _inspected()
        except SuperoptError as error:
            found = {"error": {"what": error.what, "where": error.where, "hint": error.hint,
                               "exit_code": error.exit_code}}  # fmt: skip
        except MemoryError:
            found = _limit("it needs more memory than there is for looking at a model")
        print(json.dumps(found, allow_nan=False), file=answer, flush=True)


def _inspected() -> dict[str, Any]:
    from superopt.report.inspection import facts_of
    from superopt.server.jobs.child import load_received
    from superopt.server.views.union_graph import union

    graph = load_received()
    facts = facts_of(graph)
    del facts["work"]["nodes"]  # the drawing has the nodes
    return {**facts, "comparison": union(graph, graph)}
