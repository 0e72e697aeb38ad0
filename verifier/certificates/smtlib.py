"""Conditions on integers as SMT-LIB, and the installed solvers asked whether a script is unsatisfiable."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import combinations_with_replacement
from typing import TypeVar

import z3

from superopt.fleet.child import TaskLost, isolated, packed, unpacked
from superopt.ir.size_polynomial import Dim, FloorQuotient, SizePolynomial
from superopt.ops.operator_semantics import IndexCondition

__all__ = ["SECONDS", "script", "solvers", "unsatisfiable", "within"]

T = TypeVar("T")

SECONDS = 600  # the emergency stop of a solver by the clock: each ends by its own count of work long before
_CVC5_SECONDS = 5  # but cvc5, on goals in which it counts none; what it has not said by then is Z3's alone to say
# What a solver may count for one script. The library's hardest goal takes Z3 a hundredth of this; what Z3 is asked in
# a proof is bounded by a twentieth of it.
_Z3_WORK, _CVC5_WORK = 40_000_000, 20_000_000


def script(clauses: Iterable[Iterable[IndexCondition]]) -> str:
    """A script that asks whether integers satisfy every clause: one of its conditions, at least.

    Where sizes are multiplied, what follows from the clauses by one multiplication is written beside them: solvers
    then mostly need no more than linear arithmetic.
    """
    new_script = _Script()
    stated = [list(clause) for clause in clauses]
    stated += ([c] for c in _products([cs[0] for cs in stated if len(cs) == 1], [c for cs in stated for c in cs]))
    claims = [
        "(or " + " ".join(c) + ")" if len(c) != 1 else c[0]
        for c in ([new_script.condition(c) for c in cs] for cs in stated)
    ]
    return new_script.text(["false" if c == "(or )" else c for c in claims])


def _products(given_conditions: Sequence[IndexCondition], written: Sequence[IndexCondition]) -> list[IndexCondition]:
    """Products of two conditions ``≥ 0``, of those whose products of names are already written: no new unknowns."""
    terms = {m for c in written if isinstance(c.size, SizePolynomial) for m, _ in c.size.terms if len(m) > 1}
    found: dict[IndexCondition, None] = {}
    for a, b in combinations_with_replacement((c.size for c in given_conditions if c.kind == "ge") if terms else (), 2):
        size = a * b
        if isinstance(size, SizePolynomial) and {m for m, _ in size.terms if len(m) > 1} <= terms:
            found[IndexCondition("ge", size)] = None
    return [c for c in found if c not in given_conditions]


class _Script:
    """One goal in SMT-LIB; a quotient is an integer of its own."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.quotients: dict[FloorQuotient, str] = {}
        self.definitions: list[str] = []

    def text(self, claims: Sequence[str]) -> str:
        declared = [f"(declare-const {n} Int)" for n in sorted(self.names)]
        return "\n".join(
            ["(set-logic QF_NIA)", *declared, *(f"(assert {c})" for c in (*self.definitions, *claims)), "(check-sat)"]
        )

    def condition(self, c: IndexCondition) -> str:
        return f"({ {'ge': '>=', 'eq': '=', 'ne': 'distinct'}[c.kind] } {self.dim(c.size)} 0)"

    def dim(self, dim: Dim) -> str:
        terms = []
        for monomial, c in dim.terms if isinstance(dim, SizePolynomial) else (((), dim),):
            atoms = [a if isinstance(a, str) else self.quotient(a) for a in monomial]
            self.names.update(atoms)
            parts = [*([str(c) if c >= 0 else f"(- {-c})"] if c != 1 or not atoms else []), *atoms]
            terms.append(parts[0] if len(parts) == 1 else f"(* {' '.join(parts)})")
        return terms[0] if len(terms) == 1 else f"(+ {' '.join(terms)})"

    def quotient(self, q: FloorQuotient) -> str:
        if q not in self.quotients:
            name = self.quotients[q] = f"q__{len(self.quotients)}"
            n, d = self.dim(q.numerator), self.dim(q.denominator)
            self.definitions.append(f"(and (>= {d} 1) (<= (* {d} {name}) {n}) (< {n} (+ (* {d} {name}) {d})))")
        return self.quotients[q]


@lru_cache(maxsize=1)
def solvers() -> Mapping[str, str]:
    """The installed solvers and their versions: Z3, and cvc5 where it is."""
    found = {"z3": version("z3-solver")}
    try:
        return {**found, "cvc5": version("cvc5")}
    except PackageNotFoundError:
        return found


@lru_cache(maxsize=65536)
def unsatisfiable(text: str) -> tuple[tuple[str, str], ...]:
    """What each installed solver, by name, answers to a script: "unsat", "sat" or "unknown". Rules share many goals.

    Raises:
        z3.Z3Exception: it is not SMT-LIB.
    """
    return tuple((name, {"z3": _z3, "cvc5": _cvc5}[name](text)) for name in solvers())


def _z3(text: str) -> str:
    solver = z3.SolverFor("QF_NIA")
    solver.set("timeout", SECONDS * 1000)
    solver.set("rlimit", _Z3_WORK)
    solver.from_string(text)
    return str(solver.check())


def _cvc5(text: str) -> str:
    """What cvc5 answers, in a process of its own: there are goals in which it heeds no limit."""
    return within(_CVC5_SECONDS, _solve_with_cvc5, text)


def within(seconds: float, ask: Callable[[T], object], question: T) -> str:
    """What a function answers in a process of its own, or "unknown" where it takes longer."""
    try:
        return str(unpacked(isolated(packed(ask, (question,), files=None, seconds=seconds, last=False)))[0])
    except TaskLost:
        return "unknown"


def _solve_with_cvc5(text: str) -> str:
    signal.setitimer(signal.ITIMER_REAL, 4 * _CVC5_SECONDS)  # ends this process, where nobody is left who would
    try:
        return _answered(text)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _answered(text: str) -> str:
    cvc5 = import_module("cvc5")
    solver = cvc5.Solver()
    solver.setOption("rlimit-per", str(_CVC5_WORK))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "certificate")
    answer = ""
    while not (command := parser.nextCommand()).isNull():
        answer += command.invoke(solver, parser.getSymbolManager())
    return answer.strip()
