"""A rule that a stranger typed, judged in a process of its own with little memory and time: nothing of it runs here.

``python -c`` starts :func:`main`: the rule comes as JSON on standard input, what is known goes to standard output.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import superopt
from superopt.server.http.problems import HttpProblem

if TYPE_CHECKING:
    from superopt.rules import Rule
    from superopt.rules.float_verdicts import Directions

__all__ = ["RuleJudge", "judge_rule", "main"]

_ROOT = str(Path(superopt.__file__).parents[1])
_START = "import sys; sys.path.append({root!r}); from superopt.server.views.rule_judging import main; main()"
_MEMORY = 3 << 30  # bytes of address space
_PROOF = 10.0  # seconds' worth of work
_CORPUS = 15.0  # seconds for what it would gain on the corpus, where that is asked for
_TARGET = "profile:cpu-epyc-2core"  # whose recorded prices the gallery shows, too
_PROCESS = 40.0  # seconds of the clock, at most
_TURN = 20.0  # seconds that a request waits for another's
_POINTS = 2000  # adversarial points in floating point
_LONG = 4000  # characters of one text
_KEYS = ("forall", "where", "lhs", "rhs")


_UNDECIDED = {
    "format": "superopt.judgement", "version": 1, "verdict": "unknown",
    "reason": "it could not be judged within the time, memory and sizes that are given to it here",
}  # fmt: skip
log = logging.getLogger("superopt.serve")


class RuleJudge:
    """Judges rules, one at a time."""

    def __init__(self) -> None:
        self._turn = threading.Lock()

    def judged(self, rule: Mapping[str, Any], corpus: Path | None = None) -> dict[str, Any]:
        """What is known of a rule, as JSON data (``superopt.judgement``).

        Args:
            rule: with the keys ``forall``, ``lhs``, ``rhs`` and perhaps ``where``.
            corpus: a folder of models, for what the rule would gain on them if it is proved.

        Raises:
            HttpProblem: 422 where it is no rule; 503 while another one is judged.
        """
        typed = {key: rule[key] for key in _KEYS if key in rule}
        text = json.dumps({"rule": typed, "corpus": None if corpus is None else str(corpus)})
        if len(text) > 4 * _LONG:
            raise HttpProblem(413, "too-large", "a rule has a few thousand characters at most")
        if not self._turn.acquire(timeout=_TURN):
            raise HttpProblem(503, "unavailable", "another rule is being judged", retry_after=5)
        try:
            return self._run(text)
        finally:
            self._turn.release()

    def _run(self, text: str) -> dict[str, Any]:
        command = [sys.executable, "-I", "-c", _START.format(root=_ROOT)]
        try:
            done = subprocess.run(
                command, input=text.encode(), capture_output=True, timeout=_PROCESS, check=False, cwd="/"
            )  # fmt: skip
            said = done.stdout
            if done.returncode != 0:
                words = done.stderr[-2000:].decode(errors="replace")
                log.warning("a rule was not judged to the end (%d): %s", done.returncode, words)
        except subprocess.TimeoutExpired as late:
            said = late.stdout or b""
        judgement, whole, rest = said.partition(b"\n")
        if not whole:
            return dict(_UNDECIDED)
        found: dict[str, Any] = json.loads(judgement)
        if rest.endswith(b"\n"):
            found["corpus"] = json.loads(rest)
        if "error" in found:
            raise HttpProblem(422, "invalid-rule", found["error"], errors=[{"detail": found["error"]}])
        return found


def main() -> None:
    """Judge the rule on standard input."""
    for kind, limit in ((resource.RLIMIT_AS, _MEMORY), (resource.RLIMIT_CPU, int(_PROCESS)), (resource.RLIMIT_CORE, 0),
                        (resource.RLIMIT_FSIZE, 0)):  # fmt: skip
        resource.setrlimit(kind, (limit, limit))
    given = json.loads(sys.stdin.read())
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # what a library prints is no part of it
        found, gain = judge_rule(given["rule"])
        print(json.dumps(found, allow_nan=False), file=answer, flush=True)
        if gain is not None and given["corpus"] is not None:
            print(json.dumps(gain(Path(given["corpus"])), allow_nan=False), file=answer, flush=True)


def _mistyped(rule: Rule) -> str:
    """Why a side is no term, whatever the sizes are: its operands' element types differ. Empty where they do not."""
    from superopt.ops.operator_semantics import ElementTypeMismatch, IllTypedOperator
    from superopt.rules import RuleError
    from superopt.rules.typing import instances, type_terms, variable_types

    why: BaseException | None = None
    try:
        instance = instances(rule, (1,))[0]
        type_terms((*instance.lhs, *instance.rhs), variable_types(instance))
    except RuleError as error:
        why = error.__cause__
    except IllTypedOperator as error:  # for some sizes it may be a term, which is for the verdict to say
        why = error
    return f'{why}; Cast(x, to="float32") makes one of the other' if isinstance(why, ElementTypeMismatch) else ""


