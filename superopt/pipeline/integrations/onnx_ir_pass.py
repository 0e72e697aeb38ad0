"""Models of ``onnx_ir``, which PyTorch's exporter returns: a pass over them, and a call on an exported program.

``onnx_ir`` comes with PyTorch's exporter (extra ``torch``).
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from superopt.pipeline.integrations.drop_in import slim

__all__ = ["SlimPass", "onnx_program"]


class SlimPass(ir.passes.FunctionalPass):
    """:func:`superopt.slim` as a pass of ``onnx_ir``: ``ir.passes.Sequential(SlimPass(), …)(model)``.

    Args:
        **options: of :func:`superopt.slim`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """The optimised model, and whether it is another one than the input.

        Raises:
            InvalidModel: the model is broken. InvalidOption: an option is wrong.
        """
        proto = ir.to_proto(model)
        slimmed = slim(proto, **self._options)
        return ir.passes.PassResult(ir.from_proto(slimmed), modified=slimmed is not proto)  # never the same object


def onnx_program(program: Any, **options: Any) -> Any:
    """``superopt.onnx_program(torch.onnx.export(module, args))``: the program, with its model optimised.

    Args:
        program: a ``torch.onnx.ONNXProgram``; its ``model`` is replaced.
        **options: of :func:`superopt.slim`.

    Raises:
        InvalidModel: the model is broken. InvalidOption: an option is wrong.
    """
    program.model = SlimPass(**options)(program.model).model
    return program
