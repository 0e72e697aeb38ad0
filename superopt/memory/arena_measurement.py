"""What ONNX Runtime's arena really hands out for a run: the judge of the model in
:mod:`superopt.memory.runtime_memory_planner`.

Python is told no statistics of the arena, but its log has every extension to the byte. A process of its own makes a
session over an arena that grows by what is asked of it and is emptied after every run; initializers and outputs lie
elsewhere. The first run allocates value by value and records a pattern; from the second on, all activations are one
block, which is the first request, and whatever follows is what kernels take for themselves.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import superopt.runtime  # noqa: F401  before ONNX Runtime, whose telemetry it switches off
from superopt.ir.errors import Unsupported
from superopt.ir.temporary_folders import TemporaryFolder

__all__ = ["ArenaMeasurement", "measured_arena"]

_MARK = "=== run"
_REQUEST = re.compile(r"\(requested\) num_bytes: (\d+)")
_SECONDS = 300.0


@dataclass(frozen=True)
class ArenaMeasurement:
    """Bytes that the arena was extended by in a run whose shapes have been seen before.

    Attributes:
        ran: the graph that was run, in the order in which it was (two sessions of one model may differ: ONNX Runtime
            walks over hashed pointers where it brings tensors into its blocked layout).
        block: one block for all activations.
        scratch: what kernels took besides, all together.
    """

    ran: bytes
    block: int
    scratch: int


def measured_arena(
    model: bytes | Path, feeds: Mapping[str, np.ndarray], *, optimise: bool = True, discard: int | None = None
) -> ArenaMeasurement:
    """Run a model in a process of its own and read off what its arena was asked for.

    Args:
        model: serialised ONNX, or the path of it.
        feeds: its inputs, NumPy's own types only.
        optimise: with all of ONNX Runtime's graph optimisations, or with none.
        discard: bytes from which weights are left out of the graph that was run: it points to nothing for them.

    Raises:
        Unsupported: the process failed, or took longer than five minutes.
    """
    with TemporaryFolder("arena") as folder:
        ran, arrays = folder / "ran.onnx", folder / "feeds.npz"
        path = model if isinstance(model, Path) else folder / "model.onnx"
        if isinstance(model, bytes):
            path.write_bytes(model)
        np.savez(arrays, *feeds.values())
        names = folder / "names"
        names.write_text("\n".join(feeds))
        kept = "" if discard is None else str(discard)
        command = [
            sys.executable,
            "-m",
            __name__,
            str(path),
            str(ran),
            str(arrays),
            str(names),
            str(int(optimise)),
            kept,
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, errors="replace")
        except subprocess.TimeoutExpired as error:
            raise Unsupported(f"a run to measure memory took more than {_SECONDS:.0f} s") from error
        runs = done.stderr.split(_MARK)
        if done.returncode or len(runs) != 2:
            raise Unsupported(f"the run to measure memory failed: {done.stderr.strip()[-300:]}")
        asked = [int(n) for n in _REQUEST.findall(runs[1])]
        return ArenaMeasurement(ran.read_bytes(), asked[0] if asked else 0, sum(asked[1:]))


def _run(path: str, ran: str, arrays: str, names: str, optimise: bool, discard: str) -> None:
    """The process: a run to learn the outputs, one to empty the arena, and one that is marked in what is logged."""
    import onnxruntime as ort

    from superopt.runtime.onnx_runtime import saved_to, shrink_arena_after

    untyped: Any = ort
    with np.load(arrays) as held:
        feeds = {n: held[f"arr_{i}"] for i, n in enumerate(Path(names).read_text().split("\n"))}
    config = untyped.OrtArenaCfg(
        {"max_mem": 0, "arena_extend_strategy": 1, "initial_chunk_size_bytes": -1, "max_dead_bytes_per_chunk": -1}
    )
    place = untyped.OrtMemoryInfo("Cpu", untyped.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, untyped.OrtMemType.DEFAULT)
    untyped.set_default_logger_severity(0)
    untyped.create_and_register_allocator(place, config)
    options = untyped.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimise:
        options.graph_optimization_level = untyped.GraphOptimizationLevel.ORT_DISABLE_ALL
    saved_to(options, Path(ran), int(discard) if discard else None)
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    session = untyped.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    emptied = untyped.RunOptions()
    shrink_arena_after(emptied, session)
    outputs = [np.array(a, order="C") for a in session.run(None, feeds)]  # copies: the arena holds none of them
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for value, array in zip(session.get_outputs(), outputs, strict=True):
        binding.bind_ortvalue_output(value.name, untyped.OrtValue.ortvalue_from_numpy(array))
    session.run_with_iobinding(binding, emptied)
    print(_MARK, file=sys.stderr, flush=True)
    session.run_with_iobinding(binding, emptied)


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5] == "1", sys.argv[6])
