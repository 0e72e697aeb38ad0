"""PyTorch's inductor on an ONNX model: converted by onnx2torch, compiled by ``torch.compile``, one thread.

It makes no ONNX model, so it races as a function beside ONNX Runtime's sessions, in the same process and on the same
clock. PyTorch and onnx2torch are needed only here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from superopt.ir.errors import Unsupported

__all__ = ["MARK", "compiled", "older"]

MARK = "inductor:"  # in front of a path: this candidate is the model at the path, run by inductor
_OPSET = 17  # the newest that onnx2torch 1.5 knows most operators of, and the first with LayerNormalization
Feeds = Mapping[str, np.ndarray[Any, Any]]
Step = Callable[[Feeds], list[np.ndarray[Any, Any]]]


def older(path: Path) -> Any:
    """The model at an opset that onnx2torch knows, as far as ONNX's own converter gets it there."""
    onnx: Any = importlib.import_module("onnx")
    converter: Any = importlib.import_module("onnx.version_converter")
    model = onnx.load(str(path))
    new = any(o.domain == "" and o.version > _OPSET for o in model.opset_import)
    return converter.convert_version(model, _OPSET) if new else model


def compiled(path: Path, feeds: Feeds) -> Step:
    """The model as a function of such inputs; it has run on these, and so was compiled, on return.

    Raises:
        Unsupported: onnx2torch cannot convert the model, or inductor cannot compile it. What else they raise, passes:
            it ends this process, and is counted as a crash.
    """
    torch: Any = importlib.import_module("torch")
    convert: Any = importlib.import_module("onnx2torch").convert
    torch.set_num_threads(1)
    try:
        module = convert(older(path)).eval()
        function = torch.compile(module)
        fixed = [torch.from_numpy(np.ascontiguousarray(a)) for a in feeds.values()]

        def step(given: Feeds) -> list[np.ndarray[Any, Any]]:
            own = given is feeds  # converted once, as inputs are bound once in ONNX Runtime
            inputs = fixed if own else [torch.from_numpy(np.ascontiguousarray(a)) for a in given.values()]
            with torch.no_grad():
                made = function(*inputs)
            return [m.numpy() for m in (made if isinstance(made, tuple | list) else (made,))]

        step(feeds)
    except RuntimeError as error:
        raise Unsupported(f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}") from error
    return step
