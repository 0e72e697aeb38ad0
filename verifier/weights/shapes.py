"""Shapes that values are drawn at: short where no claim is about an axis and all operators take it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from superopt.ir.errors import SuperoptError
from superopt.ir.types import TensorType
from superopt.ops.meaning import IllTyped
from superopt.rules.values import Certificate
from superopt.verifier.weights.draws import Claims, Side, fixed_shape

__all__ = ["Shapes"]


@dataclass(frozen=True)
class Shapes:
    """Shapes of values of the model.

    Attributes:
        before: the model.
        certificate: whose axes keep their lengths.
        claims: its claims, by value.
    """

    before: Side
    certificate: Certificate
    claims: Mapping[str, Claims]

    def drawn_shapes(self, sources: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Shapes of drawn values."""
        drawn = [n for n in dict.fromkeys(sources) if not self.before.constant(n)]
        return {n: fixed_shape(self.before.kind(n)) for n in drawn}

    def small(self, wanted: Sequence[str], sources: Iterable[str], length: int) -> Mapping[str, tuple[int, ...]] | None:
        """Shapes of drawn values with long axes made short where no claim is about them; ``None`` where the operators
        do not allow it, or none is long."""
        own = self.drawn_shapes(sources)
        fixed = {
            int(d) for n in self._near(wanted, list(own)) for d in self.before.kind(n).shape or () if isinstance(d, int)
        }
        claimed = {(n, a) for n in own for a in self._of(n).axes}
        claimed |= {(k.value, a) for k in self.certificate.kept for a, _ in k.axes}
        shapes = {
            n: tuple(
                length if d > length and d not in fixed and (n, a) not in claimed else d for a, d in enumerate(shape)
            )
            for n, shape in own.items()
        }
        return shapes if shapes != own and self._fits(wanted, shapes) else None

    def _of(self, name: str) -> Claims:
        return self.claims.get(name, Claims())

    def _near(self, wanted: Sequence[str], drawn: Sequence[str]) -> set[str]:
        """The constants that are read on the way from drawn values to those wanted."""
        found, stack, seen = set[str](), list(wanted), set(drawn)
        while stack:
            name = stack.pop()
            node = self.before.node(name)
            if name in seen or node is None:
                continue
            seen.add(name)
            for read in node.reads:
                (found.add if self.before.constant(read) else stack.append)(read)
        return found

    def _fits(self, wanted: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether the operators on the way take these shapes and give results of the same kept sizes."""
        types: dict[str, TensorType] = {n: TensorType(self.before.kind(n).dtype, s) for n, s in shapes.items()}
        stack = list(wanted)
        try:
            while stack:
                name = stack[-1]
                if name in types or self.before.node(name) is None:
                    types.setdefault(name, self.before.kind(name))
                    stack.pop()
                    continue
                how = self.before.applied(name)
                missing = [a for a in how.args if a is not None and a not in types]
                if missing:
                    stack += missing
                    continue
                given = [None if a is None else types[a] for a in how.args]
                made = how.operator.apply(given, self.before.attributes(how))[1]
                outputs = self.before.graph.nodes[self.before.nodes[name]].outputs
                types.update((o, t) for o, t in zip(outputs, made, strict=False) if o)
        except (IllTyped, SuperoptError):
            return False
        kept = {(k.value, a) for k in self.certificate.kept for a, _ in k.axes}
        kept |= {(n, a) for n in wanted for a in self._of(n).axes}
        return all(
            (types[n].shape or ())[a] == (self.before.kind(n).shape or ())[a]
            for n, a in kept if n in types
        )  # fmt: skip
