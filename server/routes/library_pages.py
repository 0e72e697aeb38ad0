"""Pages of the rule library and of the corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from superopt.report.algorithm_names import algorithm_data, search_algorithms
from superopt.rules.bilinear import algorithms
from superopt.server.http.body import receive
from superopt.server.http.problems import HttpProblem
from superopt.server.optimization_service import OptimizationService, of
from superopt.server.routes.render import page
from superopt.server.routes.rules import read_seed
from superopt.server.views.charts import spark
from superopt.server.views.recorded_corpus import RecordedCorpusRun, ratio_of
from superopt.server.views.rule_page import draw, example_of, float_rows, gain_text, reach_text, read_rule
from superopt.verifier.exact.bilinear import check_algorithm

__all__ = ["router"]

router = APIRouter(include_in_schema=False)
_PAGE = 50
_SEED = 1  # of the example on a rule's page
_FORM = 1 << 14  # bytes of a form that holds no file
_TYPED = ("forall", "where", "lhs", "rhs", "corpus")
_EXAMPLE = {
    "forall": "x: f[m, k]\na, b: f[k, n]", "where": "", "lhs": "Add(MatMul(x, a), MatMul(x, b))",
    "rhs": "MatMul(x, Add(a, b))", "corpus": "",
}  # fmt: skip
_EXAMPLES: Mapping[str, Mapping[str, str]] = {  # rules to begin with: true, false, with attributes, with a condition
    "two products of one input": _EXAMPLE,
    "false: Relu and Neg": {"forall": "x: f[m]", "lhs": "Relu(Neg(x))", "rhs": "Neg(Relu(x))"},
    "two transposes": {"forall": "x: f[m, n]", "rhs": "x",
                       "lhs": "Transpose(Transpose(x, perm=[1, 0]), perm=[1, 0])"},
    "scale before a product": {"forall": "x: f[m, k]\na: f[k, n]\nc: f[]", "lhs": "Mul(MatMul(x, a), c)",
                               "rhs": "MatMul(x, Mul(a, c))"},
    "Relu of a concatenation": {"forall": "x, y: f[m, n]", "lhs": "Concat(Relu(x), Relu(y), axis=1)",
                                "rhs": "Relu(Concat(x, y, axis=1))"},
    "integers": {"forall": "x: i[m]", "lhs": "Add(x, x)", "rhs": "Mul(x, 2)"},
}  # fmt: skip
_RULES = 8  # rules that a model's row names
_ORDERS = {"": "best match, or by id", "used": "most used in the corpus", "short": "shortest first"}


@router.get("/rules")
async def get_rules_page(request: Request) -> Response:
    """The catalogue with its filters; each says how many rules it would leave."""
    service = of(request)
    given = request.query_params
    filters = {name: given.get(name, "")[:200] for name in ("operator", "family", "verdict", "q")}
    order = given.get("sort", "") if given.get("sort", "") in _ORDERS else ""
    uses = await run_in_threadpool(lambda: service.recorded.uses)
    found = _ordered(service.catalogue.select(**filters), order, uses)
    last = max(1, -(-len(found) // _PAGE))
    text = given.get("page", "1")
    number = min(max(int(text), 1), last) if text.isascii() and text.isdecimal() and len(text) < 7 else 1

    def address(**changed: str) -> str:
        query = {k: v for k, v in {**filters, "sort": order, **changed}.items() if v}
        return f"/rules?{urlencode(query)}" if query else "/rules"

    shown = found[(number - 1) * _PAGE : number * _PAGE]
    places = {
        n: address(page=str(n) if n > 1 else "")
        for n in sorted({1, last, *range(number - 2, number + 3)})
        if 1 <= n <= last
    }
    return page(
        "rules.html", "/rules", rules=shown, total=len(found), first=(number - 1) * _PAGE + 1, number=number, last=last,
        places=places, filters=filters, choices=service.catalogue.choices(**filters), order=order, orders=_ORDERS,
        algorithms=search_algorithms(filters["q"]) if filters["q"] and number == 1 else (),
        uses=uses, families={f: address(family=f) for f in ("", *service.catalogue.library.families)},
    )  # fmt: skip


def _ordered(found: Sequence[Mapping[str, Any]], order: str, uses: Mapping[str, int]) -> Sequence[Mapping[str, Any]]:
    match order:
        case "used":
            return sorted(found, key=lambda e: -uses.get(e["id"], 0))
        case "short":
            return sorted(found, key=lambda e: len("".join((*e["lhs"], *e["rhs"]))))
        case _:
            return found


@router.get("/playground")
async def get_playground(request: Request) -> Response:
    """A rule to type; the query may have one already, which is judged when it is sent."""
    typed = {name: request.query_params.get(name, "")[:4000] for name in _TYPED}
    return await _playground(request, typed if any(typed.values()) else _EXAMPLE)


@router.post("/playground")
async def post_playground(request: Request) -> Response:
    """The rule, judged."""
    service = of(request)
    typed = dict.fromkeys(_TYPED, "")
    try:
        upload = await receive(request, service.blobs, service.settings.limits, _FORM)
        typed = {name: next(iter(upload.fields.get(name, [])), "") for name in _TYPED}
        await service.caller(request, next(iter(upload.fields.get("key", [])), ""))
        found = await service.slowly(service.judged, _rule_of(typed), bool(typed["corpus"]))
    except HttpProblem as problem:
        return await _playground(request, typed, problem=problem)
    return await _playground(request, typed, found=found)


async def _playground(
    request: Request,
    typed: Mapping[str, str],
    found: Mapping[str, Any] | None = None,
    problem: HttpProblem | None = None,
) -> Response:
    examples = {title: f"/playground?{urlencode(typed)}" for title, typed in _EXAMPLES.items()}
    return page("playground.html", "/playground", status=problem.status if problem else 200, typed=typed, found=found,
                examples=examples,
                problem=problem, needs_key=await of(request).needs_key())  # fmt: skip


def _rule_of(typed: Mapping[str, str]) -> dict[str, Any]:
    """A rule from the lines of a form; ``x, y: f[m]`` declares both."""
    lines = {name: [line.strip() for line in text.splitlines() if line.strip()] for name, text in typed.items()}
    forall: dict[str, str] = {}
    for line in lines["forall"]:
        names, colon, scheme = line.partition(":")
        if not colon:
            raise HttpProblem(422, "invalid-rule", f"for all: {line[:80]!r} is not NAME: TYPE, as in x: f[m, k]")
        forall.update((name.strip(), scheme.strip()) for name in names.split(","))
    return {"forall": forall, "lhs": lines["lhs"], "rhs": lines["rhs"]} | (
        {"where": lines["where"]} if lines["where"] else {}
    )  # fmt: skip


@router.get("/rules/{rule_id}")
async def get_rule_page(rule_id: str, request: Request) -> Response:
    """One rule: in words, as text, drawn, what is known of it, where it fires; and tried, if the query has a seed."""
    service = of(request)
    entry = service.catalogue.rule(rule_id)
    if entry is None:
        problem = HttpProblem(404, "not-found", "there is no such rule")
        return page("problem.html", "/rules", status=404, problem=problem.body)
    rule = service.catalogue.library[rule_id]
    sides = [("left", draw(rule.lhs, f"left side of {rule_id}")), ("right", draw(rule.rhs, f"right side of {rule_id}"))]
    trial, seed = None, None
    example = await service.slowly(_example, service, rule_id)
    if text := request.query_params.get("seed", ""):
        try:
            seed = read_seed(text)
            trial = await service.slowly(service.trial, rule_id, seed)
        except HttpProblem as problem:
            return page("problem.html", "/rules", status=problem.status, problem=problem.body)
    runs = [{"title": r.title, "data": r.data, "fires": r.fires(rule_id)} for r in service.recorded.runs]
    digest = entry["digest"]
    return page(
        "rule.html", "/rules", rule=entry, reading=read_rule(rule), sides=sides, runs=runs, trial=trial, seed=seed,
        typed=urlencode({"forall": "\n".join(f"{n}: {t}" for n, t in entry["forall"].items()),
                         **{side: "\n".join(entry[side]) for side in ("lhs", "rhs", "where")}}),
        gain=gain_text(entry, service.evidence.gain(rule_id)), reach=reach_text(runs), example=example,
        source=(service.evidence.gain(rule_id) or {}).get("source", ""), floats=float_rows(entry["floats"]),
        namesakes=service.catalogue.differences.namesakes(rule_id), certified=service.evidence.certified(digest),
        seconds=service.certificates.seconds(digest),
    )  # fmt: skip


def _example(service: OptimizationService, rule_id: str) -> str:
    """A rule at small sizes, in words; nothing while too many rules are evaluated."""
    try:
        return example_of(service.trial(rule_id, _SEED))
    except HttpProblem:
        return ""


@router.get("/algorithms/{name}")
async def get_algorithm_page(name: str, request: Request) -> Response:
    """A fast algorithm: what it saves, its matrices, and that it was compared with the operator's meaning."""
    found = algorithm_data(name)
    if found is None:
        problem = HttpProblem(404, "not-found", "there is no such algorithm; /rules?q=winograd finds those there are")
        return page("problem.html", "/rules", status=404, problem=problem.body)
    compared = await of(request).slowly(_compared, name)
    return page("algorithm.html", "/rules", algorithm=found, compared=compared)


