"""A rewrite rule as a value: two tuples of terms that are equal wherever the types and guards hold."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from superopt.ir.size_polynomial import Dim, symbols, value_at
from superopt.ir.terms import AttributeValue, OperatorTerm, Term, VariableTerm, postorder, variables
from superopt.ops.operator_semantics import IndexCondition

__all__ = [
    "CLASSES",
    "AttributeVariableType",
    "RulePrecondition",
    "Rule",
    "TensorVariableType",
    "TypeScheme",
    "attribute_symbols",
]

# Element-type classes of tensor variables. "f": any one of ops.operator_definition.FLOATS, the same for all of a rule.
# "i": int64 positions (Gather); "b": booleans.
CLASSES: Mapping[str, str] = {"f": "float32", "i": "int64", "b": "bool"}


@dataclass(frozen=True)
class TensorVariableType:
    """The type of a tensor variable: ``f[..., m, k]``; every size is at least 1.

    Attributes:
        dtype: a class of :data:`CLASSES`.
        shape: sizes, polynomials over the rule's size and attribute names.
        lead: ``...`` was written: any run of leading axes, the same for every variable of the rule that writes it.
        below: for class ``i``, elements are at least 0 and below this (``i[s]<k``).
    """

    dtype: str
    shape: tuple[Dim, ...]
    lead: bool = False
    below: Dim | None = None


@dataclass(frozen=True)
class AttributeVariableType:
    """The range of an attribute variable: ``int>=1``, ``ints[2]>=0``, ``real>0``.

    Attributes:
        kind: "int" or "real".
        length: number of elements of a vector variable, ``None`` for a single number.
        relation: "" (any), ">=", ">" or "!=", against ``bound``; it holds for every element.
        bound: an integer.
    """

    kind: str
    length: int | None = None
    relation: str = ""
    bound: int = 0

    def allows(self, value: float) -> bool:
        """Whether one element is in the range."""
        match self.relation:
            case ">=":
                return value >= self.bound
            case ">":
                return value > self.bound
            case "!=":
                return value != self.bound
        return True


TypeScheme = TensorVariableType | AttributeVariableType


@dataclass(frozen=True)
class RulePrecondition:
    """A comparison of integer polynomials: a precondition. ``relation`` is one of == != < <= > >=."""

    left: Dim
    relation: str
    right: Dim

    def holds(self, binding: Mapping[str, int]) -> bool:
        """The truth where every name is bound.

        Raises:
            KeyError: a name is not bound.
        """
        left, right = value_at(self.left, binding), value_at(self.right, binding)
        match self.relation:
            case "==":
                return left == right
            case "!=":
                return left != right
            case "<":
                return left < right
            case "<=":
                return left <= right
            case ">":
                return left > right
        return left >= right

    @property
    def condition(self) -> IndexCondition:
        """The same as a condition of the meaning language."""
        match self.relation:
            case "==" | "!=":
                return IndexCondition("eq" if self.relation == "==" else "ne", self.left - self.right)
            case "<":
                return IndexCondition("ge", self.right - self.left - 1)
            case "<=":
                return IndexCondition("ge", self.right - self.left)
            case ">":
                return IndexCondition("ge", self.left - self.right - 1)
        return IndexCondition("ge", self.left - self.right)

    @property
    def names(self) -> frozenset[str]:
        return symbols(self.left) | symbols(self.right)


def attribute_symbols(name: str, scheme: AttributeVariableType) -> tuple[str, ...]:
    """The names of a variable's atoms: ``s`` itself, or ``s_0, s_1`` for a vector."""
    return (name,) if scheme.length is None else tuple(f"{name}_{i}" for i in range(scheme.length))


