"""Many models, each optimised into a folder by whichever worker is free."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superopt import fleet as fleets
from superopt import formats
from superopt.fleet import TaskJournal, WorkerPool
from superopt.fleet.environment_digest import here, of_files
from superopt.ir.disk_cache import check_cache
from superopt.ir.errors import SuperoptError, UsageError, printable, superopt_error
from superopt.pipeline.optimization import optimize
from superopt.pipeline.options import MOST_PARETO, Options, Progress, pareto_paths, quiet

__all__ = ["JOURNAL", "ModelResourceDemand", "demand_of", "optimize_all"]

JOURNAL = ".superopt.jsonl"  # of a folder of results: what is finished, so that a run that was killed goes on
_log = logging.getLogger("superopt")


@dataclass(frozen=True)
class BatchWorkerPolicy:
    """What a worker is given.

    Attributes:
        base_bytes: bytes of a worker beside its model: interpreter, libraries, e-graphs.
        copies: of a model's weights, at worst: original and result in float32 and, for the reference, in float64.
        large_bytes: a process that had such a model is not used again, so that its memory is free.
        grace_seconds: seconds beyond its time limit: loading and checking a large model on a busy machine.
    """

    base_bytes: int = 600 << 20
    copies: int = 8
    large_bytes: int = 2 << 30
    grace_seconds: float = 180.0


POLICY = BatchWorkerPolicy()


@dataclass(frozen=True)
class ModelResourceDemand:
    """What optimising a model may take.

    Attributes:
        bytes: of memory.
        seconds: after which its process is ended.
        last: whether that process is not used again.
        files: that decide the result: the model's, its weights', and the folder of rules.
    """

    bytes: int
    seconds: float | None
    last: bool
    files: tuple[Path, ...]


def demand_of(path: Path, options: Options) -> ModelResourceDemand:
    """At most, roughly; a broken model takes next to nothing."""
    try:
        graph, files = formats.load_with_files(path)
        weights = graph.weight_bytes
    except (SuperoptError, MemoryError):
        weights, files = 0, (path,)
    files += () if options.rules is None else (options.rules,)
    need = POLICY.base_bytes + POLICY.copies * weights
    return ModelResourceDemand(
        need,
        None if options.time_limit is None else 2 * options.time_limit + POLICY.grace_seconds,
        need >= POLICY.large_bytes,
        files,
    )


def optimize_all(
    models: Sequence[Path], out: Path, *, options: Options, fleet: WorkerPool | None = None, progress: Progress = quiet
) -> Iterator[dict[str, Any]]:
    """Optimise models and write each result to a folder under the model's own name; what ``pareto`` asks for beside it.

    What is finished is noted in the folder: the same call goes on where a killed one was, with any fleet. Workers
    elsewhere read models and write results under the same paths.

    Args:
        models: files of different names.
        out: the folder, made where there is none; results in it are replaced.
        options: for all of them.
        fleet: what optimises; this process where none is given.
        progress: called with (models done, in all, those under way).

    Yields:
        For each model, in their order: ``model``, ``output``, ``files`` (with their SHA-256) and ``report``, or
        ``error`` and ``exit_code`` for one that could not be optimised.

    Raises:
        UsageError: two results have one name, or another run writes the folder. OSError: it cannot be written.
    """
    targets = {path: out / path.name for path in models}
    if len(set(targets.values())) < len(models):
        raise UsageError("two models have the same file name", hint="their results would be one file: use two calls")
    if options.objective == "pareto":
        taken = {file: path for path, target in targets.items() for file in pareto_paths(target, MOST_PARETO)}
        for path, target in targets.items():
            if target in taken:
                raise UsageError(
                    f"what trades time for memory of {printable(taken[target].name)} may have the name of "
                    f"{printable(path.name)}", hint="use two calls",
                )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    check_cache()
    fleet, done = fleet or WorkerPool(), 0

    def told(names: Sequence[str]) -> None:
        progress(done, len(models), ", ".join(names))

    with TaskJournal(out / JOURNAL) as journal:
        tasks = (_task(path, targets[path], options) for path in models)
        for outcome in fleet.map(tasks, kept=_Results(journal), progress=told):
            try:
                row = outcome.result()
            except Exception as error:  # of this model: others go on
                row = _failed(outcome.task.arguments[0], error)
            done += 1
            yield row


def _task(path: Path, target: Path, options: Options) -> fleets.WorkerTask[dict[str, Any]]:
    need = demand_of(path, options)
    try:
        content = of_files(need.files)
    except OSError as error:
        return fleets.WorkerTask(_failed, (path.absolute(), error), path.name)
    key = fleets.digest(dict(here()), content, str(target.absolute()), repr(options))
    return fleets.WorkerTask(
        _one, (path.absolute(), target.absolute(), options, content), path.name, key, need.files, need.seconds,
        need.bytes, need.last,
    )  # fmt: skip


def _one(path: Path, target: Path, options: Options, content: Mapping[str, str]) -> dict[str, Any]:
    """A model's row. ``content``: digests of its files, under which the row is kept."""
    try:
        result = optimize(path, options=options)
        if changed := [name for name, digest in of_files(map(Path, content)).items() if digest != content[name]]:
            raise UsageError(
                f"{printable(changed[0])} changed meanwhile", where=printable(str(path)), hint="run it again"
            )
        points = dict(zip(pareto_paths(target, len(result.pareto)), result.pareto, strict=True))
        formats.save(result.graph, target, force=True)
        for file, point in points.items():
            formats.save(point.graph, file, force=True)
        files = of_files(p for made in (target, *points) for p in (made, *_weights(made)) if p.is_file())
    except Exception as error:
        return _failed(path, error)
    return {"model": str(path), "output": str(target), "files": files, "report": result.report.json()}


def _failed(path: Path, error: Exception) -> dict[str, Any]:
    """The row of a model that could not be optimised."""
    if os.environ.get("SUPEROPT_DEBUG"):
        traceback.print_exception(error)
    known = superopt_error(error)
    return {"model": str(path), "error": str(known), "exit_code": known.exit_code}


def _weights(target: Path) -> tuple[Path, ...]:
    """Where the large weights of a result may be."""
    return target.with_suffix(".safetensors"), Path(f"{target}.data")


@dataclass(frozen=True)
class _Results:
    """A journal whose rows stand for as long as their files are as they were written; failures are tried again."""

    journal: TaskJournal

    def get(self, key: str) -> Mapping[str, Any] | None:
        row = self.journal.get(key)
        return row if row is not None and of_files(map(Path, row["files"])) == row["files"] else None

    def put(self, key: str, data: Mapping[str, Any]) -> None:
        if "output" not in data:
            return
        try:
            self.journal.put(key, data)
        except OSError as error:  # the result itself is there
            _log.warning("%s is not noted as finished (%s)", data["output"], error.strerror or error)
