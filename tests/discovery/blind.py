"""Networks that are in no corpus and no test, after their publications, for ``superopt discover --from``.

    python tests/discovery/blind.py FOLDER [SEED] [COUNT]     # draws COUNT of them by SEED, and writes FOLDER/NAME.onnx

Random weights, published wiring, few blocks: what is asked is which rewrites their operators allow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

import numpy as np

from superopt.formats import save
from superopt.frontend import GraphBuilder, Tensor
from superopt.ir.graph import Graph


class Net(GraphBuilder):
    """A builder that numbers its weights."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.numbers = count()

    def param(self, name: str, shape: Sequence[int], scale: float = 1.0) -> Tensor:
        """A random weight."""
        return self.weight(f"{name}{next(self.numbers)}", shape, scale=scale)


def conv(
    b: Net, x: Tensor, cin: int, cout: int, k: int, *, stride: int = 1, groups: int = 1, axes: int = 2,
    pad: int | None = None, bias: bool = True, dilation: int = 1,
) -> Tensor:  # fmt: skip
    half = dilation * (k // 2) if pad is None else pad
    kernel = b.param("k", (cout, cin // groups, *(k,) * axes), scale=0.1)
    return b.op(
        "Conv", x, kernel, *([b.param("c", (cout,), scale=0.1)] if bias else []), strides=[stride] * axes,
        pads=[half] * 2 * axes, dilations=[dilation] * axes, group=groups,
    )  # fmt: skip


def batch_norm(b: Net, x: Tensor, c: int) -> Tensor:
    s, t, m = (b.param(n, (c,), scale=0.3) for n in ("s", "t", "m"))
    v = b.constant(np.linspace(0.5, 1.5, c).astype(np.float32))
    return b.op("BatchNormalization", x, s, t, m, v, epsilon=1e-5)


def gelu(x: Tensor) -> Tensor:
    return x * ((x / float(np.float32(2**0.5))).erf() + 1.0) * 0.5


def linear(b: Net, x: Tensor, k: int, n: int) -> Tensor:
    return x @ b.param("w", (k, n), scale=0.1) + b.param("c", (n,), scale=0.1)


def resmlp() -> Graph:
    """ResMLP (Touvron 2021): affine instead of normalisation, a linear layer across patches, layer scale."""
    b, n, d = Net("resmlp"), 196, 384
    x = b.input("tokens", "float32", (1, n, d))
    for _ in range(3):
        y = x * b.param("alpha", (d,)) + b.param("beta", (d,))
        y = linear(b, y.transpose(0, 2, 1), n, n).transpose(0, 2, 1)
        x = x + y * b.param("gamma", (d,))
        y = x * b.param("alpha", (d,)) + b.param("beta", (d,))
        x = x + linear(b, gelu(linear(b, y, d, 4 * d)), 4 * d, d) * b.param("gamma", (d,))
    b.output(x, "out")
    return b.build()


def poolformer() -> Graph:
    """PoolFormer (Yu 2022): the token mixer is a pool less its input; layer scale."""
    b, d = Net("poolformer"), 64
    x = conv(b, b.input("image", "float32", (1, 3, 128, 128)), 3, d, 7, stride=4, pad=2)
    for _ in range(3):
        y = batch_norm(b, x, d)
        pooled = b.op("AveragePool", y, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1], count_include_pad=1)
        x = x + (pooled - y) * b.param("scale", (d, 1, 1))
        y = conv(b, gelu(conv(b, batch_norm(b, x, d), d, 4 * d, 1)), 4 * d, d, 1)
        x = x + y * b.param("scale", (d, 1, 1))
    b.output(x, "out")
    return b.build()


def edsr() -> Graph:
    """EDSR (Lim 2017): residual blocks scaled by 0.1, a mean that is taken away and added again, sub-pixel output."""
    b, d = Net("edsr"), 64
    mean = b.constant(np.array([[[114.4]], [[111.5]], [[103.0]]], np.float32))
    x = conv(b, (b.input("image", "float32", (1, 3, 48, 48)) - mean) / 1.0, 3, d, 3)
    head = x
    for _ in range(4):
        x = conv(b, conv(b, x, d, d, 3).relu(), d, d, 3) * 0.1 + x
    x = conv(b, conv(b, x, d, d, 3) + head, d, 4 * d, 3)
    x = conv(b, b.op("DepthToSpace", x, blocksize=2, mode="CRD"), d, 3, 3)
    b.output(x + mean, "out")
    return b.build()


def r3d() -> Graph:
    """A pre-activation ResNet over video (Hara 2018): 3-D convolutions with normalisation."""
    b, d = Net("r3d"), 32
    x = conv(b, b.input("clip", "float32", (1, 3, 8, 56, 56)), 3, d, 3, axes=3, stride=2, bias=False)
    x = batch_norm(b, x, d).relu()
    for _ in range(3):
        y = batch_norm(b, conv(b, x, d, d, 3, axes=3, bias=False), d).relu()
        y = batch_norm(b, conv(b, y, d, d, 3, axes=3, bias=False), d)
        x = (y + batch_norm(b, conv(b, x, d, d, 1, axes=3, bias=False), d)).relu()
    b.output(x, "out")
    return b.build()


def convmixer() -> Graph:
    """ConvMixer (Trockman 2022): activations before normalisation."""
    b, d = Net("convmixer"), 128
    x = conv(b, b.input("image", "float32", (1, 3, 112, 112)), 3, d, 7, stride=7, pad=0)
    x = batch_norm(b, gelu(x), d)
    for _ in range(4):
        x = batch_norm(b, gelu(conv(b, x, d, d, 5, groups=d)), d) + x
        x = batch_norm(b, gelu(conv(b, x, d, d, 1)), d)
    b.output(x, "out")
    return b.build()


def nfnet() -> Graph:
    """NFNet (Brock 2021): scaled residual branches, scaled activations, no normalisation."""
    b, d = Net("nfnet"), 64
    x = conv(b, b.input("image", "float32", (1, 3, 64, 64)), 3, d, 3, stride=2)
    for block in range(4):
        y = (x * float(np.float32(1 / (1 + 0.04 * block) ** 0.5))).relu() * 1.7139588594436646
        y = conv(b, y, d, d // 2, 1).relu() * 1.7139588594436646
        y = conv(b, y, d // 2, d // 2, 3).relu() * 1.7139588594436646
        y = conv(b, y, d // 2, d, 1)
        x = x + y * 2.0 * b.param("gain", ()) * 0.2
    b.output(x, "out")
    return b.build()


def siren() -> Graph:
    """SIREN (Sitzmann 2020): sines of scaled linear layers."""
    b, d = Net("siren"), 256
    x = b.input("points", "float32", (4096, 2))
    for layer in range(4):
        x = b.op("Sin", linear(b, x, d if layer else 2, d) * 30.0)
    b.output(linear(b, x, d, 3), "out")
    return b.build()


def deep_cross() -> Graph:
    """DCN-V2 (Wang 2021): cross layers x₀ ⊙ (W x + b) + x, of low rank, beside a deep tower."""
    b, d, r = Net("deep_cross"), 416, 64
    first = b.input("features", "float32", (256, d))
    x = first
    for _ in range(3):
        x = first * (x @ b.param("v", (d, r), scale=0.1) @ b.param("u", (r, d), scale=0.1) + b.param("c", (d,))) + x
    y = batch_norm(b, linear(b, first, d, 256), 256).relu()
    y = batch_norm(b, linear(b, y, 256, 128), 128).relu()
    b.output(linear(b, b.op("Concat", x, y, axis=1), d + 128, 1), "out")
    return b.build()


def tcn() -> Graph:
    """A temporal convolutional network (Lea 2017) with normalisation and parallel dilated branches."""
    b, d = Net("tcn"), 64
    x = conv(b, b.input("signal", "float32", (1, 16, 512)), 16, d, 1, axes=1)
    for block in range(3):
        y = conv(b, x, d, d, 3, axes=1, dilation=1 << block) + conv(b, x, d, d, 3, axes=1)
        x = x + conv(b, batch_norm(b, y, d).relu(), d, d, 1, axes=1) * b.param("gain", (d, 1))
    b.output(x, "out")
    return b.build()


def inpainting() -> Graph:
    """A U-shaped denoiser after DnCNN (Zhang 2017): normalised input, averaged skips."""
    b, d = Net("inpainting"), 48
    image = b.input("image", "float32", (1, 3, 96, 96))
    x = conv(b, (image - b.param("mean", (3, 1, 1))) / 0.25, 3, d, 1)
    for _ in range(3):
        y = batch_norm(b, conv(b, x, d, d, 3, bias=False), d).relu()
        z = conv(b, x, d, d, 1) * 0.5
        x = (conv(b, y, d, d, 3) + z + x) * 0.5
    b.output(image - conv(b, x, d, 3, 3), "out")
    return b.build()


def autoencoder() -> Graph:
    """A tabular autoencoder with a linear bottleneck and standardised features."""
    b, d = Net("autoencoder"), 512
    x = (b.input("rows", "float32", (128, d)) - b.param("mean", (d,))) / b.param("std", (d,))
    y = linear(b, linear(b, linear(b, x, d, 256).relu(), 256, 64), 64, 256).relu()
    y = batch_norm(b, linear(b, y, 256, d), d)
    b.output(y * b.param("std", (d,)) + b.param("mean", (d,)), "out")
    return b.build()


NETWORKS: Mapping[str, Callable[[], Graph]] = {
    f.__name__: f
    for f in (
        resmlp, poolformer, edsr, r3d, convmixer, nfnet, siren, deep_cross, tcn, inpainting, autoencoder,
    )
}  # fmt: skip


def main(folder: str, seed: str = "18", most: str = "12") -> None:
    """Write the networks that a seed draws."""
    names = np.random.default_rng(int(seed)).permutation(sorted(NETWORKS))[: int(most)]
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name in names:
        save(NETWORKS[str(name)](), Path(folder) / f"{name}.onnx", force=True)
        print(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
