"""ONNX Runtime, with its optimisations off or on, one thread, without a word on the terminal."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort

Values = dict[str, object]
ort.set_default_logger_severity(4)


def open_session(model: onnx.ModelProto | bytes, *, optimised: bool) -> ort.InferenceSession:
    """A session of one thread on the CPU."""
    options = ort.SessionOptions()
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimised else level.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def run(session: ort.InferenceSession, feeds: Values) -> Values:
    """All outputs by name."""
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def same_bits(left: object, right: object) -> bool:
    """Equal to the last bit, the sign of zeros included; any NaN equals any NaN."""
    if isinstance(left, list) or isinstance(right, list):
        return isinstance(left, list) and isinstance(right, list) and len(left) == len(right) and all(
            same_bits(a, b) for a, b in zip(left, right, strict=True)
        )  # fmt: skip
    a, b = np.asarray(left), np.asarray(right)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    return bool(np.all(((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))))
