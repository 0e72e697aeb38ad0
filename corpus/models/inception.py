"""Inception-v3: parallel branches of factorised convolutions."""

from __future__ import annotations

from corpus.models.layers import average_pool, concat, conv_bn, gemm, global_pool, max_pool
from superopt.frontend import GraphBuilder, SymbolicTensor
from superopt.ir.graph import Graph

EPSILON = 1e-3


class _Net:
    """Widths divided by ``divide``; every convolution is followed by BatchNormalization and ReLU."""

    def __init__(self, b: GraphBuilder, divide: int) -> None:
        self.b = b
        self.divide = divide

    def cbr(
        self, x: SymbolicTensor, name: str, cin: int, cout: int, kernel: int | tuple[int, int], stride: int = 1,
        pad: int | None = None,
    ) -> SymbolicTensor:  # fmt: skip
        cin = cin if cin == 3 else cin // self.divide
        return conv_bn(self.b, x, name, cin, cout // self.divide, kernel, stride=stride, pad=pad, epsilon=EPSILON)

    def a(self, x: SymbolicTensor, cin: int, pool: int) -> SymbolicTensor:
        """35×35: 1×1 | 1×1, 5×5 | 1×1, 3×3, 3×3 | pool, 1×1."""
        y5 = self.cbr(self.cbr(x, "5x5_1", cin, 48, 1), "5x5_2", 48, 64, 5)
        y3 = self.cbr(self.cbr(self.cbr(x, "3x3_1", cin, 64, 1), "3x3_2", 64, 96, 3), "3x3_3", 96, 96, 3)
        yp = self.cbr(average_pool(self.b, x, 3, 1, 1), "pool", cin, pool, 1)
        return concat(self.b, [self.cbr(x, "1x1", cin, 64, 1), y5, y3, yp])

    def reduce_a(self, x: SymbolicTensor, cin: int) -> SymbolicTensor:
        y3 = self.cbr(x, "3x3", cin, 384, 3, 2, 0)
        yd = self.cbr(self.cbr(x, "dbl_1", cin, 64, 1), "dbl_2", 64, 96, 3)
        return concat(self.b, [y3, self.cbr(yd, "dbl_3", 96, 96, 3, 2, 0), max_pool(self.b, x, 3, 2)])

    def c(self, x: SymbolicTensor, cin: int, mid: int) -> SymbolicTensor:
        """17×17: 7×7 factorised into 1×7 and 7×1."""
        y7 = self.cbr(self.cbr(x, "7x7_1", cin, mid, 1), "7x7_2", mid, mid, (1, 7))
        y7 = self.cbr(y7, "7x7_3", mid, 192, (7, 1))
        yd = self.cbr(self.cbr(x, "dbl_1", cin, mid, 1), "dbl_2", mid, mid, (7, 1))
        yd = self.cbr(self.cbr(yd, "dbl_3", mid, mid, (1, 7)), "dbl_4", mid, mid, (7, 1))
        yd = self.cbr(yd, "dbl_5", mid, 192, (1, 7))
        yp = self.cbr(average_pool(self.b, x, 3, 1, 1), "pool", cin, 192, 1)
        return concat(self.b, [self.cbr(x, "1x1", cin, 192, 1), y7, yd, yp])

    def reduce_c(self, x: SymbolicTensor, cin: int) -> SymbolicTensor:
        y3 = self.cbr(self.cbr(x, "3x3_1", cin, 192, 1), "3x3_2", 192, 320, 3, 2, 0)
        y7 = self.cbr(self.cbr(x, "7x7_1", cin, 192, 1), "7x7_2", 192, 192, (1, 7))
        y7 = self.cbr(self.cbr(y7, "7x7_3", 192, 192, (7, 1)), "7x7_4", 192, 192, 3, 2, 0)
        return concat(self.b, [y3, y7, max_pool(self.b, x, 3, 2)])

    def e(self, x: SymbolicTensor, cin: int) -> SymbolicTensor:
        """8×8: 3×3 split into parallel 1×3 and 3×1."""
        y3 = self.cbr(x, "3x3_1", cin, 384, 1)
        y3 = concat(self.b, [self.cbr(y3, "3x3_2a", 384, 384, (1, 3)), self.cbr(y3, "3x3_2b", 384, 384, (3, 1))])
        yd = self.cbr(self.cbr(x, "dbl_1", cin, 448, 1), "dbl_2", 448, 384, 3)
        yd = concat(self.b, [self.cbr(yd, "dbl_3a", 384, 384, (1, 3)), self.cbr(yd, "dbl_3b", 384, 384, (3, 1))])
        yp = self.cbr(average_pool(self.b, x, 3, 1, 1), "pool", cin, 192, 1)
        return concat(self.b, [self.cbr(x, "1x1", cin, 320, 1), y3, yd, yp])


def inception_v3(name: str, *, divide: int = 1, size: int = 299, classes: int = 1000) -> Graph:
    """torchvision's inception_v3 at inference (no auxiliary head); ``divide`` makes every width smaller."""
    b = GraphBuilder(name)
    net = _Net(b, divide)
    x = net.cbr(b.input("image", "float32", (1, 3, size, size)), "stem1", 3, 32, 3, 2, 0)
    x = net.cbr(net.cbr(x, "stem2", 32, 32, 3, 1, 0), "stem3", 32, 64, 3)
    x = net.cbr(net.cbr(max_pool(b, x, 3, 2), "stem4", 64, 80, 1, 1, 0), "stem5", 80, 192, 3, 1, 0)
    x, cin = max_pool(b, x, 3, 2), 192
    for index, pool in enumerate((32, 64, 64)):
        with b.scope(f"mixed_5{'bcd'[index]}"):
            x = net.a(x, cin, pool)
        cin = 224 + pool
    with b.scope("mixed_6a"):
        x, cin = net.reduce_a(x, cin), 768
    for index, mid in enumerate((128, 160, 160, 192)):
        with b.scope(f"mixed_6{'bcde'[index]}"):
            x = net.c(x, cin, mid)
    with b.scope("mixed_7a"):
        x, cin = net.reduce_c(x, cin), 1280
    for letter in "bc":
        with b.scope(f"mixed_7{letter}"):
            x, cin = net.e(x, cin), 2048
    b.output(gemm(b, global_pool(b, x), "fc", cin // divide, classes), "logits", shape=(1, classes))
    return b.build()
