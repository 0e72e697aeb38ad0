"""Constants computed from weights: evaluated once, in float64, and rounded to their type.

Evaluation is lazy, like the reading of weights: a folded weight holds the steps that make it, so a model of gigabytes
is never in memory twice. Only what is small is kept once it has been computed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from superopt.ir.graph import Weight, WeightData
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.runtime.reference import at_dtype, evaluate_application
from superopt.search.program import Program, Step

__all__ = ["FoldedData", "foldable", "folded"]

_TOLD = 64  # steps up to which a weight says how it was computed
_KEPT = 32 << 20  # bytes up to which an evaluated weight stays in memory


@dataclass(frozen=True, eq=False)
class FoldedData:
    """Elements of a weight that is computed from others.

    Attributes:
        steps: what computes it, in order, over values named by weights and each other.
        sources: weights that the steps read.
        output: the value that is wanted.
    """

    steps: tuple[Step, ...]
    sources: Mapping[str, WeightData]
    types: Mapping[str, TensorType]
    output: str

    @cached_property
    def digest(self) -> str:
        """Equal for equal computations on equal weights."""
        return self.described({n: d.digest for n, d in self.sources.items()})

    def described(self, sources: Mapping[str, str]) -> str:
        """Equal for equal computations on weights that are called equal."""
        key: dict[str, str] = {n: f"{self.types[n]} {sources.get(n, n)}" for n in self.sources}
        for step in self.steps:
            args = ",".join("-" if a is None else key[a] for a in step.args)
            text = hashlib.sha256(f"{step.op}({args}){step.attributes!r}".encode()).hexdigest()
            key.update((o, f"{text}.{i}") for i, o in enumerate(step.outputs) if o)
        return key[self.output]

    @cached_property
    def _kept(self) -> list[np.ndarray]:
        return []

    def numpy(self) -> np.ndarray:
        """Evaluate: reals in float64 throughout, rounded once at the end."""
        if self._kept:
            return self._kept[0]
        values: dict[str, np.ndarray] = {}
        last = {a: i for i, s in enumerate(self.steps) for a in s.args if a is not None}
        for position, step in enumerate(self.steps):
            operands = [None if a is None else self._operand(a, values) for a in step.args]
            types = [None if a is None else self.types[a] for a in step.args]
            wanted = [i for i, o in enumerate(step.outputs) if o]
            results = evaluate_application(
                REGISTRY[step.op], dict(step.attributes), operands, types, cast=False, wanted=wanted
            )
            values.update((o, r) for o, r in zip(step.outputs, results, strict=False) if o and r is not None)
            for name in [n for n in values if last.get(n, len(self.steps)) <= position and n != self.output]:
                del values[name]
        with np.errstate(over="ignore"):
            result = at_dtype(values[self.output], self.types[self.output].dtype)
        if result.nbytes <= _KEPT:
            self._kept.append(result)
        return result

    def _operand(self, name: str, values: Mapping[str, np.ndarray]) -> np.ndarray:
        if name in values:
            return values[name]
        return np.asarray(self.sources[name].numpy())


def foldable(program: Program, wanted: Iterable[str]) -> dict[str, tuple[Step, ...]]:
    """For each wanted constant that steps compute from weights with elements: those steps, in order."""
    available = {n for n, w in program.graph.constants.items() if w.data is not None}
    found: dict[str, tuple[Step, ...]] = {}
    for name in wanted:
        needed, stack, complete = set[int](), [name], True
        while stack and complete:
            position = program.maker.get(here := stack.pop())
            if position is None:
                complete = here in available
            elif position not in needed:
                needed.add(position)
                stack.extend(a for a in program.steps[position].args if a is not None)
        if complete and needed and all(program.is_constant(program.steps[i]) for i in needed):
            found[name] = tuple(program.steps[i] for i in sorted(needed))
    return found


def folded(program: Program, name: str, steps: Sequence[Step]) -> Weight:
    """A weight that is computed when it is read."""
    constants = program.graph.constants
    reads = {a for s in steps for a in s.args if a is not None}
    sources = {a: data for a in sorted(reads) if a in constants and (data := constants[a].data) is not None}
    names = reads | {o for s in steps for o in s.outputs if o}
    data = FoldedData(tuple(steps), sources, {n: program.types[n] for n in names}, name)
    rules = sorted({r for s in steps for r in s.rules})
    metadata = {"superopt.value": _provenance(data)} if len(steps) <= _TOLD else {}
    if rules:
        metadata["superopt.rules"] = ",".join(rules)
    return Weight(name, program.types[name], data, metadata={**metadata, "x-precomputed": "true"})


def _provenance(data: FoldedData) -> str:
    """How a weight was computed, as JSON that `superopt verify` checks and proves with: steps over names of weights."""
    steps = [[s.op, list(s.args), dict(s.attributes), list(s.outputs)] for s in data.steps]
    return json.dumps({"steps": steps, "output": data.output}, default=str)
