"""Deployments in float16, by ONNX Runtime's own converter: ``python -m lab.half_precision_deployments FOLDER [NAME
...]``.

Each is exported (:mod:`lab.deployments`) and written twice: ``FOLDER/NAME_fp16.onnx`` has inputs and outputs of
float16, ``FOLDER/NAME_fp16_io32.onnx`` of float32, with casts. Needs what ``lab.deployments`` needs, and ONNX Runtime.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
from onnxruntime.transformers.float16 import convert_float_to_float16

from lab.deployments import DEPLOYMENTS, exported

__all__ = ["converted", "main"]

_DEFAULT = ("minilm", "resnet50")
_convert: Callable[..., onnx.ModelProto] = convert_float_to_float16


def converted(name: str, folder: Path) -> tuple[Path, Path]:
    """Write a deployment in float16.

    Args:
        name: of :data:`lab.deployments.DEPLOYMENTS`.
        folder: made where there is none.

    Returns:
        The model with inputs of float16, and the one with inputs of float32.
    """
    source = exported(name, folder)
    paths = folder / f"{name}_fp16.onnx", folder / f"{name}_fp16_io32.onnx"
    for path, keep in zip(paths, (False, True), strict=True):
        onnx.save(_convert(onnx.load(source), keep_io_types=keep), path)
    return paths


def main(arguments: list[str] | None = None) -> None:
    """Export and convert those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(DEPLOYMENTS)}; by default, {', '.join(_DEFAULT)}")
    args = parser.parse_args(arguments)
    if unknown := [n for n in args.names if n not in DEPLOYMENTS]:
        parser.error(f"there is no {', '.join(unknown)}")
    for name in args.names or _DEFAULT:
        for path in converted(name, args.folder):
            print(f"{path} ({path.stat().st_size >> 20} MiB)", file=sys.stderr)


if __name__ == "__main__":
    main()
