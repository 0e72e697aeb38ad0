"""A second model that is invalid: the verdict is ONNX Runtime's refusal, if the first model runs."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.message import DecodeError
from onnx import ModelProto

from superopt.fleet.child import ChildProcessPool, TaskLost, packed, unpacked
from superopt.formats.onnx_writer import to_onnx_bytes
from superopt.ir.errors import InvalidModel, SuperoptError, Unsupported
from superopt.ir.graph import Graph
from superopt.runtime import isolated_process
from superopt.verifier.check.check_settings import ORIGINAL, RESULT, CheckResult
from superopt.verifier.equivalence.graphs import GraphVerdict

__all__ = ["verdict_on_invalid"]

_LONGEST = 60.0  # seconds that loading may take
_READ = 1 << 30  # bytes of a file that is looked into


def verdict_on_invalid(a: Graph, path: Path, error: InvalidModel) -> GraphVerdict:
    """The verdict on a first model and a file that is no valid model.

    Args:
        a: the first model.
        path: the second's file.
        error: what is wrong with it.

    Raises:
        InvalidModel: that error, where the file is no ONNX model at all, or one that ONNX Runtime loads all the same.
    """
    if not _is_model(path):
        raise error
    refusal = _refusal(path.resolve())
    if refusal is None:
        raise error
    why = _refusal(to_onnx_bytes(a))
    if why is not None:
        found_check = CheckResult("skipped", reason=f"ONNX Runtime refuses A: {why}", refused=ORIGINAL)
        return GraphVerdict("unknown", check=found_check, reason=f"{found_check.reason}; nor is B valid: {error.what}")
    found_check = CheckResult("failed", reason=f"ONNX Runtime loads A but refuses B: {refusal}", refused=RESULT)
    return GraphVerdict("refuted", check=found_check, reason=f"{found_check.reason}; {error.where}: {error.what}")


def _is_model(path: Path) -> bool:
    """Whether a file is an ONNX model, valid or not."""
    try:
        if path.stat().st_size > _READ:
            return False
        return bool(ModelProto.FromString(path.read_bytes()).graph.node)  # type: ignore[no-untyped-call]
    except (OSError, DecodeError):
        return False


def _refusal(source: bytes | Path) -> str | None:
    """Why ONNX Runtime does not load a model; ``None`` where it does. Another process tries: it may end of it."""
    crew = ChildProcessPool()
    try:
        unpacked(crew.run(packed(isolated_process.load, (source,), files=None, seconds=_LONGEST, last=True)))
    except (InvalidModel, Unsupported) as refusal:
        return refusal.what
    except (TaskLost, SuperoptError) as ended:
        return f"loading it ends the process ({ended})"
    finally:
        crew.close()
    return None
