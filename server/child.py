"""The process that does one job and nothing else, with strangers' bytes in its hands.

It runs in its own session and private folder with next to no environment, dies with its worker, limits its own
memory, file sizes and processor time before it loads anything, and talks to the worker through one pipe (progress)
and the files it leaves: ``out/*`` and ``outcome.json``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.ir.errors import InvalidModel, ResourceLimit, SuperoptError

if TYPE_CHECKING:
    from superopt.ir.graph import Graph
    from superopt.pipeline import Result

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_EVERY = 0.25  # seconds between two progress messages
SIDECAR = "weights.safetensors"


def main() -> None:
    """Get ready, wait for the name of a job's folder on standard input, do the job described in its ``job.json``.

    Arguments: the worker's process id, and the limits as JSON.
    """
    parent, limits = int(sys.argv[1]), json.loads(sys.argv[2])
    _die_with(parent)
    _confine(limits)
    voice = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is not progress
    _preload()
    folder = sys.stdin.readline().rstrip("\n")
    if not folder:
        return
    os.chdir(folder)
    Path("taken").touch()
    tempfile.tempdir = os.environ["TMPDIR"] = str(Path(folder, "tmp"))
    outcome = _outcome(json.loads(Path("job.json").read_text()) | limits, voice)
    Path("outcome.json.tmp").write_text(json.dumps(outcome))
    os.replace("outcome.json.tmp", "outcome.json")
    os._exit(0)  # no destructors: everything is written


def _preload() -> None:
    """What takes seconds and is the same for every job: the engine, and the library with its verdicts."""
    import_module("superopt.pipeline")
    import_module("superopt.rules").load_library().admitted  # noqa: B018  (computed once and kept)


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def _confine(limits: dict[str, Any]) -> None:
    seconds = int(limits["seconds"]) * (os.cpu_count() or 1)
    for kind, limit in (
        (resource.RLIMIT_AS, limits["memory"]), (resource.RLIMIT_FSIZE, limits["result"]), (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_NOFILE, 256),
    ):  # fmt: skip
        hard = resource.getrlimit(kind)[1]
        wanted = int(limit) if hard == resource.RLIM_INFINITY else min(int(limit), hard)
        resource.setrlimit(kind, (wanted, wanted))


def _outcome(job: dict[str, Any], voice: Any) -> dict[str, Any]:
    try:
        return {"outputs": _work(job, voice)}
    except SuperoptError as error:
        return {"error": {k: _bounded(str(getattr(error, k))) for k in ("what", "where", "hint")}
                | {"exit_code": error.exit_code}}  # fmt: skip
    except MemoryError:
        return _limit(f"more than {job['memory'] >> 20} MiB of memory were needed")
    except KeyboardInterrupt:
        return _limit(f"no result within {job['seconds']:.0f} seconds")
    except OSError as error:
        return _limit(f"a file could not be written: {error.strerror}")
    except Exception as error:
        import traceback

        traceback.print_exc()  # to the worker's log
        return {"error": {"what": f"{type(error).__name__} in the engine", "exit_code": 1}}


def _bounded(text: str) -> str:
    return text if len(text) <= 2000 else f"{text[:2000]}…"


def _limit(what: str) -> dict[str, Any]:
    return {"error": {"what": what, "exit_code": ResourceLimit.exit_code}}


def _work(job: dict[str, Any], voice: Any) -> dict[str, Any]:
    from superopt import pipeline

    last = 0.0

    def progress(done: int, total: int | None, what: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            with contextlib.suppress(BrokenPipeError):
                voice.write(json.dumps({"done": done, "total": total, "what": _bounded(what)}) + "\n")

    progress(0, None, "loading")
    graph = _load()
    result = pipeline.optimize(graph, options=pipeline.Options(**_options(job)), progress=progress)
    return _write(result, int(job["result"]))


def _load() -> Graph:
    from superopt.formats import load

    alone = not Path("in", SIDECAR).exists()
    os.chdir("in")
    try:
        return load("model", external=not alone)  # ``in`` holds nothing but what the client sent
    except SuperoptError as error:
        raise type(error)(
            error.what, where=error.where.removeprefix("model").removeprefix(", "), hint=error.hint
        ) from None
    finally:
        os.chdir("..")


def _options(job: dict[str, Any]) -> dict[str, Any]:
    options = dict(job["options"])
    for name in ("enable", "disable"):
        options[name] = tuple(options.get(name, ()))
    return {**options, "memory_limit": int(job["memory"]) // 2}


def _write(result: Result, most: int) -> dict[str, Any]:
    """Every representation of the result that fits; at least one does, or it is a ``ResourceLimit``."""
    from superopt.formats.tensors import RandomData

    out = Path("out")
    weights = result.graph.weights
    whole = sum(w.type.nbytes or 0 for w in weights)
    stored = sum(w.type.nbytes or 0 for w in weights if not isinstance(w.data, RandomData | None))
    without: dict[str, str] = {}
    for name, size, write in (("json", stored * 4 // 3, _write_json), ("onnx", whole, _write_onnx)):
        if size > 0.95 * min(most, 2**31):
            without[name] = f"the weights are {size >> 20} MiB in this form; the limit is {most >> 20} MiB"
            continue
        try:
            write(result.graph, out / f"graph.{name}")
        except (InvalidModel, SuperoptError) as error:
            without[name] = str(error)
    if len(without) == 2:
        raise ResourceLimit(f"the result is too large to send: {without['json']}")
    (out / "report.json").write_text(json.dumps(result.report.json(), allow_nan=False))
    return {"status": result.report.status, "without": without, "name": result.graph.name[:200]}


def _write_json(graph: Graph, path: Path) -> None:
    from superopt.formats import to_json
    from superopt.formats.json_writer import format_document

    path.write_text(format_document(to_json(graph)), encoding="utf-8")


def _write_onnx(graph: Graph, path: Path) -> None:
    from superopt.formats import save

    save(graph, path, external_above=2**31)


if __name__ == "__main__":
    main()
