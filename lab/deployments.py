"""Deployments, exported as their users export them: ``python -m lab.deployments FOLDER [NAME ...]``.

Networks of published sizes with random weights, which a seed draws: some by PyTorch alone, others from configurations
of ``transformers`` (:mod:`lab.transformers_deployments`), without a download (``pip install torch transformers
onnxscript``). ``make bench-deploy`` races them, and ``tests/stability.py`` asks whether each comes back the same on
every run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from lab.transformers_deployments import CONFIGURED, DeploymentExport, drawn, image

__all__ = ["DEPLOYMENTS", "exported", "main"]

_OPSET = 18


# -- by PyTorch alone ------------------------------------------------------------------------------------------------


class ConvActivation(nn.Sequential):
    """A convolution, with the normalisation folded into it, and its activation."""

    def __init__(
        self, inner: int, out: int, kernel: int = 3, stride: int = 1, apart: int = 1,
        act: Callable[[], nn.Module] = nn.SiLU,
    ) -> None:  # fmt: skip
        pad = apart * (kernel // 2)
        super().__init__(nn.Conv2d(inner, out, kernel, stride, pad, apart), act())


class C2f(nn.Module):
    """YOLOv8's stage: two halves, of which one goes through bottlenecks, all joined."""

    def __init__(self, inner: int, out: int, count: int, *, add: bool) -> None:
        super().__init__()
        self.half, self.add = out // 2, add
        self.first, self.last = ConvActivation(inner, out, 1), ConvActivation((2 + count) * self.half, out, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(ConvActivation(self.half, self.half), ConvActivation(self.half, self.half))
            for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(x).split((self.half, self.half), 1))
        for block in self.blocks:
            made = block(parts[-1])
            parts.append(parts[-1] + made if self.add else made)
        return self.last(torch.cat(parts, 1))


