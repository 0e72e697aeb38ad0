"""Strings to feed: those that a model compares with, others like them, and numbers where they are read as such."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from superopt.ir.graph import Graph, Weight
from superopt.ir.types import DType

__all__ = ["draw_strings", "strings_of"]

_PLAIN = ("", "a", "b", "A", " ", "ab", "one two", "é", "日本", "0", "-1", "2.5")
_NUMBERS = ("0", "1", "-1", "2.5", "-0.125", "1e3", "7", "100")
_MOST = 64  # strings of one model
_READ = 1 << 16  # elements of a constant that is looked at


def strings_of(graph: Graph) -> list[str]:
    """Strings that a model's constants and attributes hold."""
    return list(dict.fromkeys(_string_constants(graph)))[:_MOST]


def draw_strings(
    graph: Graph, shape: tuple[int, ...], words: Sequence[str], numeric: bool, rng: np.random.Generator
) -> np.ndarray:  # fmt: skip
    """An array of strings.

    Args:
        graph: whose words are among them.
        shape: of the array.
        words: others that are.
        numeric: something reads numbers from them.
        rng: draws.
    """
    if numeric:
        return np.asarray(rng.choice(np.array(_NUMBERS, dtype=object), shape), dtype=object)
    own = [*strings_of(graph), *words]
    near = [v for w in own for v in (w, w, w.upper(), w + " ", w[:-1], w + "a")]
    return np.asarray(rng.choice(np.array([*near, *_PLAIN], dtype=object), shape), dtype=object)


def _string_constants(graph: Graph) -> Iterator[str]:
    weights = list(graph.weights)
    for node in graph.nodes:
        for value in node.attributes.values():
            if isinstance(value, Weight):
                weights.append(value)
            elif isinstance(value, bytes):
                yield value.decode(errors="replace")
            elif isinstance(value, tuple):
                yield from (v.decode(errors="replace") for v in value if isinstance(v, bytes))
    for weight in weights:
        few = isinstance(weight.type.elements, int) and weight.type.elements <= _READ
        if weight.type.dtype is DType.STRING and few and weight.data is not None:
            yield from map(_text, weight.data.numpy().reshape(-1)[:_MOST].tolist())


def _text(element: object) -> str:
    return element.decode(errors="replace") if isinstance(element, bytes) else str(element)
