"""What is known of an equality. Only a proof for all sizes lets a rule into the default library.

>>> verdict_from_json(verdict_to_json(ProvedVerdict(("k % 2 == 1",)))).preconditions
('k % 2 == 1',)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "ProvedVerdict", "RefutedVerdict", "TestedVerdict", "UnknownVerdict", "Verdict", "kind_of", "verdict_from_json",
    "verdict_to_json",
]  # fmt: skip


@dataclass(frozen=True)
class ProvedVerdict:
    """Equal over the reals, at all sizes and attribute values that satisfy the rule's context.

    Attributes:
        preconditions: the rule's own ``where``, under which it was proved.
        derived: what the left side demands beyond the types and ``where`` before it is well-formed, in the grammar of
            ``where`` (``i < j where j <= n``: only there); the search requires it of a match.
        nonzero: scalars whose inverse was cancelled, hence that must not be 0 (text of the expression).
        leading: how ``...`` was proved: "one axis" of any size, which stands for any number of them because every
            operator was shown to read leading axes in place (``superopt.verifier.prover.context``); empty without
            ``...``.
        ranks: the numbers of leading axes at which it was proved, each of any size.
        seconds: wall time of the proof.
        steps: the number of proof steps.
    """

    preconditions: tuple[str, ...] = ()
    nonzero: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    leading: str = ""
    seconds: float = field(default=0.0, compare=False)
    steps: int = field(default=0, compare=False)


@dataclass(frozen=True)
class TestedVerdict:
    """No disagreement in exact random trials; ``bound`` is the probability that a false rule passes them.

    Attributes:
        reason: why it was not proved, where that was tried.
    """

    trials: int
    bound: float
    reason: str = ""
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class RefutedVerdict:
    """A concrete counterexample, as plain JSON data that ``superopt.verifier.exact.counterexample`` can replay."""

    counterexample: Mapping[str, object]
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class UnknownVerdict:
    """Neither proved nor refuted, and why.

    Attributes:
        preconditions: conditions (grammar of ``where``) under which the proof does go through, where they were found.
        refused: what is written says more of sizes than it seems to, or nothing: no trial makes it a rule.
    """

    reason: str
    preconditions: tuple[str, ...] = ()
    refused: bool = False
    seconds: float = field(default=0.0, compare=False)


Verdict = ProvedVerdict | TestedVerdict | RefutedVerdict | UnknownVerdict

_NAMES: Mapping[type, str] = {
    ProvedVerdict: "proved_all_sizes",
    TestedVerdict: "tested",
    RefutedVerdict: "refuted",
    UnknownVerdict: "unknown",
}


def verdict_to_json(verdict: Verdict) -> dict[str, object]:
    """Plain JSON data with the key ``verdict`` naming the kind."""
    data: dict[str, object] = {"verdict": _NAMES[type(verdict)]}
    for name, value in vars(verdict).items():
        data[name] = [dict(v) if isinstance(v, Mapping) else v for v in value] if isinstance(value, tuple) else value
    return data


def verdict_from_json(data: Mapping[str, object]) -> Verdict:
    """The verdict that :func:`verdict_to_json` wrote.

    Raises:
        ValueError: the data is not a verdict.
    """
    kinds = {name: kind for kind, name in _NAMES.items()}
    kind = kinds.get(str(data.get("verdict")))
    if kind is None:
        raise ValueError(f"{data.get('verdict')!r} is not a verdict")
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k != "verdict"}
    try:
        verdict: Verdict = kind(**values)
    except TypeError as error:
        raise ValueError(f"not a {data['verdict']} verdict: {error}") from error
    return verdict


def kind_of(verdict: Verdict) -> str:
    """``proved_all_sizes``, ``tested``, ``refuted`` or ``unknown``."""
    return _NAMES[type(verdict)]