def judge_rule(row: dict[str, Any]) -> tuple[dict[str, Any], Callable[[Path], dict[str, Any]] | None]:
    """What is known of a rule; and, where it is proved, what it would gain on a folder of models, for later."""
    from superopt.ir.errors import SuperoptError, printable
    from superopt.ops import REGISTRY
    from superopt.report.naming import rule_name
    from superopt.rules import parse_rule
    from superopt.server.views.rule_trials import try_rule
    from superopt.verifier.admission import check
    from superopt.verifier.certificates.certificate import certificate_of
    from superopt.verifier.exact.counterexample import describe
    from superopt.verifier.floats.verdict_search import examine
    from superopt.verifier.verdict import ProvedVerdict, RefutedVerdict, UnknownVerdict, kind_of, verdict_to_json

    try:
        rule = parse_rule({**row, "id": "typed"})
    except (SuperoptError, ValueError) as error:  # a number of thousands of digits is none to Python
        return {"error": str(error).removeprefix('rule "typed", ').removeprefix("rule, ")}, None
    kept: list[str] = []

    def prover(one: Rule) -> ProvedVerdict | UnknownVerdict:
        verdict, text = certificate_of(one, time_limit=_PROOF)
        kept.append(text)
        return verdict

    unknown = sorted(o for o in rule.operators if o not in REGISTRY)
    if unknown:
        near = get_close_matches(unknown[0].lower(), by_name := {o.lower(): o for o in REGISTRY}, 1)
        hint = f"write {by_name[near[0]]}" if near else "GET /v1/operators lists those there are"
        return {"error": f"there is no operator {printable(unknown[0])!r}; {hint}"}, None
    if mistyped := _mistyped(rule):
        return {"error": mistyped}, None
    try:
        verdict = check(rule, prover=prover)
    except SuperoptError as error:
        return {"error": str(error).removeprefix('rule "typed", ')}, None
    found: dict[str, Any] = {
        "format": "superopt.judgement", "version": 1, "rule": row, "name": rule_name(rule),
        "verdict": kind_of(verdict), "proof": verdict_to_json(verdict),
    }  # fmt: skip
    if isinstance(verdict, RefutedVerdict):
        return found | {"says": describe(verdict.counterexample)}, None
    gain = None
    if isinstance(verdict, ProvedVerdict):
        found["certificate"] = kept[-1]
        floats = examine(rule, points=_POINTS, runtime=False)
        found["floats"] = [
            {"direction": way, "type": kind, "sentence": judged.sentence, **judged.as_data()}
            for way, kinds in floats.items() for kind, judged in kinds.items()
        ]  # fmt: skip
        gain = partial(_gain, rule, floats)
    return found | {"trial": try_rule(rule, 1)}, gain


def _gain(rule: Rule, floats: Directions, corpus: Path) -> dict[str, Any]:
    """What the rule gains alone on the corpus' models, the smallest first, until the time is over.

    Args:
        rule: that was proved.
        floats: its verdicts in floating point: a direction that these do not allow is not used.
        corpus: a folder, a JSON graph each.

    Returns:
        JSON data: ``models`` that get cheaper by the cost model, with microseconds before and after and how often the
        rule was used; ``looked_at``, how many of the ``of`` models there was time for.
    """
    from superopt.cost import for_target
    from superopt.formats import load
    from superopt.ir.terms import OperatorTerm, postorder, variables
    from superopt.ops.shape_inference import infer
    from superopt.passes import SearchOptions, search
    from superopt.program.graph_program import program_of
    from superopt.rules.float_verdicts import FloatVerdictStore, float_key

    deadline = time.monotonic() + _CORPUS
    sides = [
        frozenset(t.op for root in side for t in postorder(root) if isinstance(t, OperatorTerm) and variables(t))
        for side in (rule.lhs, rule.rhs)
    ]
    known = FloatVerdictStore({float_key(rule): floats})
    paths = sorted(corpus.glob("*.json"), key=lambda path: (path.stat().st_size, path.name))
    models: list[dict[str, Any]] = []
    looked_at = 0
    with for_target(_TARGET) as costs:
        for path in paths:
            graph = load(path)
            there = {step.op for step in program_of(graph, infer(graph)).steps}
            if any(side <= there for side in sides):  # else it occurs nowhere, in either direction
                options = SearchOptions(cache=False, floats=known, time_limit=deadline - time.monotonic())
                found = search(graph, (rule,), costs, options)
                if found.stopped == "time":
                    break
                if found.graph is not graph:
                    models.append({"name": path.stem, "before_us": found.before_us, "after_us": found.after_us,
                                   "times": sum(a.count for a in found.applied if a.rule == rule.id)})  # fmt: skip
            looked_at += 1
    return {"target": _TARGET, "models": models, "looked_at": looked_at, "of": len(paths)}
