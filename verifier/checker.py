"""An independent check of certificates: nothing here is shared with the prover's search.

It believes the operators' meanings, the rule grammar, and Z3 (and cvc5 where it is installed). It checks that

* the SMT file is the one the certificate names, states goals, and every goal is unsatisfiable;
* every fact that the proof used follows from the stated hypotheses, translated here anew;
* the hypotheses hold, and the normal forms are the elements of the two sides, at random sizes, attributes and elements
  that the rule allows (evaluated from the meanings);
* every step preserves the value there; re-indexings are bijections (determinant ±1); and the steps, as formal sums up
  to the names of bound variables, lead from the difference of the sides to nothing.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import z3

from superopt.ir.terms import App, Project, Term, Var, postorder
from superopt.rules import Rule, RuleError, parse_rule
from superopt.rules.typing import instances, types_of
from superopt.runtime.evaluate import FLOAT64, evaluate
from superopt.verifier.checker_values import Point, Rejected, canonical, evaluated, holds, size_at, tree_of
from superopt.verifier.exact import trial_at  # exact testing, not the prover
from superopt.verifier.sampling import draw

__all__ = ["CertificateResult", "check_certificate"]

Env = Mapping[str, int]
_SAMPLES = 3  # points per derivation
_SECONDS = 10  # per goal


@dataclass(frozen=True)
class CertificateResult:
    """Whether a certificate holds, why not, and what was checked."""

    valid: bool
    reason: str = ""
    goals: int = 0
    steps: int = 0
    points: int = 0


def check_certificate(path: Path, *, seed: int = 0) -> CertificateResult:
    """Check ``ID.json`` and the ``ID.smt2`` beside it. Never raises on a bad certificate: the result says why."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        return _check(data, Path(path).with_suffix(".smt2"), np.random.default_rng(seed))
    except Rejected as why:
        return CertificateResult(False, str(why))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        return CertificateResult(False, f"cannot be read: {error}")
    except (
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        AttributeError,
        SyntaxError,
        RuleError,
        z3.Z3Exception,
    ) as error:
        return CertificateResult(False, f"malformed: {type(error).__name__}: {error}")
    except (ArithmeticError, AssertionError) as error:
        return CertificateResult(False, f"cannot be evaluated: {error}")


def _check(data: dict[str, Any], smt2: Path, rng: np.random.Generator) -> CertificateResult:
    if data["format"] != "superopt.certificate" or data["version"] != 1:
        raise Rejected("not a certificate of version 1")
    if data["verdict"]["verdict"] != "proved_all_sizes":
        raise Rejected("the certificate does not claim a proof for all sizes")
    rule = parse_rule(data["rule"])
    if rule.id != data["id"]:
        raise Rejected("the certificate is of another rule")
    script = smt2.read_text(encoding="utf-8")
    if hashlib.sha256(script.encode()).hexdigest() != data["smt2"]:
        raise Rejected("the SMT file is not the one that the certificate names")
    goals = _solved(script)
    ranks = instances(rule)
    pairs = [(r, a, b) for r in ranks for a, b in zip(r.lhs, r.rhs, strict=True)]
    if len(pairs) != len(data["derivations"]):
        raise Rejected(f"{len(data['derivations'])} derivations for {len(pairs)} outputs")
    steps = points = 0
    for position, ((instance, left, right), derivation) in enumerate(zip(pairs, data["derivations"], strict=True)):
        for fact in (*derivation["facts"], *(g for s in derivation["steps"] for g in s.get("goals", ()))):
            _entailed(derivation, fact)
            goals += 1
        points += _agree(instance, left, right, derivation, rng, f"derivation {position}")
        steps += _chain(derivation)
    return CertificateResult(True, "", goals, steps, points)


# Arithmetic


def _solved(script: str) -> int:
    """Have every goal of the SMT file refuted; the number of goals."""
    if "(set-logic" not in script:
        raise Rejected("the SMT file sets no logic")
    parts = script.split("(push 1)")
    if len(parts) < 2:
        raise Rejected("the SMT file has no goals")
    if "(assert" in parts[0]:
        raise Rejected("the SMT file asserts something outside its goals")
    for number, part in enumerate(parts[1:]):
        body, found, tail = part.partition("(check-sat)")
        if not found or re.sub(r"\(pop 1\)|;[^\n]*|\s", "", tail):
            raise Rejected(f"goal {number} is not one query")
        solver = z3.SolverFor("QF_NIA")
        solver.set("timeout", _SECONDS * 1000)
        solver.from_string(body)
        if solver.check() != z3.unsat:
            raise Rejected(f"goal {number} of the SMT file is not unsatisfiable")
    _second_opinion(script, len(parts) - 1)
    return len(parts) - 1


