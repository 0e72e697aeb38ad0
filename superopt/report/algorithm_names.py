"""What fast algorithms are called (Winograd's, Strassen's), their facts as JSON data, and which of them words mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from superopt.rules.bilinear import BilinearAlgorithm, algorithms

__all__ = ["algorithm_data", "algorithm_name", "search_algorithms"]

_STRASSEN = 7  # products of 2 × 2 × 2, and of its nesting seven times as many
_WORDS: Mapping[str, tuple[str, ...]] = {  # by the first part of a tile's name: what the literature calls them
    "conv": ("winograd", "toom", "cook", "toom-cook", "minimal", "filtering", "convolution", "cnn"),
    "matmul": ("strassen", "matrix", "multiplication", "product", "gemm", "linear", "laderman"),
    "complex": ("karatsuba", "gauss", "complex", "multiplication"),
}
_COMMON = ("fast", "algorithm", "algorithms", "bilinear", "fewer", "multiplications")
_OPERATORS: Mapping[str, str] = {"conv": "Conv", "matmul": "MatMul", "complex": "Mul"}


def algorithm_name(algorithm: BilinearAlgorithm) -> str:
    """``Winograd F(4, 3) for Conv``, ``Strassen 2×2×2 for MatMul``."""
    kind, *sizes = algorithm.tile.name.split(":")
    if kind == "conv":
        outputs, taps, *strides = sizes
        return f"Winograd F({outputs}, {taps}{f'; stride {strides[0]}' if strides else ''}) for Conv"
    if kind == "matmul":
        known = "Strassen " if set(sizes) in ({"2"}, {"4"}) and algorithm.rank % _STRASSEN == 0 else ""
        return f"{known}{'×'.join(sizes)} for MatMul"
    return "Karatsuba’s product of complex numbers"


def _direct(algorithm: BilinearAlgorithm) -> int:
    """Multiplications of the operator's definition on its tile."""
    kind, *sizes = algorithm.tile.name.split(":")
    numbers = [int(size) for size in sizes]
    if kind == "conv":
        return numbers[0] * numbers[1]
    return numbers[0] * numbers[1] * numbers[2] if kind == "matmul" else 4


@lru_cache(maxsize=64)
def algorithm_data(name: str) -> Mapping[str, Any] | None:
    """An algorithm as JSON data; nothing where there is none of this name.

    Args:
        name: of its tile, ``conv:4:3``.
    """
    found = algorithms().get(name)
    if found is None:
        return None
    kind = name.partition(":")[0]
    return {
        "id": name, "name": algorithm_name(found), "operator": _OPERATORS[kind], "known_as": list(_WORDS[kind][:2]),
        "forall": {**found.tile.data, **found.tile.weights}, "computes": list(found.tile.roots),
        "multiplications": found.rank, "direct_multiplications": _direct(found),
        "operations": dict(zip(("data", "weights", "outputs"), found.operations, strict=True)),
        "error_growth": {"root_mean_square": round(found.growth, 3), "bound": round(found.bound, 3)},
        "matrices": {key: [[str(v) for v in row] for row in matrix] for key, matrix in
                     (("data", found.data), ("weights", found.weights), ("outputs", found.outputs))},
        "origin": dict(found.origin),
        "links": {"self": f"/v1/algorithms/{name}", "page": f"/algorithms/{name}"},
    }  # fmt: skip


def search_algorithms(words: str) -> Sequence[Mapping[str, Any]]:
    """The algorithms that fit every word: of their names, operators, tiles, and the names of the literature.

    Args:
        words: separated by blanks; without any, all algorithms.
    """
    asked = words.lower().split()
    every = [data for name in algorithms() if (data := algorithm_data(name)) is not None]
    return [data for data in every if all(_fits(word, data) for word in asked)]


def _fits(word: str, data: Mapping[str, Any]) -> bool:
    kind = data["id"].partition(":")[0]
    text = f"{data['name']} {data['id']} {data['operator']}".lower()
    return word in text or any(known.startswith(word) for known in (*_WORDS[kind], *_COMMON))