class SpatialPyramidPooling(nn.Module):
    """YOLOv8's SPPF: three poolings in a row, joined."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.first, self.last = ConvActivation(wide, wide // 2, 1), ConvActivation(2 * wide, wide, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.first(x)]
        parts += [functional.max_pool2d(parts[-1], 5, 1, 2)]
        parts += [functional.max_pool2d(parts[-1], 5, 1, 2)]
        parts += [functional.max_pool2d(parts[-1], 5, 1, 2)]
        return self.last(torch.cat(parts, 1))


class Detect(nn.Module):
    """YOLOv8's head: boxes as expected distances, classes as probabilities."""

    def __init__(self, widths: tuple[int, ...], size: int, classes: int = 80, bins: int = 16) -> None:
        super().__init__()
        self.bins, self.classes = bins, classes
        boxes, kinds = max(16, widths[0] // 4, 4 * bins), max(widths[0], min(classes, 100))
        self.boxes = nn.ModuleList(
            nn.Sequential(ConvActivation(w, boxes), ConvActivation(boxes, boxes), nn.Conv2d(boxes, 4 * bins, 1))
            for w in widths
        )
        self.kinds = nn.ModuleList(
            nn.Sequential(ConvActivation(w, kinds), ConvActivation(kinds, kinds), nn.Conv2d(kinds, classes, 1))
            for w in widths
        )
        self.expected = nn.Conv2d(bins, 1, 1, bias=False)
        self.expected.weight.data = torch.arange(bins, dtype=torch.float32).reshape(1, bins, 1, 1)
        centres, strides = zip(*(_anchors(size // s, s) for s in (8, 16, 32)), strict=True)
        self.register_buffer("centres", torch.cat(centres, 1)[None])
        self.register_buffer("strides", torch.cat(strides, 1))

    def forward(self, levels: list[torch.Tensor]) -> torch.Tensor:
        made = [
            torch.cat((boxes(x), kinds(x)), 1).view(1, 4 * self.bins + self.classes, -1)
            for x, boxes, kinds in zip(levels, self.boxes, self.kinds, strict=True)
        ]
        box, kind = torch.cat(made, 2).split((4 * self.bins, self.classes), 1)
        spread = box.view(1, 4, self.bins, box.shape[-1]).transpose(2, 1).softmax(1)
        before, after = self.expected(spread).view(1, 4, -1).chunk(2, 1)
        low, high = self.centres - before, self.centres + after
        placed = torch.cat(((low + high) / 2, high - low), 1) * self.strides
        return torch.cat((placed, kind.sigmoid()), 1)


def _anchors(cells: int, stride: int) -> tuple[torch.Tensor, torch.Tensor]:
    at = torch.arange(cells) + 0.5
    y, x = torch.meshgrid(at, at, indexing="ij")
    return torch.stack((x, y)).reshape(2, -1), torch.full((1, cells * cells), float(stride))


class YoloV8n(nn.Module):
    """YOLOv8n, fused, as ultralytics exports it."""

    def __init__(self, size: int = 640) -> None:
        super().__init__()
        self.early = nn.Sequential(
            ConvActivation(3, 16, stride=2),
            ConvActivation(16, 32, stride=2),
            C2f(32, 32, 1, add=True),
            ConvActivation(32, 64, stride=2),
            C2f(64, 64, 2, add=True),
        )
        self.middle = nn.Sequential(ConvActivation(64, 128, stride=2), C2f(128, 128, 2, add=True))
        self.late = nn.Sequential(
            ConvActivation(128, 256, stride=2), C2f(256, 256, 1, add=True), SpatialPyramidPooling(256)
        )
        self.up, self.wide = nn.Upsample(scale_factor=2.0), C2f(384, 128, 1, add=False)
        self.fine, self.down = C2f(192, 64, 1, add=False), ConvActivation(64, 64, stride=2)
        self.between, self.further = C2f(192, 128, 1, add=False), ConvActivation(128, 128, stride=2)
        self.coarse, self.detect = C2f(384, 256, 1, add=False), Detect((64, 128, 256), size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        early = self.early(x)
        middle = self.middle(early)
        late = self.late(middle)
        wide = self.wide(torch.cat((self.up(late), middle), 1))
        fine = self.fine(torch.cat((self.up(wide), early), 1))
        between = self.between(torch.cat((self.down(fine), wide), 1))
        coarse = self.coarse(torch.cat((self.further(between), late), 1))
        return self.detect([fine, between, coarse])


class EsrganDenseBlock(nn.Module):
    """ESRGAN's block: each of five convolutions reads what all before it made."""

    def __init__(self, wide: int = 64, grown: int = 32) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(wide + n * grown, wide if n == 4 else grown, 3, padding=1) for n in range(5)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x]
        for conv in self.convs[:-1]:
            parts.append(functional.leaky_relu(conv(torch.cat(parts, 1)), 0.2))
        return x + 0.2 * self.convs[-1](torch.cat(parts, 1))


class Esrgan(nn.Module):
    """Real-ESRGAN's generator with two blocks for 23, four times as large."""

    def __init__(self, blocks: int = 2, wide: int = 64) -> None:
        super().__init__()
        self.first, self.body = nn.Conv2d(3, wide, 3, padding=1), nn.Conv2d(wide, wide, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(EsrganDenseBlock(), EsrganDenseBlock(), EsrganDenseBlock()) for _ in range(blocks)
        )
        self.ups = nn.ModuleList(nn.Conv2d(wide, wide, 3, padding=1) for _ in range(3))
        self.last = nn.Conv2d(wide, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x = self.first(x)
        for block in self.blocks:
            x = x + 0.2 * block(x)
        x = first + self.body(x)
        for up in self.ups[:2]:
            x = functional.leaky_relu(up(functional.interpolate(x, scale_factor=2.0, mode="nearest")), 0.2)
        return self.last(functional.leaky_relu(self.ups[2](x), 0.2))


class NestedUNetBlock(nn.Module):
    """U²-Net's block: a U-Net of so many levels, with its input added; with ``dilated``, dilations for poolings."""

    def __init__(self, inner: int, out: int, levels: int, narrow: int = 16, *, dilated: bool = False) -> None:
        super().__init__()
        apart = [2**n if dilated else 1 for n in range(levels - 1)]
        self.dilated, self.first = dilated, ConvActivation(inner, out, act=nn.ReLU)
        self.down = nn.ModuleList(
            ConvActivation(narrow if n else out, narrow, apart=a, act=nn.ReLU) for n, a in enumerate(apart)
        )
        self.bottom = ConvActivation(narrow, narrow, apart=2 * apart[-1], act=nn.ReLU)
        self.back = nn.ModuleList(
            ConvActivation(2 * narrow, narrow if n else out, apart=a, act=nn.ReLU) for n, a in enumerate(apart)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        made: list[torch.Tensor] = []
        for n, down in enumerate(self.down):
            read = made[-1] if made else first
            made.append(down(read if self.dilated or not n else functional.max_pool2d(read, 2, 2, ceil_mode=True)))
        x = self.bottom(made[-1])
        for n in reversed(range(len(made))):
            x = self.back[n](torch.cat((_as_large(x, made[n]), made[n]), 1))
        return first + x


def _as_large(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if x.shape[2:] == other.shape[2:]:
        return x
    return functional.interpolate(x, size=other.shape[2:], mode="bilinear", align_corners=False)


class U2NetP(nn.Module):
    """U²-NetP: a U-Net of U-Nets."""

    def __init__(self, wide: int = 64) -> None:
        super().__init__()
        kinds = [(7, False), (6, False), (5, False), (4, False), (5, True), (5, True)]
        self.down = nn.ModuleList(
            NestedUNetBlock(wide if n else 3, wide, levels, dilated=dilated)
            for n, (levels, dilated) in enumerate(kinds)
        )
        self.back = nn.ModuleList(
            NestedUNetBlock(2 * wide, wide, levels, dilated=dilated) for levels, dilated in kinds[:-1]
        )
        self.sides = nn.ModuleList(nn.Conv2d(wide, 1, 3, padding=1) for _ in kinds)
        self.last = nn.Conv2d(len(kinds), 1, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made: list[torch.Tensor] = []
        for n, down in enumerate(self.down):
            made.append(down(functional.max_pool2d(made[-1], 2, 2, ceil_mode=True) if n else x))
        found = [made[-1]]
        for n in reversed(range(len(self.back))):
            found.insert(0, self.back[n](torch.cat((_as_large(found[0], made[n]), made[n]), 1)))
        sides = [_as_large(side(one), x) for side, one in zip(self.sides, found, strict=True)]
        return tuple(torch.sigmoid(one) for one in (self.last(torch.cat(sides, 1)), *sides))


class MobileNet(nn.Sequential):
    """MobileNet v1, its normalisations not folded."""

    def __init__(self) -> None:
        widths = (32, 64, 128, 128, 256, 256, *[512] * 6, 1024, 1024)
        strides = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
        layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
        for inner, out, stride in zip(widths, widths[1:], strides, strict=False):
            layers += [
                nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False),
                nn.BatchNorm2d(inner),
                nn.ReLU6(),
            ]
            layers += [nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU6()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 1000))


class FileTypeClassifier(nn.Module):
    """A detector of file types, as magika has it: bytes (256: padding) as one-hot, dense layers, one convolution."""

    def __init__(self, wide: int = 64, joined: int = 4, kinds: int = 216) -> None:
        super().__init__()
        self.joined, self.embedding, self.norm = joined, nn.Linear(257, wide), nn.LayerNorm(wide)
        self.conv, self.pooled = nn.Conv1d(wide * joined, 256, 5), nn.LayerNorm(256)
        self.last = nn.Linear(256, kinds)

    def forward(self, read: torch.Tensor) -> torch.Tensor:
        x = functional.one_hot(read.to(torch.int64), 257).to(torch.float32)
        x = self.norm(functional.gelu(self.embedding(x), approximate="tanh"))
        x = x.reshape(x.shape[0], x.shape[1] // self.joined, -1).transpose(1, 2)
        x = functional.gelu(self.conv(x), approximate="tanh").amax(2)
        return torch.softmax(self.last(self.pooled(x)), -1)


class BasicPitch(nn.Module):
    """Spotify's pitch tracker behind its constant-Q transform: eight harmonics of 172 frames and 264 bins."""

    def __init__(self) -> None:
        super().__init__()
        self.contours = nn.Sequential(
            nn.Conv2d(8, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 8, (3, 39), padding=(1, 19)), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 1, 5, padding=2), nn.Sigmoid(),
        )  # fmt: skip
        self.early = nn.Sequential(nn.Conv2d(1, 32, 7, (1, 3), (3, 2)), nn.ReLU())
        self.notes = nn.Sequential(nn.Conv2d(32, 1, (7, 3), padding=(3, 1)), nn.Sigmoid())
        self.attacks = nn.Sequential(nn.Conv2d(8, 32, 5, (1, 3), (2, 1)), nn.BatchNorm2d(32), nn.ReLU())
        self.onsets = nn.Sequential(nn.Conv2d(33, 1, 3, padding=1), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        contours = self.contours(x)
        notes = self.notes(self.early(contours))
        return contours, notes, self.onsets(torch.cat((notes, self.attacks(x)), 1))


DEPLOYMENTS: Mapping[str, DeploymentExport] = {
    "yolov8n": DeploymentExport(lambda: drawn(YoloV8n()), image(640, "images")),
    "esrgan": DeploymentExport(lambda: drawn(Esrgan()), image(64, "image"), {"image": {0: "n", 2: "h", 3: "w"}}),
    "esrgan_static": DeploymentExport(lambda: drawn(Esrgan()), image(64, "image")),
    "u2netp": DeploymentExport(lambda: drawn(U2NetP()), image(320, "image")),
    "basic_pitch": DeploymentExport(lambda: drawn(BasicPitch()), lambda: {"harmonics": torch.randn(1, 8, 172, 264)}),
    "mobilenet": DeploymentExport(lambda: drawn(MobileNet()), image(224, "image")),
    "file_types": DeploymentExport(
        lambda: FileTypeClassifier().eval(), lambda: {"bytes": torch.randint(0, 257, (1, 2048), dtype=torch.int32)},
        {"bytes": {0: "batch"}},
    ),
    **CONFIGURED,
}  # fmt: skip


def exported(name: str, folder: Path, seed: int = 0) -> Path:
    """Write a deployment as ``folder/NAME.onnx``.

    Args:
        name: of :data:`DEPLOYMENTS`.
        folder: made where there is none.
        seed: of weights and example inputs.
    """
    torch.manual_seed(seed)
    chosen = DEPLOYMENTS[name]
    inputs, path = chosen.inputs(), folder / f"{name}.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        torch.onnx.export(
            chosen.make(), tuple(inputs.values()), str(path), input_names=list(inputs), opset_version=_OPSET,
            dynamic_axes={k: dict(v) for k, v in chosen.free.items()}, dynamo=False,
        )  # fmt: skip
    return path


def main(arguments: list[str] | None = None) -> None:
    """Export those that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(DEPLOYMENTS)}; by default, all")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    if unknown := [n for n in args.names if n not in DEPLOYMENTS]:
        parser.error(f"there is no {', '.join(unknown)}")
    for name in args.names or DEPLOYMENTS:
        path = exported(name, args.folder, args.seed)
        print(f"{path} ({path.stat().st_size >> 20} MiB)", file=sys.stderr)


if __name__ == "__main__":
    main()