def _second_opinion(script: str, goals: int) -> None:
    """Have cvc5, where it is installed, refute the goals as well."""
    if find_spec("cvc5") is None:
        return
    cvc5 = import_module("cvc5")
    solver = cvc5.Solver()
    solver.setOption("incremental", "true")
    solver.setOption("tlimit-per", str(_SECONDS * 1000))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, script, "certificate")
    answers: list[str] = []
    while not (command := parser.nextCommand()).isNull():
        answers += command.invoke(solver, parser.getSymbolManager()).split()
    if answers != ["unsat"] * goals:
        raise Rejected("cvc5 does not find every goal of the SMT file unsatisfiable")


def _entailed(derivation: dict[str, Any], fact: dict[str, Any]) -> None:
    names: dict[str, z3.ArithRef] = {}
    solver = z3.SolverFor("QF_NIA")
    solver.set("timeout", _SECONDS * 1000)
    for kind, size in (*derivation["hypotheses"], *fact["given"]):
        solver.add(_z3_condition(kind, size, names, solver))
    if fact["goal"] is not None:
        kind, size = fact["goal"]
        solver.add(z3.Not(_z3_condition(kind, size, names, solver)))
    for name, least in derivation["least"].items():
        if name in names:
            solver.add(names[name] >= least)
    if solver.check() != z3.unsat:
        raise Rejected(f"a fact does not follow: {fact['goal']} from {fact['given']}")


def _z3_condition(kind: str, size: str, names: dict[str, z3.ArithRef], solver: z3.Solver) -> z3.BoolRef:
    term = _z3_term(tree_of(size), names, solver)
    if kind not in ("ge", "eq", "ne"):
        raise Rejected(f"unknown condition {kind}")
    return term >= 0 if kind == "ge" else term == 0 if kind == "eq" else term != 0


def _z3_term(node: ast.expr, names: dict[str, z3.ArithRef], solver: z3.Solver) -> z3.ArithRef:
    match node:
        case ast.Constant(value=int(number)):
            return z3.IntVal(number)
        case ast.Name(id=name):
            return names.setdefault(name, z3.Int(name))
        case ast.UnaryOp(operand=inner):
            return -_z3_term(inner, names, solver)
        case ast.BinOp(left=a, op=operation, right=b):
            x, y = _z3_term(a, names, solver), _z3_term(b, names, solver)
            return x + y if isinstance(operation, ast.Add) else x * y
        case ast.Call(args=[a, b]):
            n, d = _z3_term(a, names, solver), _z3_term(b, names, solver)
            quotient = z3.FreshInt("q")
            solver.add(d >= 1, d * quotient <= n, n < d * quotient + d)
            return quotient
    raise Rejected("a size is not a polynomial")


def _agree(
    instance: Rule, left: Term, right: Term, derivation: dict[str, Any], rng: np.random.Generator, where: str
) -> int:
    """Compare with the meanings at random points; the number of points."""
    conditions = types_of(instance).lhs_obligations
    done = 0
    for attempt in range(40):
        if done == _SAMPLES:
            break
        lead = max((len(s.shape) for s in instance.tensors.values()), default=0)
        point = draw(instance, lead, rng, conditions, 3 + attempt % 3)
        trial = None if point is None else trial_at(instance, point)
        if point is None or trial is None:
            continue
        arrays: dict[str, np.ndarray] = {}
        for name, kind in trial.variables.items():
            shape = tuple(int(d) for d in kind.shape or ())  # type: ignore[arg-type]
            real = kind.dtype.is_float
            arrays[name] = rng.uniform(0.5, 1.5, shape) if real else rng.integers(0, trial.below[name], shape)
        place = list(zip(instance.lhs, instance.rhs, strict=True)).index((left, right))
        outputs = _outputs((trial.lhs[place], trial.rhs[place]), trial.meanings, arrays)
        reals = {f"1*{n}": float(v) for n, v in point.reals.items()}
        _compare(derivation, Point(dict(point.sizes), reals, arrays), outputs, rng, where)
        done += 1
    if not done:
        raise Rejected(f"{where}: no sizes were found at which to compare")
    return done


