"""Pages of the rule library and of the corpus."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from superopt.server.charts import spark
from superopt.server.drawing import draw
from superopt.server.problems import Problem
from superopt.server.reading import read_rule
from superopt.server.recorded import Run, ratio_of
from superopt.server.routes.render import page
from superopt.server.routes.rules import read_seed
from superopt.server.service import Service, of

__all__ = ["router"]

router = APIRouter(include_in_schema=False)
_PAGE = 100
_RULES = 8  # rules that a model's row names


@router.get("/rules")
async def get_rules_page(request: Request) -> Response:
    """The catalogue with its filters."""
    catalogue = of(request).catalogue
    given = request.query_params
    filters = {name: given.get(name, "")[:200] for name in ("operator", "family", "verdict", "q")}
    after = given.get("after", "")[:200]
    found = catalogue.select(**filters)
    rest = [e for e in found if e["id"] > after]
    following = None
    if len(rest) > _PAGE:
        following = "/rules?" + urlencode({**{k: v for k, v in filters.items() if v}, "after": rest[_PAGE - 1]["id"]})
    choices: dict[str, Any] = {
        "families": catalogue.families, "verdicts": catalogue.verdicts, "operators": catalogue.operators_used,
    }  # fmt: skip
    return page(
        "rules.html", "/rules", rules=rest[:_PAGE], total=len(found), filters=filters, following=following, **choices
    )


@router.get("/rules/{rule_id}")
async def get_rule_page(rule_id: str, request: Request) -> Response:
    """One rule: in words, as text, drawn, what is known of it, where it fires; and tried, if the query has a seed."""
    service = of(request)
    entry = service.catalogue.rule(rule_id)
    if entry is None:
        problem = Problem(404, "not-found", "there is no such rule")
        return page("problem.html", "/rules", status=404, problem=problem.body)
    rule = service.catalogue.library[rule_id]
    sides = [("left", draw(rule.lhs, f"left side of {rule_id}")), ("right", draw(rule.rhs, f"right side of {rule_id}"))]
    trial, seed = None, None
    if text := request.query_params.get("seed", ""):
        try:
            seed = read_seed(text)
            trial = await run_in_threadpool(service.trial, rule_id, seed)
        except Problem as problem:
            return page("problem.html", "/rules", status=problem.status, problem=problem.body)
    runs = [{"title": r.title, "data": r.data, "fires": r.fires(rule_id)} for r in service.recorded.runs]
    return page("rule.html", "/rules", rule=entry, reading=read_rule(rule), sides=sides, runs=runs, trial=trial,
                seed=seed)  # fmt: skip


@router.get("/corpus")
async def get_corpus_page(request: Request) -> Response:
    """The table of models, with what the recorded runs and benchmarks say of each."""
    service = of(request)
    models = await run_in_threadpool(_models, service)
    return page("corpus.html", "/corpus", wide=bool(service.recorded.runs), models=models, runs=service.recorded.runs,
                measured=bool(service.recorded.measured), known=service.catalogue.entries)  # fmt: skip


def _models(service: Service) -> list[dict[str, Any]]:
    recorded = service.recorded
    made = []
    for model in recorded.models:
        name = str(model["name"])
        rows = [_row(name, run) for run in recorded.runs]
        rules: dict[str, int] = next((r["rules"] for r in rows if r and r["rules"]), {})
        common = sorted(rules.items(), key=lambda item: -item[1])[:_RULES]
        made.append({**model, "runs": rows, "rules": common, "measured": recorded.measured.get(name)})
    return made


def _row(name: str, run: Run) -> dict[str, Any] | None:
    row = run.rows.get(name)
    if row is None:
        return None
    past = run.history.get(name, ())
    return {
        "before_us": row.before_us, "after_us": row.after_us, "ratio": ratio_of(row), "error": row.error,
        "wrong": row.wrong, "rules": dict(row.rules), "spark": spark(past, f"modelled cost over {len(past)} runs"),
        "regressed": name in run.regressed,
    }  # fmt: skip
