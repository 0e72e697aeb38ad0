"""One other optimiser on one model, in a process of its own: ``python peer.py NAME IN.onnx OUT.onnx``.

It imports nothing of superopt, so that any interpreter that has the tool can run it. Each tool gets its own defaults.
The seconds that it prints are those of the tool alone, with its imports apart.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


def _onnxsim(source: str) -> Any:
    import onnxsim

    def run() -> Any:
        model, _ = onnxsim.simplify(source)
        return model

    return run


def _onnxslim(source: str) -> Any:
    import onnxslim

    return lambda: onnxslim.slim(source)


def _onnxscript(source: str) -> Any:
    import onnx
    import onnxscript.optimizer

    return lambda: onnxscript.optimizer.optimize(onnx.load(source))


def _onnxoptimizer(source: str) -> Any:
    import onnx
    import onnxoptimizer

    passes = onnxoptimizer.get_fuse_and_elimination_passes()
    return lambda: onnxoptimizer.optimize(onnx.load(source), passes, fixed_point=True)


PEERS: dict[str, Callable[[str], Callable[[], Any]]] = {
    "onnxsim": _onnxsim, "onnxslim": _onnxslim, "onnxscript": _onnxscript, "onnxoptimizer": _onnxoptimizer,
}  # fmt: skip


def main(name: str, source: str, target: str) -> None:
    """Run the tool and save what it made."""
    import onnx

    optimise = PEERS[name](source)
    wall, used = time.monotonic(), _cpu()
    model = optimise()
    seconds, cpu = time.monotonic() - wall, _cpu() - used
    large = model.ByteSize() > 1_500_000_000
    onnx.save(model, target, save_as_external_data=large, location="weights.bin" if large else None)
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu}))


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main(*sys.argv[1:])
