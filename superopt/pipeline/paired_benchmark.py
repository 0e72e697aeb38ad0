"""Two whole models side by side on this machine's processor, or on the device that they were optimised for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import stdev
from types import MappingProxyType
from typing import Any

import numpy as np

from superopt import formats
from superopt.cost.cost_model import DeviceGraphTimer
from superopt.ir.errors import Unsupported
from superopt.ir.graph import Graph
from superopt.ir.symbolic_size_binding import sizes_fed
from superopt.pipeline.acceptance_policy import uncertainty_of
from superopt.runtime.crash_isolation import risk_of
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.paired_benchmark import SETTLED, Clock, Enough, PairedTimes, time_loadings
from superopt.runtime.paired_measurement import PairedMeasurement
from superopt.runtime.protocol import InputBoundModel, Runtime
from superopt.runtime.resource_limits import LARGE, give_back, refuse_unbounded
from superopt.verifier.check.differential import make_inputs
from superopt.verifier.check.shared_weight_sessions import SharedWeightSessions

__all__ = ["LARGE", "clock_of", "measure", "measurement_of", "refuse_fatal", "runnable"]

_ROUNDS = 15
_LONGEST = 30.0  # seconds of a run that shows whether a process survives it


def measure(
    before: Graph,
    after: Graph,
    *,
    sizes: Mapping[str, int],
    seed: int = 0,
    rounds: int = _ROUNDS,
    burst: int = 3,
    threads: int = 1,
    time_limit: float = 30.0,
    device: DeviceGraphTimer | None = None,
    runtime: Runtime = ONNX_RUNTIME,
    looks: Mapping[int, Callable[[PairedMeasurement], bool]] = MappingProxyType({}),
    loadings: int = 1,
    enough: Callable[[PairedMeasurement], bool] = lambda measured: False,
    bench: SharedWeightSessions | None = None,
) -> PairedMeasurement:
    """Time two graphs side by side in a runtime with all its own optimisations, or on another device.

    With one thread the clock is the thread's CPU time, which other load on the machine does not disturb.

    Args:
        before: the input; models' weights are written to files once.
        after: what is timed beside it.
        sizes: of symbolic dimensions.
        seed: of the inputs.
        rounds: at most.
        burst: consecutive runs whose minimum is a sample.
        time_limit: seconds, without loading the models.
        threads: inside an operator.
        device: another device than this machine's processor.
        runtime: what runs them.
        looks: after so many rounds of a loading, whether that is enough; another device runs them all.
        loadings: how many times the models are loaded, each time for so many rounds; another device loads them once.
        enough: whether what two or more of these say is enough.
        bench: where weights are written, and sessions are kept for whoever checks the result.

    Raises:
        ResourceLimit: running them would take too long or too much memory. InvalidModel, Unsupported: the runtime
            cannot run them. Unsupported: the other device cannot.
    """
    clock = clock_of(threads)
    for graph in (before, after):
        refuse_unbounded(graph, sizes)
    feeds: Mapping[str, np.ndarray[Any, Any]] = make_inputs(before, seed, "normal", sizes=sizes_fed(before, sizes))
    if device is not None:
        return measurement_of(device.time_models((before, after), feeds, sizes, rounds=rounds, time_limit=time_limit))
    with SharedWeightSessions() if bench is None else nullcontext(bench) as given:
        refuse_fatal((before, after), feeds, given)

        def loaded() -> list[InputBoundModel]:
            made = given.loaded_all((before, after), runtime, threads=threads, keep=loadings == 1)
            return [m.bound(feeds) for m in made]

        result = time_loadings(
            loaded, loadings=loadings, runtime=runtime, rounds=rounds, burst=burst, threads=threads, clock=clock,
            time_limit=time_limit, enough=_stop_condition(enough),
            looks={n: _stop_condition(look) for n, look in looks.items()},
            shortest=SETTLED,
        )  # fmt: skip
        give_back()
    return measurement_of(result)


def refuse_fatal(graphs: Iterable[Graph], feeds: Mapping[str, np.ndarray], bench: SharedWeightSessions) -> None:
    """Raise Unsupported where running a graph on these inputs, which are to be timed here, ends the process."""
    for graph in graphs:
        risk = risk_of(graph)
        if risk is not None and risk.fed(feeds) and not bench.survives(graph, feeds, _LONGEST):
            raise Unsupported("running it ends the process, or takes too long")


def clock_of(threads: int) -> Clock:
    """The thread's own time, which other load disturbs little, where there is one thread."""
    return "cpu" if threads == 1 else "wall"


def _stop_condition(enough: Callable[[PairedMeasurement], bool]) -> Enough:
    return lambda result: enough(measurement_of(result))


def measurement_of(result: PairedTimes) -> PairedMeasurement:
    """What a paired benchmark says of its first two models."""
    ratios = [row[1] / row[0] for row in result.samples]
    found = PairedMeasurement(
        result.ms[0], result.ms[1], result.ratios[1], result.rounds, result.spread[1],
        dict(result.circumstances), stdev(ratios) if len(ratios) > 1 else 0.0, result.loadings,
    )  # fmt: skip
    return replace(found, uncertainty=uncertainty_of(found))


def runnable(graph: Graph, path: Path) -> bytes | Path:
    """The model as a runtime takes it: bytes, or a file where they would not fit one message."""
    if graph.weight_bytes <= LARGE:
        return formats.to_onnx_bytes(graph)
    formats.save(graph, path)
    return path
