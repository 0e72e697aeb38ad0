"""Quantised deployments, by ONNX Runtime's own quantiser: ``python -m lab.quantised FOLDER [NAME ...]``.

Each is exported (:mod:`lab.deployments`, or by PyTorch's newer exporter), calibrated on random inputs and written as
``FOLDER/NAME_qdq.onnx``: QDQ, uint8 activations, int8 weights with one scale a channel. With ``--dynamic`` it is
``FOLDER/NAME_dynamic.onnx``, whose activations are quantised at run time. Needs what ``lab.deployments`` does, and
``onnxruntime``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import torch
from onnxruntime.quantization.calibrate import CalibrationDataReader
from onnxruntime.quantization.quant_utils import QuantFormat, QuantType
from onnxruntime.quantization.quantize import quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn
from torch.nn import functional

from lab.deployments import exported

__all__ = ["QUANTISED", "dynamic", "main", "quantised"]

_OPSET, _CALIBRATIONS, _LENGTH = 18, 4, 32


class Squeeze(nn.Module):
    """MobileNet v3's weights of channels, of their means."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        narrow = max(8, wide // 4 // 8 * 8)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.down, self.up = nn.Conv2d(wide, narrow, 1), nn.Conv2d(narrow, wide, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * functional.hardsigmoid(self.up(torch.relu(self.down(self.pool(x)))))


class Inverted(nn.Module):
    """An inverted residual of MobileNet v3, its normalisations folded."""

    def __init__(
        self, inner: int, wide: int, out: int, kernel: int, stride: int, *, squeeze: bool, swish: bool
    ) -> None:
        super().__init__()
        act = nn.Hardswish if swish else nn.ReLU
        layers = [nn.Conv2d(inner, wide, 1), act()] if wide != inner else []
        layers += [nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide), act()]
        layers += [Squeeze(wide)] if squeeze else []
        self.layers = nn.Sequential(*layers, nn.Conv2d(wide, out, 1))
        self.adds = stride == 1 and inner == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layers(x)
        return x + made if self.adds else made


_BLOCKS = (  # inner, wide, out, kernel, stride, squeeze, swish
    (16, 16, 16, 3, 1, 0, 0), (16, 64, 24, 3, 2, 0, 0), (24, 72, 24, 3, 1, 0, 0), (24, 72, 40, 5, 2, 1, 0),
    (40, 120, 40, 5, 1, 1, 0), (40, 120, 40, 5, 1, 1, 0), (40, 240, 80, 3, 2, 0, 1), (80, 200, 80, 3, 1, 0, 1),
    (80, 184, 80, 3, 1, 0, 1), (80, 184, 80, 3, 1, 0, 1), (80, 480, 112, 3, 1, 1, 1), (112, 672, 112, 3, 1, 1, 1),
    (112, 672, 160, 5, 2, 1, 1), (160, 960, 160, 5, 1, 1, 1), (160, 960, 160, 5, 1, 1, 1),
)  # fmt: skip


class MobileNetV3(nn.Module):
    """MobileNet v3 (large)."""

    def __init__(self) -> None:
        super().__init__()
        blocks = (Inverted(*b[:5], squeeze=bool(b[5]), swish=bool(b[6])) for b in _BLOCKS)
        first = (nn.Conv2d(3, 16, 3, 2, 1), nn.Hardswish())
        self.features = nn.Sequential(*first, *blocks, nn.Conv2d(160, 960, 1), nn.Hardswish())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classes = nn.Sequential(nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.classes(torch.flatten(self.pool(self.features(x)), 1))
        return made


def _mobilenetv3(folder: Path) -> Path:
    torch.manual_seed(0)
    path = folder / "mobilenetv3.onnx"
    torch.onnx.export(
        MobileNetV3().eval(), (torch.randn(1, 3, 224, 224),), str(path), dynamo=True, opset_version=_OPSET,
        input_names=["image"], external_data=False,
    )  # fmt: skip
    return path


QUANTISED: Mapping[str, Callable[[Path], Path]] = {
    "mobilenetv3": _mobilenetv3,
    "mobilenet": lambda folder: exported("mobilenet", folder),
    "resnet50": lambda folder: exported("resnet50", folder),
    "minilm": lambda folder: exported("minilm", folder),
}


class RandomCalibrationData(CalibrationDataReader):
    """A few random inputs: normal reals, token numbers, masks of ones."""

    def __init__(self, path: Path) -> None:
        model = onnx.load(path, load_external_data=False)
        held = {w.name for w in model.graph.initializer}
        self.inputs = [v for v in model.graph.input if v.name not in held]
        self.left, self.generator = _CALIBRATIONS, np.random.default_rng(0)

    def get_next(self) -> dict[str, np.ndarray]:
        """Inputs by name; none of them is the end."""
        self.left -= 1
        return {v.name: self._drawn(v) for v in self.inputs} if self.left >= 0 else {}

    def _drawn(self, value: onnx.ValueInfoProto) -> np.ndarray:
        kind = value.type.tensor_type
        shape = [d.dim_value or (_LENGTH if axis else 1) for axis, d in enumerate(kind.shape.dim)]
        if kind.elem_type == onnx.TensorProto.FLOAT:
            return self.generator.standard_normal(shape).astype(np.float32)
        most = 1000 if value.name == "input_ids" else 1
        return np.ones(shape, np.int64) if "mask" in value.name else self.generator.integers(0, most, shape)


def quantised(name: str, folder: Path) -> Path:
    """Write a deployment as ``folder/NAME_qdq.onnx``.

    Args:
        name: of :data:`QUANTISED`.
        folder: made where there is none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source, prepared, path = QUANTISED[name](folder), folder / f"{name}_prepared.onnx", folder / f"{name}_qdq.onnx"
    quant_pre_process(source, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared, path, RandomCalibrationData(prepared), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    prepared.unlink()
    return path


def dynamic(name: str, folder: Path) -> Path:
    """Write a deployment as ``folder/NAME_dynamic.onnx``, with int8 weights.

    Args:
        name: of :data:`QUANTISED`.
        folder: made where there is none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}_dynamic.onnx"
    quantize_dynamic(QUANTISED[name](folder), path, weight_type=QuantType.QInt8)
    return path


def main(arguments: list[str] | None = None) -> None:
    """Export and quantise those that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(QUANTISED)}; by default, all")
    parser.add_argument("--dynamic", action="store_true", help="quantise activations at run time")
    args = parser.parse_args(arguments)
    if unknown := [n for n in args.names if n not in QUANTISED]:
        parser.error(f"there is no {', '.join(unknown)}")
    for name in args.names or QUANTISED:
        path = (dynamic if args.dynamic else quantised)(name, args.folder)
        print(f"{path} ({path.stat().st_size >> 20} MiB)", file=sys.stderr)


if __name__ == "__main__":
    main()
