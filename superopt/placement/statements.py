"""What a partitioned form claims, as a rule for all sizes and any number of devices, and its proof.

The rule is about tensors with a device axis of symbolic size ``d``. ``LocalMatMul`` is MatMul of each device on its own
pieces: its meaning is that of MatMul with one more axis. So a sum over split operands is stated as

    MatMul(x0, x1) = ReduceSum(LocalMatMul(pieces of x0 along 1, pieces of x1 along 0), axes=[0], keepdims=0)

where pieces are a Reshape and a Transpose, and what is replicated is an Expand. The verifier proves it as any rule, and
writes a certificate, which its checker reads without the prover. Sizes become symbols, equal ones the same symbol;
where that is not proved, sizes stay and the number of devices alone is a symbol.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, islice
from math import prod
from pathlib import Path

from superopt.errors import SuperoptError
from superopt.ir.disk_cache import code_digest, load_object, store_object
from superopt.ir.size_polynomial import Dim, sym, symbols
from superopt.ir.terms import Attributes, AttributeValue, OperatorTerm, OutputTerm, Term, VariableTerm
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_definition import Operator
from superopt.ops.operator_semantics import (
    ElementRead,
    IllTypedOperator,
    ScalarCall,
    ScalarConditional,
    ScalarExpression,
    ScalarReduction,
    SymbolicOperand,
    TensorComprehension,
    tensor,
)
from superopt.ops.shape_inference import MALFORMED
from superopt.placement.forms import Form, candidates, replicated_form
from superopt.placement.placements import PARTIAL, REPLICATED, Placement, local_type
from superopt.rules import Rule
from superopt.rules.canonical import rule_text
from superopt.rules.rule import TensorVariableType, term_symbols
from superopt.verifier.certificates.certificate import certificate_of
from superopt.verifier.certificates.checker import CertificateResult, check_certificate
from superopt.verifier.prover.prover import prove
from superopt.verifier.verdict import ProvedVerdict

__all__ = ["ProvedForm", "certify_form", "check_form_certificate", "local_operator", "proved_forms", "statements"]

PREFIX = "Local"
DEVICES = sym("d")
_SECONDS = 4.0  # of counted work that a proof may take: the slowest of the models in lab/notes/devices.md takes 1.5
_FOLDER, _MOST = "placement", 4096
_PACKAGES = ("ir", "ops", "rules", "verifier", "placement")
_CLASSES = {True: "f", False: "i"}


@dataclass(frozen=True)
class ProvedForm:
    """A form with the rule that was proved for it; ``None``: every device does the same, so there is nothing to prove.

    Attributes:
        all_sizes: the sizes are symbols, too; else the number of devices alone.
    """

    form: Form
    rule: Rule | None = None
    all_sizes: bool = True

    @property
    def digest(self) -> str:
        """Of the statement, "" where there is none."""
        return "" if self.rule is None else self.rule.id


# -- Operators on every device ---------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def local_operator(operator: Operator) -> Operator:
    """The operator of each device on its own pieces: every operand and result has a leading device axis."""

    def meaning(*operands: SymbolicOperand | None, **attributes: AttributeValue) -> list[TensorComprehension]:
        given = [o for o in operands if o is not None]
        if not given or any(o.rank == 0 for o in given):
            raise IllTypedOperator("an operand has no device axis")
        devices = given[0].shape[0]
        if any(o.shape[0] != devices for o in given):
            raise IllTypedOperator("the operands have different device axes")
        inner = [None if o is None else replace(o, type=replace(o.type, shape=o.shape[1:])) for o in operands]
        made = operator.meaning(*inner, **attributes)
        return [_on_each(devices, c) for c in ([made] if isinstance(made, TensorComprehension) else made)]

    name = PREFIX + operator.name
    return replace(operator, name=name, meaning=meaning, kernel=None, family="placement", commutative=False)


def _on_each(devices: Dim, output: TensorComprehension) -> TensorComprehension:
    (axis,) = tensor([devices], lambda _: 0).axes
    device: Dim = sym(axis[0][0]) if axis else 0
    return TensorComprehension((axis, *output.axes), _read_at(device, output.body))


def _read_at(device: Dim, node: ScalarExpression) -> ScalarExpression:
    match node:
        case ElementRead(operand, index, outside):
            places = (i if not isinstance(i, ScalarExpression) else _read_at(device, i) for i in index)
            return ElementRead(operand, (device, *places), outside)
        case ScalarCall(function, args):
            return ScalarCall(function, tuple(_read_at(device, a) for a in args))
        case ScalarReduction(kind, variable, extent, body):
            return ScalarReduction(kind, variable, extent, _read_at(device, body))
        case ScalarConditional(conditions, then, otherwise):
            return ScalarConditional(conditions, _read_at(device, then), _read_at(device, otherwise))
    return node


# -- The statement of a form -----------------------------------------------------------------------------------------


def statements(
    operator: Operator, attributes: Attributes, types: Sequence[TensorType | None], form: Form, count: int
) -> Iterator[tuple[Rule, bool]]:
    """Rules that say what the form claims, the most general first, and whether each is for all sizes.

    Args:
        operator: its record.
        attributes: of the whole operator.
        types: of the whole operands, of known sizes.
        form: on ``count`` devices.
        count: a number of devices for which the form was read off.
    """
    pairs = zip(types, form.operands, strict=True)
    pieces = [None if t is None or o is None else _piece_shape(t, o, count) for t, o in pairs]
    before = dict(attributes)
    divided = frozenset(n for n, v in form.attributes if v != before[n])
    sized = [n for n, v in form.attributes if n not in divided and _may_be_sizes(v)]
    stated: set[str] = set()
    for size in range(len(sized), -1, -1):
        for chosen in combinations(sized, size):
            symbolic = divided | frozenset(chosen)
            rule = _statement(operator, attributes, types, form, pieces, symbolic, count, general=True)
            if rule is not None and rule.id not in stated:
                stated.add(rule.id)
                yield rule, True
    rule = _statement(operator, attributes, types, form, pieces, frozenset(), count, general=False)
    if rule is not None:
        yield rule, False


def _piece_shape(kind: TensorType, placement: Placement, count: int) -> tuple[int, ...] | None:
    piece = local_type(kind, (placement,), (count,))
    return None if piece is None else tuple(s for s in piece.shape or () if isinstance(s, int))


def _statement(
    operator: Operator, attributes: Attributes, types: Sequence[TensorType | None], form: Form,
    pieces: Sequence[tuple[int, ...] | None], symbolic: frozenset[str], count: int, *, general: bool,
) -> Rule | None:  # fmt: skip
    values = dict(form.attributes)
    size: Callable[[int], Dim] = _literal
    if general:
        size = _symbols([p for p in pieces if p is not None], [_row(values[n]) for n in sorted(symbolic)])
    given: list[Term | None] = []
    own: list[Term | None] = []
    forall: dict[str, TensorVariableType] = {}
    shapes: dict[int, tuple[Dim, ...]] = {}
    for p, (kind, placement, piece) in enumerate(zip(types, form.operands, pieces, strict=True)):
        if kind is None or placement is None or piece is None:
            given.append(None)
            own.append(None)
            continue
        name, shape = f"x{p}", tuple(map(size, piece))
        dtype = "b" if kind.dtype == DType.BOOL else _CLASSES[kind.dtype.is_float]
        shapes[p] = _whole(shape, placement)
        forall[name] = TensorVariableType(dtype, (DEVICES, *shape) if placement == PARTIAL else shapes[p])
        given.append(_summed(VariableTerm(name)) if placement == PARTIAL else VariableTerm(name))
        own.append(VariableTerm(name) if placement == PARTIAL else _pieces(VariableTerm(name), shape, placement))
    if not forall:
        return None
    local = tuple((n, _sized(v, size, n in symbolic)) for n, v in form.attributes)
    whole = tuple((n, _global(v, values[n], dict(local)[n], count)) for n, v in attributes)
    left, right = (
        OperatorTerm(operator.name, tuple(given), whole),
        OperatorTerm(PREFIX + operator.name, tuple(own), local),
    )
    if not term_symbols((left, right)) <= {n for s in forall.values() for d in s.shape for n in symbols(d)}:
        return None
    return _rule(operator, forall, left, right, form)


def _rule(
    operator: Operator, forall: Mapping[str, TensorVariableType], left: OperatorTerm, right: OperatorTerm, form: Form
) -> Rule | None:
    """The rule, where both sides have types."""
    several = len(form.results) > 1
    kinds = {
        n: TensorType(DType({"f": "float32", "i": "int64", "b": "bool"}[s.dtype]), s.shape) for n, s in forall.items()
    }
    try:
        _, made = local_operator(operator).apply([_type_of(a, kinds) for a in right.args], dict(right.attributes))
        operator.apply([_type_of(a, kinds) for a in left.args], dict(left.attributes))
    except (IllTypedOperator, *MALFORMED):
        return None
    lhs: list[Term] = []
    rhs: list[Term] = []
    for k, (placement, kind) in enumerate(zip(form.results, made, strict=True)):
        whole: Term = OutputTerm(left, k) if several else left
        local: Term = OutputTerm(right, k) if several else right
        if placement == PARTIAL:
            lhs.append(whole)
            rhs.append(_summed(local))
        else:
            lhs.append(_pieces(whole, (kind.shape or ())[1:], placement))
            rhs.append(local)
    rule = Rule("", forall, (), tuple(lhs), tuple(rhs), origin="a partitioned form of an operator", family="placement")
    digest = hashlib.sha256(rule_text(rule).encode()).hexdigest()[:12]
    return replace(rule, id=f"{operator.name.lower()}-{digest}")


def _type_of(term: Term | None, kinds: Mapping[str, TensorType]) -> TensorType | None:
    if term is None:
        return None
    if isinstance(term, VariableTerm):
        return kinds[term.name]
    assert isinstance(term, OperatorTerm)
    return REGISTRY[term.op].apply([_type_of(a, kinds) for a in term.args], dict(term.attributes))[1][0]


def _whole(shape: Sequence[Dim], placement: Placement) -> tuple[Dim, ...]:
    return tuple(DEVICES * s if placement.kind == "split" and k == placement.axis else s for k, s in enumerate(shape))


def _pieces(whole: Term, shape: Sequence[Dim], placement: Placement) -> Term:
    """The tensor with a device axis of which the pieces have a shape."""
    if placement == REPLICATED:
        return OperatorTerm("Expand", (whole,), (("shape", (DEVICES, *shape)),))
    axis, rank = placement.axis, len(shape)
    cut = OperatorTerm("Reshape", (whole,), (("shape", (*shape[:axis], DEVICES, *shape[axis:])),))
    perm = (axis, *range(axis), *range(axis + 1, rank + 1))
    return cut if axis == 0 else OperatorTerm("Transpose", (cut,), (("perm", perm),))


def _summed(term: Term) -> Term:
    attributes: Attributes = (("axes", (0,)), ("keepdims", 0))
    return OperatorTerm("ReduceSum", (term,), attributes)


def _literal(size: int) -> Dim:
    return size


def _symbols(shapes: Sequence[tuple[int, ...]], lists: Sequence[tuple[int, ...]]) -> Callable[[int], Dim]:
    """A symbol for each number above 1; products of such for what is the product of neighbours elsewhere, and sums for
    what is the sum of a list."""
    found: dict[int, Dim] = {}
    rows = [*shapes, *lists]
    for k, number in enumerate(sorted({n for r in rows for n in r if n > 1})):
        runs = (r[a:b] for r in rows if number not in r for a in range(len(r)) for b in range(a + 2, len(r) + 1))
        factors = next((run for run in runs if prod(run) == number and min(run) > 1), None)
        terms = next((row for row in lists if len(row) > 1 and sum(row) == number and min(row) > 1), None)
        if factors is not None:
            found[number] = prod((found[n] for n in factors), start=1)
        else:
            found[number] = sym(f"n{k}") if terms is None else sum((found[n] for n in terms), start=0)
    return lambda size: found.get(size, size)


def _may_be_sizes(value: AttributeValue) -> bool:
    return any(n > 1 for n in _row(value))


def _row(value: AttributeValue) -> tuple[int, ...]:
    """The integers of an attribute that is one, or a list of them."""
    items = value if isinstance(value, tuple) else (value,)
    return tuple(v for v in items if isinstance(v, int)) if all(isinstance(v, int) for v in items) else ()


def _sized(value: AttributeValue, size: Callable[[int], Dim], symbolic: bool) -> AttributeValue:
    if not symbolic:
        return value
    return (
        tuple(map(size, _row(value))) if isinstance(value, tuple) else size(value) if isinstance(value, int) else value
    )


def _global(whole: AttributeValue, piece: AttributeValue, local: AttributeValue, count: int) -> AttributeValue:
    """The whole's attribute in the symbols of the piece's: ``d`` times what was divided."""
    if isinstance(whole, tuple) and isinstance(piece, tuple) and isinstance(local, tuple) and len(whole) == len(piece):
        return tuple(_global(w, p, s, count) for w, p, s in zip(whole, piece, local, strict=True))
    if whole == piece or isinstance(local, str | float | tuple):
        return local
    return DEVICES * local


# -- Proofs ----------------------------------------------------------------------------------------------------------


def proved_forms(
    operator: Operator, attributes: Attributes, types: tuple[TensorType | None, ...], count: int
) -> tuple[ProvedForm, ...]:
    """The operator's forms on ``count`` devices that the verifier proves; that without any split is the first."""
    _, made = operator.apply(types, dict(attributes))
    found = [ProvedForm(replicated_form(attributes, types, len(made)))]
    for choices in candidates(operator, attributes, types, count):
        found += islice((p for f in choices for p in _proofs(operator, attributes, types, f, count)), 1)
    return tuple(found)


