"""Algorithms with fewer multiplications, found from the meanings of operators (:mod:`superopt.rules.bilinear`)."""

from __future__ import annotations

from superopt.discovery.bilinear.find import TILES, Sought, find, log_of, tile_named

__all__ = ["TILES", "Sought", "find", "log_of", "tile_named"]
