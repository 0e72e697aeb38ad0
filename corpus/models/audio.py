"""Speech and sound: one-dimensional convolutions."""

from __future__ import annotations

from corpus.models.layers import RELU_GAIN, conv
from superopt.frontend import GraphBuilder, SymbolicTensor
from superopt.ir.graph import Graph


def wav2letter(
    name: str, *, width: int = 250, wide: int = 2000, mels: int = 40, time: int = 400, symbols: int = 29
) -> Graph:
    """Wav2Letter on spectra: eleven 1-D convolutions, the last ones very wide."""
    b = GraphBuilder(name)
    x = b.input("spectrum", "float32", (1, mels, time))
    x = conv(b, x, "conv0", mels, width, 48, stride=2, pad=23, bias=True, spatial=1).relu()
    for layer in range(1, 8):
        x = conv(b, x, f"conv{layer}", width, width, 7, bias=True, spatial=1).relu()
    x = conv(b, x, "conv8", width, wide, 31, bias=True, spatial=1).relu()
    x = conv(b, x, "conv9", wide, wide, 1, bias=True, spatial=1).relu()
    x = conv(b, x, "conv10", wide, symbols, 1, bias=True, gain=1.0, spatial=1)
    b.output(x, "scores", shape=(1, symbols, (time - 2) // 2 + 1))
    return b.build()


def _global_norm(b: GraphBuilder, x: SymbolicTensor, name: str, width: int) -> SymbolicTensor:
    """Normalised over channels and time together, then an affine map per channel; written out."""
    with b.scope(name):
        centred = x - x.mean([1, 2])
        spread = ((centred * centred).mean([1, 2]) + 1e-8).sqrt()
        scale = b.weight("weight", (1, width, 1), scale=0.05, offset=1.0)
        return centred / spread * scale + b.weight("bias", (1, width, 1), scale=0.05)


def _prelu(b: GraphBuilder, x: SymbolicTensor, name: str) -> SymbolicTensor:
    return b.op("PRelu", x, b.weight(f"{name}.slope", (1, 1), scale=0.02, offset=0.25))


def conv_tasnet(
    name: str, *, filters: int = 512, kernel: int = 16, bottleneck: int = 128, hidden: int = 512, blocks: int = 8,
    repeats: int = 3, sources: int = 2, samples: int = 8000,
) -> Graph:  # fmt: skip
    """Conv-TasNet: a learned filter bank, dilated depthwise blocks that predict a mask per source, and its inverse."""
    b = GraphBuilder(name)
    stride, frames = kernel // 2, (samples - kernel) // (kernel // 2) + 1
    wave = b.input("mixture", "float32", (1, 1, samples))
    encoded = conv(b, wave, "encoder", 1, filters, kernel, stride=stride, pad=0, spatial=1).relu()
    x = conv(b, _global_norm(b, encoded, "norm", filters), "bottleneck", filters, bottleneck, 1, bias=True, gain=1.0,
             spatial=1)  # fmt: skip
    total: SymbolicTensor | None = None
    for index in range(repeats * blocks):
        last = index + 1 == repeats * blocks
        with b.scope(f"block{index}"):
            y = _prelu(b, conv(b, x, "expand", bottleneck, hidden, 1, bias=True, spatial=1), "prelu1")
            y = _global_norm(b, y, "norm1", hidden)
            y = conv(b, y, "depthwise", hidden, hidden, 3, groups=hidden, dilation=1 << index % blocks, bias=True,
                     spatial=1)  # fmt: skip
            y = _global_norm(b, _prelu(b, y, "prelu2"), "norm2", hidden)
            skip = conv(b, y, "skip", hidden, bottleneck, 1, bias=True, gain=0.3, spatial=1)
            total = skip if total is None else total + skip
            if not last:
                x = x + conv(b, y, "residual", hidden, bottleneck, 1, bias=True, gain=0.3, spatial=1)
    assert total is not None
    mask = conv(b, _prelu(b, total, "prelu"), "mask", bottleneck, sources * filters, 1, bias=True, gain=RELU_GAIN,
                spatial=1).sigmoid()  # fmt: skip
    masked = (mask.reshape(1, sources, filters, frames) * encoded.unsqueeze(1)).reshape(sources, filters, frames)
    w = b.weight("decoder.weight", (filters, 1, kernel), scale=(1 / filters) ** 0.5)
    y = b.op("ConvTranspose", masked, w, kernel_shape=[kernel], strides=[stride], pads=[0, 0], dilations=[1], group=1)
    b.output(y.reshape(1, sources, -1), "sources", shape=(1, sources, (frames - 1) * stride + kernel))
    return b.build()
