"""Convolutions of few channels beside their forms with neighbouring pixels as channels: ``python -m
lab.pixels_as_channels``.

Prints a table: what prices and rounds say of each block of pixels. Interleaved, with one thread on its CPU clock.
"""

from __future__ import annotations

from lab.algorithms import PROFILE, FastAlgorithmMeasurement, measured
from superopt import cost as costs
from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph
from superopt.passes.fast_algorithms.space_to_depth_convolution import SpaceToDepthConvolution

__all__ = ["SHAPES", "convolution", "main"]

# Channels, channels made, taps, places.
SHAPES = (
    (8, 1, (3, 3), (172, 264)), (32, 1, (7, 3), (172, 264)), (32, 1, (3, 3), (172, 264)), (8, 8, (3, 39), (172, 264)),
    (1, 8, (5, 5), (172, 264)), (3, 8, (3, 3), (224, 224)), (16, 4, (3, 3), (112, 112)), (64, 8, (1, 1), (56, 56)),
    (64, 1, (1, 1), (112, 112)), (64, 1, (3, 3), (80, 80)), (64, 1, (3, 3), (160, 160)), (64, 1, (3, 3), (320, 320)),
    (64, 3, (9, 9), (112, 112)), (64, 3, (3, 3), (128, 128)), (64, 10, (3, 3), (64, 64)), (64, 15, (3, 3), (64, 64)),
)  # fmt: skip


def convolution(inner: int, out: int, taps: tuple[int, int], places: tuple[int, int]) -> Graph:
    """As many places as before, a bias and Relu, one image."""
    b = GraphBuilder("conv")
    x = b.input("x", "float32", (1, inner, *places))
    w = b.weight("w", (out, inner, *taps), scale=(inner * taps[0] * taps[1]) ** -0.5)
    before, after = [(t - 1) // 2 for t in taps], [t // 2 for t in taps]
    b.output(b.op("Conv", x, w, b.weight("b", (out,)), pads=[*before, *after]).relu(), "y")
    return b.build()


def row(found: FastAlgorithmMeasurement) -> str:
    """Of the table: time of each block of pixels ÷ the convolution's, measured (modelled)."""
    cells = {
        form.block: f"{ratio:.2f} ({us / found.modelled[0]:.2f})"
        for form, ratio, us in zip(found.forms, found.ratios, found.modelled, strict=True)
        if isinstance(form, SpaceToDepthConvolution)
    }
    blocks = " | ".join(cells.get(block, "") for block in (2, 3, 4))
    return f"| {found.shape} | {found.ms:.2f} | {blocks} | {found.load:.1f} |"


def main() -> None:
    """Print the table."""
    print("| channels → made, taps, places | ms | 2×2 | 3×3 | 4×4 | load |\n|---|--:|--:|--:|--:|--:|")
    with costs.for_target(PROFILE) as model:
        for inner, out, taps, places in SHAPES:
            (height, width), (tall, wide) = taps, places
            shape = f"{inner} → {out}, {height}×{width}, {tall}×{wide}"
            print(row(measured(convolution(inner, out, taps, places), shape, model, rounds=1)), flush=True)


if __name__ == "__main__":
    main()
