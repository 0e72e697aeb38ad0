"""From the name of a target to its cost model, or to the device from which a profile is recorded.

What a target needs beyond a recorded profile (calibration, measuring, CUDA) is imported when that target is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from superopt.cost.backend_capabilities import cpu_backend
from superopt.cost.cost_model import CostModel, ProfileCostModel
from superopt.cost.device_profile import load_profile
from superopt.ir.errors import InvalidOption, UsageError, printable
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.protocol import runtime_named

if TYPE_CHECKING:
    from superopt.cost.measured_cost_models import Progress
    from superopt.cost.operator_timing import OperatorTimer

__all__ = ["device_of", "for_target"]


@contextmanager
def for_target(
    target: str,
    *,
    progress: Progress | None = None,
    sizes: Mapping[str, int] | None = None,
    threads: int = 1,
    time_limit: float = float("inf"),
    runtime: str = "onnxruntime",
    calibrate: bool = True,
) -> Iterator[CostModel]:
    """The cost model of a target: ``cpu``, ``cuda``, or ``profile:NAME`` with a shipped profile's name or a path.

    Args:
        target: its name.
        progress: called before each measurement.
        sizes: what symbolic dimensions are costed at.
        threads: threads inside an operator.
        time_limit: seconds that may be spent measuring, where prices are measured; what comes later is predicted.
        runtime: what runs models on the processor (:data:`superopt.runtime.protocol.RUNTIMES`).
        calibrate: whether the first run on a machine measures it; else ``cpu`` takes the nearest profile as it is.

    Raises:
        UsageError: there is no such target, profile or runtime, or the two do not go together. InvalidModel: the
            profile is damaged. BackendUnavailable: the target's device or the runtime is not here.
    """
    chosen = runtime_named(runtime)
    if target == "cpu":
        from superopt.cost.measured_cost_models import MeasuredCpuCostModel
        from superopt.cost.profile_calibration import calibrated_cpu

        known = calibrated_cpu(runtime=chosen, threads=threads, sizes=sizes, calibrate=calibrate)
        yield known or MeasuredCpuCostModel(
            runtime=chosen, threads=threads, sizes=sizes, time_limit=time_limit, progress=progress
        )
    elif target.startswith("profile:"):
        recorded = ProfileCostModel(load_profile(target.removeprefix("profile:")), sizes)
        if recorded.backend.processor and recorded.backend is not cpu_backend(chosen):
            raise UsageError(
                f"{printable(target)} was recorded with {recorded.backend.name}, not with {runtime}",
                hint="--target cpu scales it to the runtime",
            )
        yield recorded
    elif runtime != ONNX_RUNTIME.name:
        raise UsageError(f"{runtime} runs models on the processor, not on {printable(target)!r}", hint="--target cpu")
    elif target == "cuda":
        from superopt.cost.measured_cost_models import MeasuredDeviceCostModel

        yield MeasuredDeviceCostModel(device_of("cuda"), sizes=sizes, time_limit=time_limit, progress=progress)
    else:
        raise InvalidOption(
            f"there is no target {printable(target)!r}", option="target", hint="targets: cpu, cuda, profile:NAME"
        )


def device_of(target: str, threads: int = 1, runtime: str = "onnxruntime") -> OperatorTimer:
    """The device that a target measures on.

    Raises:
        BackendUnavailable: it, or the runtime, is not here. UsageError: it is no device.
    """
    if target == "cpu":
        from superopt.cost.operator_timing import CpuOperatorTimer

        return CpuOperatorTimer(threads, runtime_named(runtime))
    if target == "cuda":
        from superopt.cost.cuda_timing import CudaOperatorTimer

        return CudaOperatorTimer()
    raise UsageError(f"{printable(target)} is not a device that can be measured", hint="--target cpu, or cuda")