def _outputs(
    roots: tuple[Term, Term], meanings: Mapping[App, Any], arrays: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    found: dict[Term, Any] = {}
    several: dict[App, list[Any]] = {}
    for term in postorder(*roots):
        if isinstance(term, Var):
            found[term] = arrays[term.name]
        elif isinstance(term, Project):
            found[term] = several[term.term][term.index]
        else:
            operands = [None if a is None else found[a] for a in term.args]
            with np.errstate(all="ignore"):
                several[term] = [evaluate(c, operands, FLOAT64, {}) for c in meanings[term].outputs]
            found[term] = several[term][0]
    return [np.asarray(found[r], dtype=float) for r in roots]


def _compare(
    derivation: dict[str, Any], data: Point, outputs: list[np.ndarray], rng: np.random.Generator, where: str
) -> None:
    env = dict(data.sizes)
    for name, text in derivation["parts"].items():
        env[name] = size_at(text, env)
    for _ in range(2):
        index = tuple(int(rng.integers(0, s)) for s in outputs[0].shape)
        for axis, position in enumerate(index):
            for place, extent in reversed(list(enumerate(derivation["digits"][axis]))):
                size = size_at(extent, env)
                env[f"o{axis}__{place}"] = position % size if place else position
                position //= size
        for condition in derivation["hypotheses"]:
            if not holds(condition, {k: v for k, v in env.items() if isinstance(v, int)}):
                raise Rejected(f"{where}: the hypothesis {condition} is not part of the rule")
        if any(env.get(n, least) < least for n, least in derivation["least"].items()):
            raise Rejected(f"{where}: a least value is not part of the rule")
        for side, output in zip(("left", "right"), outputs, strict=True):
            if not _near(evaluated(derivation[side], env, data), float(output[index])):
                raise Rejected(f"{where}: the {side} normal form is not the rule's {side} side")
        for number, step in enumerate(derivation["steps"]):
            _step(step, env, data, f"{where}, step {number}")


def _near(a: float, b: float) -> bool:
    return a == b or (a != a and b != b) or abs(a - b) <= 1e-7 * (1.0 + abs(a) + abs(b))


def _step(step: dict[str, Any], env: dict[str, int], data: Point, where: str) -> None:
    before, after = evaluated(step["before"], env, data), evaluated(step["after"], env, data)
    if step["kind"] == "multiply":
        before *= evaluated(step["factor"], env, data) ** step["power"]
    if not _near(before, after):
        raise Rejected(f"{where}: the value changes")
    if step["kind"] == "match":
        a, b = step["before"]
        names, images = a["bound"], step["bijection"]
        if set(images) != set(b["bound"]) or step["moved"][0]["bound"] != names:
            raise Rejected(f"{where}: the re-indexing is not of the bound variables")
        base = {**env, **dict.fromkeys(names, 0)}
        rows = [[size_at(t, {**base, n: 1}) - size_at(t, base) for n in names] for t in images.values()]
        if names and abs(round(float(np.linalg.det(np.array(rows, dtype=float))))) != 1:
            raise Rejected(f"{where}: the re-indexing is not a bijection")
        if not _near(evaluated([b], env, data), evaluated(step["moved"], env, data)):
            raise Rejected(f"{where}: the re-indexed sum is another one")


# The steps as formal sums


def _chain(derivation: dict[str, Any]) -> int:
    """Follow the steps from the difference of the sides to nothing."""
    state: dict[str, Fraction] = {}
    _accumulate(state, derivation["left"], Fraction(1))
    _accumulate(state, derivation["right"], Fraction(-1))
    for number, step in enumerate(derivation["steps"]):
        if step["kind"] == "multiply":
            expected: dict[str, Fraction] = {}
            _accumulate(expected, step["before"], Fraction(1))
            if {k: v for k, v in state.items() if v} != {k: v for k, v in expected.items() if v}:
                raise Rejected(f"step {number} does not start from what is left")
            state = {}
        elif step["kind"] in ("simplify", "match", "drop", "lemma"):
            _accumulate(state, step["before"], Fraction(-1))
        else:
            raise Rejected(f"step {number} is of an unknown kind")
        if step["kind"] in ("drop", "lemma") and step["after"]:
            raise Rejected(f"step {number} leaves something")
        _accumulate(state, step["after"], Fraction(1))
    if any(state.values()):
        raise Rejected("the steps do not end with nothing left")
    return len(derivation["steps"])


def _accumulate(state: dict[str, Fraction], value: list[dict[str, Any]], sign: Fraction) -> None:
    for m in value:
        key = canonical(m)
        state[key] = state.get(key, Fraction(0)) + sign * Fraction(m["c"])
