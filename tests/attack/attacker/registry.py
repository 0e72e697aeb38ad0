"""The motifs by group: each builds one model's worth of nodes from a seeded :class:`Build`."""

from __future__ import annotations

from collections.abc import Callable

from attacker.build import Build

Motif = Callable[[Build], None]
MOTIFS: dict[str, dict[str, Motif]] = {
    "folding": {}, "rounding": {}, "ranges": {}, "branches": {}, "structure": {}, "blocks": {},
}  # fmt: skip
SINGLE: set[str] = set()  # motifs whose operators ONNX Runtime has in float32 only


def motif(group: str, *, single: bool = False) -> Callable[[Motif], Motif]:
    """Register a motif under its function's name."""

    def register(function: Motif) -> Motif:
        name = function.__name__
        assert all(name not in motifs for motifs in MOTIFS.values()), name
        MOTIFS[group][name] = function
        if single:
            SINGLE.add(name)
        return function

    return register