def _proofs(
    operator: Operator, attributes: Attributes, types: Sequence[TensorType | None], form: Form, count: int
) -> Iterator[ProvedForm]:
    for rule, all_sizes in statements(operator, attributes, types, form, count):
        if _is_proved(operator, rule):
            yield ProvedForm(form, rule, all_sizes)


_known: dict[str, bool] = {}


def _is_proved(operator: Operator, rule: Rule) -> bool:
    """Whether the rule is proved; kept between runs under the digest of the code and of the rule."""
    if rule.id not in _known:
        name = hashlib.sha256(repr([code_digest(*_PACKAGES), rule_text(rule)]).encode()).hexdigest()
        kept = load_object(_FOLDER, name, ())
        if not isinstance(kept, dict):
            kept = {"proved": isinstance(_verdict(operator, rule), ProvedVerdict)}
            store_object(_FOLDER, name, kept, _MOST)
        _known[rule.id] = bool(kept["proved"])
    return _known[rule.id]


def _verdict(operator: Operator, rule: Rule) -> object:
    with REGISTRY.also(local_operator(operator)):
        try:
            return prove(rule, time_limit=_SECONDS)
        except SuperoptError as error:
            return error


def certify_form(operator: Operator, rule: Rule, folder: Path) -> Path | None:
    """Write the certificate of a proved form as ``ID.json``; ``None`` where the proof could not be written down."""
    with REGISTRY.also(local_operator(operator)):
        _, text = certificate_of(rule, time_limit=_SECONDS)
    if not text:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{rule.id}.json"
    path.write_text(text, encoding="utf-8")
    return path


def check_form_certificate(operator: Operator, path: Path) -> CertificateResult:
    """Check a certificate of a form of an operator by the verifier's independent checker."""
    with REGISTRY.also(local_operator(operator)):
        return check_certificate(path)
