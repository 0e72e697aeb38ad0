"""From the name of a target to a cost model, and from a model's measurements to a recorded profile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from superopt.cost.cache import last_level_bytes
from superopt.cost.measured import MeasuredCpu
from superopt.cost.model import CostModel, Progress
from superopt.cost.profile import load_profile, write_profile
from superopt.cost.recorded import RecordedProfile
from superopt.cost.whole import graph_cost
from superopt.ir.errors import BackendUnavailable, UsageError, printable
from superopt.ir.graph import Graph
from superopt.runtime.race import circumstances

__all__ = ["for_target", "record"]


@contextmanager
def for_target(
    target: str,
    *,
    progress: Progress | None = None,
    sizes: Mapping[str, int] | None = None,
    threads: int = 1,
    time_limit: float = float("inf"),
) -> Iterator[CostModel]:
    """The cost model of a target: ``cpu``, or ``profile:NAME`` with a shipped profile's name or a path.

    Args:
        target: its name.
        progress: called before each measurement.
        sizes: what symbolic dimensions are costed at.
        threads: threads inside an operator.
        time_limit: seconds that may be spent measuring.

    Raises:
        UsageError: there is no such target or profile. InvalidModel: the profile is damaged.
        BackendUnavailable: the target's device is not here.
    """
    if target == "cpu":
        yield MeasuredCpu(threads=threads, sizes=sizes, time_limit=time_limit, progress=progress)
    elif target.startswith("profile:"):
        yield RecordedProfile(load_profile(target.removeprefix("profile:")), sizes)
    elif target == "cuda":
        raise BackendUnavailable(
            "this version measures no CUDA device", hint="use --target profile:NAME with a recorded profile, or cpu"
        )
    else:
        raise UsageError(f"there is no target {printable(target)!r}", hint="targets: cpu, cuda, profile:NAME")


def record(
    graphs: Iterable[Graph], out: Path, *, threads: int = 1, progress: Progress | None = None, time_limit: float = 1500
) -> int:
    """Measure every operator that the graphs apply, alone, and write the recorded profile.

    Returns:
        The number of records in it.

    Raises:
        OSError: it cannot be written.
    """
    model = MeasuredCpu(threads=threads, progress=progress, time_limit=time_limit)
    for graph in graphs:
        graph_cost(graph, model.recording())
    facts = circumstances(threads, model.meter.clock)
    header = {
        **{k: facts[k] for k in ("device", "cores", "threads", "clock", "runtime")},
        "cache_bytes": last_level_bytes(), "dispatch_ns": round(model.meter.dispatch, 1), "precision": "ieee",
    }  # fmt: skip
    write_profile(out, header, (r for r in model.store.records if r.key.impl == "ort" and r.key.op != "graph"))
    return sum(r.key.impl == "ort" and r.key.op != "graph" for r in model.store.records)