@dataclass(frozen=True)
class Rule:
    """``lhs[i] = rhs[i]`` for all values of the variables in ``forall`` that satisfy ``where``.

    A rule is an equality: search may use it in either direction whose variables are bound by the other side
    (:attr:`forward`, :attr:`backward`). Terms hold Polys for symbolic attributes; the text form is in ``grammar``.

    With ``...`` in a type (:attr:`lead`), negative axes count from the end and ``perm``/``shape`` attributes may begin
    with ``"..."``; :func:`superopt.rules.typing.instances` turns such a rule into plain ones, one per leading rank.
    """

    id: str
    forall: Mapping[str, TypeScheme]
    where: tuple[RulePrecondition, ...]
    lhs: tuple[Term, ...]
    rhs: tuple[Term, ...]
    origin: str = ""
    family: str = ""

    def __hash__(self) -> int:
        return hash((self.id, self.lhs, self.rhs))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that the rule says: equal for equal rules, in every process."""
        parts = (self.id, self.family, tuple(self.forall.items()), self.where, self.lhs, self.rhs)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    @cached_property
    def tensors(self) -> Mapping[str, TensorVariableType]:
        """Tensor variables, in the order of ``forall``."""
        return {n: s for n, s in self.forall.items() if isinstance(s, TensorVariableType)}

    @cached_property
    def attributes(self) -> Mapping[str, AttributeVariableType]:
        """Attribute variables, in the order of ``forall``."""
        return {n: s for n, s in self.forall.items() if isinstance(s, AttributeVariableType)}

    @cached_property
    def lead(self) -> bool:
        """Whether some type has a run of leading axes of any rank."""
        return any(s.lead for s in self.tensors.values())

    @cached_property
    def attribute_atoms(self) -> Mapping[str, AttributeVariableType]:
        """Every attribute atom (``s_0``) with the scheme of its variable."""
        return {a: s for n, s in self.attributes.items() for a in attribute_symbols(n, s)}

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """Names in the types that are not attribute atoms: sizes, at least 1, in order of first occurrence."""
        found: dict[str, None] = {}
        for scheme in self.tensors.values():
            for size in (*scheme.shape, *(() if scheme.below is None else (scheme.below,))):
                found.update(dict.fromkeys(sorted(symbols(size))))
        return tuple(n for n in found if n not in self.attribute_atoms)

    @cached_property
    def operators(self) -> frozenset[str]:
        """Names of the operators on both sides."""
        return frozenset(t.op for t in postorder(*self.lhs, *self.rhs) if isinstance(t, OperatorTerm))

    @cached_property
    def forward(self) -> bool:
        """The left side binds everything that the right side and the guards use."""
        return self._binds(self.lhs, self.rhs)

    @cached_property
    def backward(self) -> bool:
        """The right side binds everything that the left side and the guards use."""
        return self._binds(self.rhs, self.lhs)

    def _binds(self, source: tuple[Term, ...], target: tuple[Term, ...]) -> bool:
        used = set(variables(*target))
        needed = term_symbols(target) | {n for g in self.where for n in g.names}
        for name in used & self.tensors.keys():
            needed |= {n for d in self.tensors[name].shape for n in symbols(d)}
        bound = set(variables(*source))
        known = term_symbols(source)
        for name in bound & self.tensors.keys():
            known |= {n for d in self.tensors[name].shape for n in symbols(d)}
        return used <= bound and needed <= known


def term_symbols(roots: tuple[Term, ...]) -> set[str]:
    """Names of sizes and attribute atoms in the attributes of terms."""
    found: set[str] = set()
    for term in postorder(*roots):
        if isinstance(term, OperatorTerm):
            for _, value in term.attributes:
                found |= value_symbols(value)
    return found


def value_symbols(value: AttributeValue) -> set[str]:
    """Names in one attribute value."""
    if isinstance(value, tuple):
        return {n for v in value for n in value_symbols(v)}
    return set() if isinstance(value, int | float | str) else set(symbols(value))


def scalar(value: Dim | float) -> OperatorTerm:
    """A constant of rank 0, which rules write as the number itself: ``Mul(x, 2.0)``."""
    number = float(value) if isinstance(value, int) else value
    return OperatorTerm("ConstantOfShape", (), (("shape", ()), ("value", number)))


def scalar_value(term: Term) -> AttributeValue | None:
    """The number that a rank-0 constant of class ``f`` holds, else ``None``."""
    if (
        isinstance(term, VariableTerm)
        or not isinstance(term, OperatorTerm)
        or term.op != "ConstantOfShape"
        or term.args
    ):
        return None
    values = dict(term.attributes)
    return values["value"] if set(values) == {"shape", "value"} and values["shape"] == () else None
