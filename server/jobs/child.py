"""The processes that do the jobs, with strangers' bytes in their hands.

A *nursery* loads the engine once and forks a *child* for each job; the nursery itself never sees a job. A child runs
in its own session and in a private folder with next to no environment, dies with its nursery as that dies with its
worker, and limits its own memory, file sizes and processor time before it opens anything. It speaks through files:
``progress``, ``out/*`` and ``outcome.json``. :class:`EngineProcess` is the nursery as its worker sees it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import superopt
from superopt.fleet.child import ends_with
from superopt.ir.errors import InvalidModel, ResourceLimit, SuperoptError, out_of_memory
from superopt.server.http.system_errors import DISK_FULL, OUT_OF_MEMORY, meaning
from superopt.server.settings import ServiceSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superopt.ir.graph import Graph
    from superopt.pipeline import Options, Result

__all__ = ["EngineProcess", "confine", "load_received", "main", "process_memory"]


_EVERY = 0.02  # seconds between two progress messages; more would only be overwritten
# What takes long to load. Not ONNX Runtime: it starts a thread, and only one thread survives a fork.
_PRELOAD = ("superopt.formats", "superopt.rules", "superopt.report", "superopt.verifier.admission", "highspy")
SIDECAR = "weights.safetensors"
FRAME = "frame-"  # and the number of a step: the model after it
NO_ROOM = os.EX_TEMPFAIL  # exit code where the disk does not even take the outcome
_FRAMES = 1 << 30  # bytes of all their weights, of equal ones once
FILES = {  # what a job leaves, by the name that the job table keeps it under
    "json": "graph.json", "onnx": "graph.onnx", "data": "graph.onnx.data", "parts": "weights.json", "weights": SIDECAR,
    "report": "report.json", "comparison": "comparison.json", "shared": "frames.safetensors",
}  # fmt: skip


_ROOT = str(Path(superopt.__file__).parents[1])
_CHILD_START = "import sys; sys.path.append({root!r}); from superopt.server.jobs.child import main; main()"


def main() -> None:
    """The nursery says when it is ready; for each folder named on standard input, the child's pid and how it ended.

    Arguments: the worker's process id, and the limits as JSON.
    """
    parent, limits = int(sys.argv[1]), json.loads(sys.argv[2])
    _die_with(parent)
    for name in _PRELOAD:
        import_module(name)
    import_module("superopt.rules").load_library().admitted  # noqa: B018  (computed once and kept)
    nursery = os.getpid()
    print("ready", nursery, flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _child(Path(line.rstrip("\n")), nursery, limits)
        print("pid", child, flush=True)
        _, status = os.waitpid(child, 0)
        print("exit", os.waitstatus_to_exitcode(status), flush=True)


def _child(folder: Path, nursery: int, limits: dict[str, Any]) -> NoReturn:
    """Do the job described in the folder's ``job.json``; never returns."""
    try:
        os.setsid()
        _die_with(nursery)
        os.chdir(folder)
        confine(limits)
        nothing = os.open(os.devnull, os.O_RDONLY)
        words = os.open("stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for target, source in ((0, nothing), (1, words), (2, words)):  # what a library prints is for the log
            os.dup2(source, target)
        tempfile.tempdir = os.environ["TMPDIR"] = os.environ["HOME"] = str(folder / "tmp")
        outcome = _outcome(json.loads(Path("job.json").read_text()) | limits)
        Path("outcome.json.tmp").write_text(json.dumps(outcome))
        os.replace("outcome.json.tmp", "outcome.json")
    except OSError as error:
        found = meaning(error)
        os._exit(NO_ROOM if found is not None and found.kind == DISK_FULL else 1)
    finally:
        os._exit(0)  # no destructors, no way back into the nursery's loop


def _die_with(parent: int) -> None:
    if not ends_with(parent):  # it died before
        os._exit(1)


def confine(limits: dict[str, Any]) -> None:
    """Limit this process's memory, file sizes and processor time."""
    seconds = int(limits["seconds"]) * (os.cpu_count() or 1)
    for kind, limit in (
        (resource.RLIMIT_AS, limits["memory"]), (resource.RLIMIT_FSIZE, limits["result"]), (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_NOFILE, 256),
    ):  # fmt: skip
        hard = resource.getrlimit(kind)[1]
        wanted = int(limit) if hard == resource.RLIM_INFINITY else min(int(limit), hard)
        resource.setrlimit(kind, (wanted, wanted))


def _outcome(job: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"outputs": _work(job)}
    except (SuperoptError, OSError, MemoryError) as error:
        found = meaning(error)
        if isinstance(error, MemoryError) or (found is not None and found.kind == OUT_OF_MEMORY):
            traceback.print_exc()  # to the worker's log
            return _too_little_memory(job)
        if found is None:
            return _failure(error)
        traceback.print_exc()  # to the worker's log
        return {"error": {"type": found.kind, "status": 503, "detail": found.text}}
    except KeyboardInterrupt:
        return _limit(f"no result within {job['seconds']:.0f} seconds")
    except Exception as error:
        traceback.print_exc()
        if out_of_memory(error):
            return _too_little_memory(job)
        return {"error": {"what": f"{type(error).__name__} in the engine", "exit_code": 1}}


def _failure(error: SuperoptError | OSError) -> dict[str, Any]:
    """The outcome of an error that says nothing of the machine."""
    if isinstance(error, SuperoptError):
        return {"error": {k: _bounded(str(getattr(error, k))) for k in ("what", "where", "hint")}
                | {"exit_code": error.exit_code}}  # fmt: skip
    return _limit(f"a file could not be read or written: {error.strerror or error}")


def _bounded(text: str) -> str:
    return text if len(text) <= 2000 else f"{text[:2000]}…"


def _too_little_memory(job: Mapping[str, Any]) -> dict[str, Any]:
    return _limit(f"more than {process_memory(job) >> 20} MiB of memory were needed") | {"out_of_memory": True}


def process_memory(job: Mapping[str, Any]) -> int:
    """Bytes that this process may take: what the job was given, or what the service's own limits leave of that."""
    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return min([int(job["memory"]), *(limit for limit in limits if limit != resource.RLIM_INFINITY)])


def _limit(what: str) -> dict[str, Any]:
    return {"error": {"what": what, "exit_code": ResourceLimit.exit_code}}


def _work(job: dict[str, Any]) -> dict[str, Any]:
    last = 0.0

    def progress(done: int, total: int | None, what: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            Path("progress.tmp").write_text(json.dumps({"done": done, "total": total, "what": _bounded(what)}))
            os.replace("progress.tmp", "progress")

    progress(0, None, "loading")
    graph = load_received()
    from superopt import pipeline  # loads ONNX Runtime, which a model that does not load needs not wait for

    options = pipeline.Options(**_options(job))
    result = pipeline.optimize(graph, options=options, progress=progress)
    return _write(result, options, job)


def load_received() -> Graph:
    """The graph that a client sent, from ``in/model`` and the files beside it."""
    from superopt.formats import load

    beside = sorted(path.name for path in Path("in").iterdir() if path.name != "model")
    os.chdir("in")
    try:
        return load("model", external=bool(beside))  # ``in`` holds nothing but what the client sent
    except SuperoptError as error:
        hint = error.hint
        if "external data" in f"{error.where} {error.what}" or "in another file" in error.what:
            sent = f"beside the model came {', '.join(beside)[:300]}" if beside else "no other file came with the model"
            hint = f"{sent}; send each file as a part named data, with the file name that the model has for it"
        where = error.where.removeprefix("model").removeprefix(", ")
        raise type(error)(error.what, where=where, hint=hint) from error
    finally:
        os.chdir("..")


def _options(job: dict[str, Any]) -> dict[str, Any]:
    """The options of the engine; with a quarter of the budgets where more memory was needed than there is."""
    options = dict(job["options"])
    for name in ("enable", "disable"):
        options[name] = tuple(options.get(name, ()))
    if not job["reduced"]:
        return {**options, "memory_limit": int(job["memory"]) // 2}
    disabled = (*options["disable"], "algorithms", "values")  # they hold other weights beside the model's
    return {**options, "memory_limit": process_memory(job) // 8, "effort": "quick", "disable": disabled}


def _write(result: Result, options: Options, job: dict[str, Any]) -> dict[str, Any]:
    """Every representation of the result that fits; at least one does, or it is a ``ResourceLimit``.

    What is too large to be one message is written once: for an ONNX model as one with its weights in a file beside it,
    for a JSON graph as one with them in a safetensors file.
    """
    from superopt.formats.weight_data import RandomWeightData
    from superopt.server.views.report_payload import tell

    out = Path("out")
    weights = result.graph.weights
    whole = sum(w.type.nbytes or 0 for w in weights)
    stored = sum(w.type.nbytes or 0 for w in weights if not isinstance(w.data, RandomWeightData | None))
    without: dict[str, str] = {}
    most, beside = int(job["result"]), bool(job["onnx"])
    inline, large = 0.95 * min(most, int(job["inline"])), 0.95 * most
    forms = (
        ("json", stored * 4 // 3, inline, _write_json),
        ("parts", stored, inline if beside else large, _write_parts),
        ("onnx", whole, large if beside else inline, partial(_write_onnx, external_above=int(inline))),
    )
    for name, size, limit, write in forms:
        if size > limit:
            without[name] = f"the weights are {size >> 20} MiB in this form; the limit is {int(limit) >> 20} MiB"
            continue
        try:
            write(result.graph, out / FILES[name])
        except (InvalidModel, SuperoptError) as error:
            if meaning(error) is not None:
                raise
            without[name] = str(error)
    if len(without) == len(forms):
        raise ResourceLimit(f"the result is too large to send: {without['json']}")
    told = tell(result, options)
    (out / FILES["report"]).write_text(json.dumps(told.report, allow_nan=False))
    if told.way is not None:
        _write_frames([step.graph for step in told.way.steps], min(_FRAMES, large))
    (out / FILES["comparison"]).write_text(json.dumps(told.comparison, allow_nan=False))
    return _facts(result, options.time_limit, reduced=job["reduced"]) | {"without": without}


def _facts(result: Result, limit: float | None, *, reduced: bool) -> dict[str, Any]:
    """What the job table keeps of a result besides its files; by it the service decides whether the result is final."""
    from superopt.pipeline.result_check import UNCHANGED

    report = result.report
    found: dict[str, Any] = {
        "status": report.status, "name": result.graph.name[:200], "stopped": report.search.stopped,
        "time_limit": limit, "reduced": reduced,
    }  # fmt: skip
    if report.check.reason != UNCHANGED.reason:
        found["check"] = {"verdict": report.check.verdict, "reason": _bounded(report.check.reason)}
    return found


def _write_frames(graphs: Sequence[Graph], most: float) -> None:
    """The model after each step, as JSON graphs with one file of long weights beside all of them; none of them where
    their different weights are too large together."""
    from superopt.formats import save_together, shared_key
    from superopt.formats.weight_data import RandomWeightData

    different = {
        shared_key(w): w.type.nbytes or 0
        for g in graphs for w in g.weights if not isinstance(w.data, RandomWeightData | None)
    }  # fmt: skip
    if sum(different.values()) <= most:
        out = Path("out")
        save_together({out / f"{FRAME}{n}.json": g for n, g in enumerate(graphs, 1)}, out / FILES["shared"])


def _write_json(graph: Graph, path: Path) -> None:
    from superopt.formats.json_writer import whole_document

    with path.open("wb") as file:
        file.writelines(whole_document(graph))


def _write_parts(graph: Graph, path: Path) -> None:
    """The graph with its long weights in a file beside it; no file at all where it has none, for ``json`` says it."""
    from superopt.formats import save

    save(graph, path)
    if not path.with_suffix(".safetensors").exists():
        path.unlink()


def _write_onnx(graph: Graph, path: Path, external_above: int) -> None:
    from superopt.formats import save

    save(graph, path, external_above=external_above)


if __name__ == "__main__":
    main()


class EngineProcess:
    """The process that has the engine loaded and forks a child for each job."""

    def __init__(self, settings: ServiceSettings) -> None:
        limits = settings.limits
        seconds = limits.job_seconds + limits.last_words
        given = json.dumps(
            {"memory": limits.job_memory, "result": limits.result, "inline": limits.inline, "seconds": seconds}
        )
        environment = {
            "PATH": os.defpath, "HOME": "/nonexistent", "OMP_NUM_THREADS": "1",
            "SUPEROPT_CACHE": str(settings.data / "profile"),
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", _CHILD_START.format(root=_ROOT), str(os.getpid()), given],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd="/", start_new_session=True,
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._ear, self._mouth = self.process.stdin, self.process.stdout
        os.set_blocking(self._mouth.fileno(), False)
        self._said = b""
        self._loaded = False

    def ask(self, folder: Path) -> None:
        """Have a child do the job in this folder."""
        with contextlib.suppress(BrokenPipeError):
            self._ear.write(f"{folder}\n".encode())
            self._ear.flush()

    def hear(self, seconds: float) -> tuple[str, int] | None:
        """What it says next, within ``seconds``: ("pid", N), ("exit", N), or ("gone", 0) if it died."""
        if b"\n" not in self._said and select.select([self._mouth], [], [], seconds)[0]:
            chunk = self._mouth.read(4096)
            if chunk == b"":
                return "gone", 0
            self._said += chunk or b""
        if b"\n" not in self._said:
            return None
        line, _, self._said = self._said.partition(b"\n")
        word, number = line.split()
        return word.decode(), int(number)

    def ready(self) -> bool:
        """Whether it has the engine loaded and lives."""
        if not self._loaded and (said := self.hear(0)) is not None:
            self._loaded = said[0] == "ready"
        return self._loaded and self.alive()

    def alive(self) -> bool:
        """Whether it can be asked."""
        return self.process.poll() is None

    def end(self) -> None:
        """End it; a child that it still has dies too."""
        self.process.kill()
        self.process.wait()
        for pipe in (self._ear, self._mouth):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
