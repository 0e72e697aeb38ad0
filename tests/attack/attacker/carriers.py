"""What stands around a motif so that there is something to rewrite: exact movements, and readers of constants."""

from __future__ import annotations

from attacker.build import Build


def exactly(b: Build, x: str, rank: int) -> str:
    """``x`` through data movement that changes no bit, in a form that a rewriter takes away."""
    choice = int(b.rng.integers(6))
    if choice == 0 and rank > 1:
        order = list(b.rng.permutation(rank))
        back = [order.index(i) for i in range(rank)]
        return b.op("Transpose", b.op("Transpose", x, perm=[int(i) for i in order]), perm=back)
    if choice == 1:
        return b.op("Neg", b.op("Neg", x))
    if choice == 2:
        return b.op("Identity", b.op("Identity", x))
    if choice == 3:
        return b.op("Squeeze", b.op("Unsqueeze", x, b.ints(0)), b.ints(0))
    if choice == 4:
        first, second = b.ops("Split", b.op("Concat", x, x, axis=0), count=2, axis=0, **_halves(b))
        return first if b.maybe() else second
    return b.op("Reshape", b.op("Reshape", x, b.ints(-1)), b.op("Shape", x))


def _halves(b: Build) -> dict[str, int]:
    return {"num_outputs": 2} if b.opset >= 18 else {}


def around(b: Build, x: str, rank: int, share: float = 0.7) -> str:
    """Often :func:`exactly`."""
    return exactly(b, x, rank) if b.maybe(share) else x


def consume(b: Build, c: str, shape: tuple[int, ...]) -> None:
    """Outputs that read the constant ``c`` of that shape (a vector or matrix of floats) beside a running input."""
    n = shape[-1]
    choice = int(b.rng.integers(6))
    if choice == 0:
        x = b.input(b.size(1, 2, 3), shape[0])
        matrix = c if len(shape) > 1 else b.op("Unsqueeze", c, b.ints(1))
        y = b.op("MatMul", x, matrix)
        y = b.op("Add", y, b.weight(1)) if b.maybe() else y
    elif choice == 1:
        x = b.input(*(shape if len(shape) > 1 else (2, n)))
        y = b.op("Mul", b.op("Mul", x, c), b.weight(n))
    elif choice == 2:
        x = b.input(*shape)
        y = b.op("Where", b.op("Greater", x, c), x, c)
    elif choice == 3:
        x = b.input(*shape)
        y = b.op("Concat", x, c, axis=0)
    elif choice == 4:
        x = b.input(3, *shape)
        y = b.op("Add", b.op("Add", x, c), b.op("Neg", b.weight(*shape)))
    else:
        x = b.input(*shape)
        y = b.op("Sub", b.op("Relu", x), b.op("Neg", c))
        b.output(c)
    b.output(around(b, y, len(shape) + (choice == 4), 0.8))
