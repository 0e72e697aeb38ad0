"""Pages that need no script: optimise a model, follow its job, read the report; browse the rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from superopt.ir.errors import printable
from superopt.report.terminal import bytes_text, count_text, time_text
from superopt.server.blobs import Spool
from superopt.server.body import GRAPH_JSON, ONNX, Upload, receive
from superopt.server.drawing import draw
from superopt.server.parameters import read_options
from superopt.server.problems import Problem
from superopt.server.reading import read_rule
from superopt.server.routes.documents import describe, ended, send_file
from superopt.server.service import Service, of
from superopt.server.store import FINAL

__all__ = ["router"]

router = APIRouter(include_in_schema=False)
_PAGE = 100


@lru_cache(maxsize=1)
def _templates() -> Environment:
    folder = Path(__file__).parents[1] / "templates"
    made = Environment(loader=FileSystemLoader(folder), autoescape=select_autoescape(default=True),
                       undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    made.filters |= {"us": time_text, "count": count_text, "size": bytes_text, "printable": printable, "zip": zip}
    return made


def _page(template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any) -> Response:
    text = _templates().get_template(template).render(**values)
    return HTMLResponse(text, status, dict(headers or {}))


def _examples(service: Service) -> list[str]:
    folder = service.settings.corpus
    if folder is None:
        return []
    most = service.settings.limits.body
    return sorted(p.stem for p in folder.glob("*.json") if p.is_file() and p.stat().st_size <= most)


async def _form(request: Request, problem: Problem | None = None) -> Response:
    service = of(request)
    targets = ["cpu", *(p["target"] for p in service.catalogue.profiles())]
    values: dict[str, Any] = {
        "examples": await run_in_threadpool(_examples, service), "targets": targets, "problem": problem,
        "limits": service.settings.limits, "needs_key": await service.needs_key(),
    }  # fmt: skip
    return _page("optimize.html", status=problem.status if problem else 200, **values)


@router.get("/")
async def get_optimize(request: Request) -> Response:
    """The form."""
    return await _form(request)


@router.post("/optimize")
async def post_form(request: Request) -> Response:
    """The form, sent: a job, and off to its page."""
    service = of(request)
    try:
        job_id = await _submit(service, request)
    except Problem as problem:
        return await _form(request, problem)
    return RedirectResponse(f"/jobs/{job_id}", 303)


async def _submit(service: Service, request: Request) -> str:
    limits = service.settings.limits
    upload = await receive(request, service.blobs, limits, limits.body)
    fields = upload.fields
    caller = await service.caller(request, next(iter(fields.get("key", [])), ""))
    options = read_options(lambda name: _values(fields, name), limits, service.catalogue)
    name = printable(upload.filename, 120)
    if not upload.model:
        name = next(iter(fields.get("example", [])), "")
        if name not in await run_in_threadpool(_examples, service):
            raise Problem(422, "invalid-model", "choose a file, or one of the examples")
        upload = await run_in_threadpool(_example, service, name)
    what = service.submission(upload, options, caller, name=name)
    job = await service.enqueue(what)
    return str(job["id"])


def _values(fields: Mapping[str, list[str]], name: str) -> list[str]:
    """Several words in one text field are several values."""
    given = fields.get(name, [])
    return (
        [w for v in given for w in v.replace(",", " ").split()]
        if name in ("enable", "disable", "dim")
        else [v for v in given if v]
    )


def _example(service: Service, name: str) -> Upload:
    folder = service.settings.corpus
    assert folder is not None
    with Spool(service.blobs) as spool:
        spool.write((folder / f"{name}.json").read_bytes())
        return Upload(spool.keep(), None, GRAPH_JSON, name, spool.size)


@router.get("/jobs/{job_id}")
async def get_job_page(job_id: str, request: Request) -> Response:
    """Progress, then the report. The page loads itself again while the job runs."""
    service = of(request)
    try:
        job = await service.job(job_id)
    except Problem as problem:
        return _page("problem.html", status=problem.status, problem=problem.body)
    report, progress, ahead = None, None, None
    if job["state"] == "succeeded":
        path = service.blobs.path(job["outputs"]["files"]["report"]["sha256"])
        report = json.loads(await run_in_threadpool(path.read_text)) if path.is_file() else None
    elif job["state"] == "queued":
        ahead = await run_in_threadpool(service.store.ahead, job["created"])
    elif job["state"] == "running":
        rows = await run_in_threadpool(service.store.events_after, job_id, max(0, job["events"] - 2))
        progress = next((row["data"] for row in reversed(rows) if row["kind"] == "progress"), None)
    headers = {} if job["state"] in FINAL else {"Refresh": "2"}
    return _page("job.html", headers=headers, job=describe(job), report=report, progress=progress, ahead=ahead,
                 known=service.catalogue.entries)  # fmt: skip


@router.get("/jobs/{job_id}/graph.{form}")
async def get_graph_file(job_id: str, form: str, request: Request) -> Response:
    """The result as a file to download; its form is in the address, where a browser can say it."""
    service = of(request)
    try:
        job = await service.job(job_id)
        files = ended(job)["files"]
        if form not in ("json", "onnx") or form not in files:
            raise Problem(404, "not-found", "the result has no such form")
        return await send_file(service, job, request, form, GRAPH_JSON if form == "json" else ONNX, {})
    except Problem as problem:
        return _page("problem.html", status=problem.status, problem=problem.body)


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
    return _page("rules.html", rules=rest[:_PAGE], total=len(found), filters=filters, following=following,
                 families=catalogue.families, verdicts=catalogue.verdicts, operators=catalogue.operators_used,
                 verdict_words=_VERDICTS)  # fmt: skip


@router.get("/rules/{rule_id}")
async def get_rule_page(rule_id: str, request: Request) -> Response:
    """One rule: in words, as text, drawn, and what is known of it."""
    catalogue = of(request).catalogue
    entry = catalogue.rule(rule_id)
    if entry is None:
        problem = Problem(404, "not-found", "there is no such rule")
        return _page("problem.html", status=404, problem=problem.body)
    rule = catalogue.library[rule_id]
    sides = [("left", draw(rule.lhs, f"left side of {rule_id}")), ("right", draw(rule.rhs, f"right side of {rule_id}"))]
    return _page("rule.html", rule=entry, reading=read_rule(rule), sides=sides, verdict_words=_VERDICTS)


_VERDICTS = {
    "proved_all_sizes": "proved for all sizes", "proved_bounded": "proved at some sizes",
    "tested": "tested exactly, not proved", "refuted": "false", "unknown": "not known",
}  # fmt: skip