@lru_cache(maxsize=64)
def _compared(name: str) -> int:
    """Coefficients of an algorithm that were compared with its operator's meaning, exactly."""
    return check_algorithm(algorithms()[name])


@router.get("/corpus")
async def get_corpus_page(request: Request) -> Response:
    """The table of models, with what the recorded runs and benchmarks say of each."""
    service = of(request)
    models = await run_in_threadpool(_models, service)
    return page("corpus.html", "/corpus", wide=bool(service.recorded.runs), models=models, runs=service.recorded.runs,
                measured=bool(service.recorded.measured), tools=service.recorded.tools,
                benchmarks=service.recorded.benchmarks, opens=service.gallery.names,
                known=service.catalogue.entries)  # fmt: skip


def _models(service: OptimizationService) -> list[dict[str, Any]]:
    recorded = service.recorded
    made = []
    for model in recorded.models:
        name = str(model["name"])
        rows = [_row(name, run) for run in recorded.runs]
        rules: dict[str, int] = next((r["rules"] for r in rows if r and r["rules"]), {})
        common = sorted(rules.items(), key=lambda item: -item[1])[:_RULES]
        made.append({**model, "runs": rows, "rules": common, "measured": recorded.measured.get(name),
                     "failed": recorded.failed.get(name), "beside": recorded.beside.get(name, {})})  # fmt: skip
    return made


def _row(name: str, run: RecordedCorpusRun) -> dict[str, Any] | None:
    row = run.rows.get(name)
    if row is None:
        return None
    past = run.history.get(name, ())
    return {
        "before_us": row.before_us, "after_us": row.after_us, "ratio": ratio_of(row), "error": row.error,
        "wrong": row.wrong, "rules": dict(row.rules), "spark": spark(past, f"modelled cost over {len(past)} runs"),
        "regressed": name in run.regressed,
    }  # fmt: skip
