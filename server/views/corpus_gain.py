"""What a rule that somebody typed would gain by itself on the models of the corpus, as the cost model has it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from superopt.cost import for_target
from superopt.formats import load
from superopt.ir.terms import OperatorTerm, postorder, variables
from superopt.ops.shape_inference import infer
from superopt.passes import SearchOptions, search
from superopt.program.graph_program import program_of
from superopt.rules import Rule
from superopt.rules.float_verdicts import Directions, FloatVerdictStore, float_key

__all__ = ["TARGET", "corpus_gain"]

TARGET = "profile:cpu-epyc-2core"  # whose recorded prices the gallery shows, too


def corpus_gain(rule: Rule, floats: Directions, folder: Path, seconds: float) -> dict[str, Any]:
    """Search the corpus' models with this rule alone, the smallest first, until the time is over.

    Args:
        rule: that was proved.
        floats: its verdicts in floating point: a direction that these do not allow is not used.
        folder: of the corpus, a JSON graph each.
        seconds: of the clock.

    Returns:
        JSON data: ``models`` that get cheaper, with microseconds before and after and how often the rule was used;
        ``looked_at``, how many of the ``of`` models there was time for.
    """
    deadline = time.monotonic() + seconds
    sides = [
        frozenset(t.op for root in side for t in postorder(root) if isinstance(t, OperatorTerm) and variables(t))
        for side in (rule.lhs, rule.rhs)
    ]
    known = FloatVerdictStore({float_key(rule): floats})
    paths = sorted(folder.glob("*.json"), key=lambda path: (path.stat().st_size, path.name))
    models: list[dict[str, Any]] = []
    looked_at = 0
    with for_target(TARGET) as costs:
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
    return {"target": TARGET, "models": models, "looked_at": looked_at, "of": len(paths)}
