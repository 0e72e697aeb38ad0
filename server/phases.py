"""What an optimisation is doing, in words: for the texts of the engine's progress."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["phase_text"]

_ROUND = re.compile(r", phase (\d+)$")
_PHASES: Mapping[str, str] = {
    "loading": "reading the model",
    "merging": "merging parallel operators",
    "merging nearby": "merging operators that read the same data",
    "selecting early": "moving slices before other operators",
    "shortening": "fusing and removing operators",
    "searching": "searching with all rules",
    "closing": "choosing fused operators of the runtime",
    "looking at the weights' elements": "looking for zeros and repeated slices in the weights",
    "looking for fewer multiplications": "looking for fast algorithms (Winograd, Strassen)",
    "measuring operators with fewer multiplications": "measuring operators with fast algorithms",
    "measuring with fewer multiplications": "measuring the model with fast algorithms",
    "measuring": "measuring times on this machine",
    "checking": "checking the result against the original",
    "proving": "proving the result equal to the original",
    "planning memory": "planning memory",
}


def phase_text(what: str) -> str:
    """A phase in words; a text that is none of the engine's names is in words already.

    Args:
        what: the text of a progress message, such as ``searching, phase 4``.
    """
    numbered = _ROUND.search(what)
    name = what[: numbered.start()] if numbered else what
    return _PHASES.get(name, name) + (f", round {numbered[1]}" if numbered else "")
