"""What an algorithm says about operators of every size, as a rule of the library's grammar, for the prover.

An algorithm for a tile of one axis becomes a rule about a convolution of any number of channels, of an image of any
number of tiles; with a second axis, of any size and any number of taps, to which another rule (or this one) applies
again: so nested algorithms for images follow from those for one axis, and partly nested ones too. An algorithm for a
block product becomes a rule about matrices of blocks of any sizes. Fractions are divisions by whole numbers, because
the text of a rule has no other exact ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from superopt.rules.bilinear import Algorithm, Tile
from superopt.rules.grammar import parse_rule
from superopt.rules.rule import Rule

__all__ = ["rule_of"]


def rule_of(algorithm: Algorithm, *, spatial: int = 1) -> Rule | None:
    """The rule for all sizes; ``None`` for a tile that it would not generalise.

    Args:
        algorithm: for a convolution along one axis, or a product of matrices.
        spatial: axes of the image (1 or 2) that a convolution is stated for; the algorithm is along the first.
    """
    tile = algorithm.tile
    if tile.name.startswith("conv:") and len(tile.shapes["x"]) == 3:
        return _conv(algorithm, spatial)
    return _matmul(algorithm) if tile.roots == ("MatMul(x, w)",) else None


def _conv(algorithm: Algorithm, spatial: int) -> Rule:
    outputs, taps = len(algorithm.outputs), len(algorithm.weights[0])
    stride = algorithm.tile.stride
    step = stride * outputs  # from a tile to the next
    more = (", l", ", k") if spatial == 2 else ("", "")
    forall = {"x": f"f[n, c, {step}*t + {taps - stride}{more[0]}]", "w": f"f[o, c, {taps}{more[1]}]"}
    data = [
        f"Slice(x, starts=[{i}], ends=[{step}*t - {step - 1 - i}], axes=[2], steps=[{step}])"
        for i in range(step - stride + taps)
    ]
    weights = [f"Slice(w, starts=[{j}], ends=[{j + 1}], axes=[2], steps=[1])" for j in range(taps)]
    parts = [f"Unsqueeze({z}, axes=[3])" for z in _outputs(algorithm, data, weights, "Conv")]
    shape = f"[n, o, {outputs}*t{', l - k + 1' if spatial == 2 else ''}]"
    whole = f"Reshape(Concat({', '.join(parts)}, axis=3), shape={shape})" if outputs > 1 else parts[0]
    attributes = f", strides=[{stride}{', 1' if spatial == 2 else ''}]" if stride > 1 else ""
    return _rule(algorithm.tile, forall, f"Conv(x, w{attributes})", whole)


def _matmul(algorithm: Algorithm) -> Rule:
    (p, q), (_, s) = algorithm.tile.shapes.values()
    forall = {"x": f"f[{p}*m, {q}*k]", "w": f"f[{q}*k, {s}*n]"}
    data = [_block("x", i, "m", j, "k") for i in range(p) for j in range(q)]
    weights = [_block("w", i, "k", j, "n") for i in range(q) for j in range(s)]
    made = _outputs(algorithm, data, weights, "MatMul")
    lines = [_joined(made[i * s : (i + 1) * s], 1) for i in range(p)]
    return _rule(algorithm.tile, forall, "MatMul(x, w)", _joined(lines, 0))


def _rule(tile: Tile, forall: dict[str, str], left: str, right: str) -> Rule:
    name = tile.name.replace(":", "-")
    row = {"id": f"bilinear-{name}", "forall": forall, "lhs": [left], "rhs": [right], "origin": "discovered (bilinear)"}
    return parse_rule(row, where=tile.name, family="bilinear")


def _block(name: str, row: int, rows: str, column: int, columns: str) -> str:
    starts, ends = f"[{row}*{rows}, {column}*{columns}]", f"[{row + 1}*{rows}, {column + 1}*{columns}]"
    return f"Slice({name}, starts={starts}, ends={ends}, axes=[0, 1], steps=[1, 1])"


def _joined(parts: Sequence[str], axis: int) -> str:
    return parts[0] if len(parts) == 1 else f"Concat({', '.join(parts)}, axis={axis})"


def _outputs(algorithm: Algorithm, data: Sequence[str], weights: Sequence[str], product: str) -> list[str]:
    products = [
        f"{product}({_sum(a, data)}, {_sum(b, weights)})"
        for a, b in zip(algorithm.data, algorithm.weights, strict=True)
    ]
    return [_sum(row, products) for row in algorithm.outputs]


def _sum(row: Sequence[Fraction], terms: Sequence[str]) -> str:
    """A sum of multiples, positive ones first."""
    some = sorted(((c, t) for c, t in zip(row, terms, strict=True) if c), key=lambda part: part[0] < 0)
    total = ""
    for factor, term in some:
        part = _multiple(factor if not total else abs(factor), term)
        total = f"{'Add' if factor > 0 else 'Sub'}({total}, {part})" if total else part
    return total


def _multiple(factor: Fraction, term: str) -> str:
    times = term if factor.numerator == 1 else f"Mul({term}, {float(factor.numerator)!r})"
    return times if factor.denominator == 1 else f"Div({times}, {float(factor.denominator)!r})"
