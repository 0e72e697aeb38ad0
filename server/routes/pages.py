"""Pages: optimize a model, follow its job, read the report; browse the rules; the corpus. Readable without script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from superopt.ir.errors import printable
from superopt.report import outcome
from superopt.server.http.body import GRAPH_JSON, ONNX, ReceivedModel, receive
from superopt.server.http.keys import ApiCaller
from superopt.server.http.parameters import JobId, read_options
from superopt.server.http.problems import TITLES, HttpProblem
from superopt.server.jobs.blobs import IncomingBlob
from superopt.server.jobs.database import JobDatabase, jobs, now
from superopt.server.jobs.result_reuse import unfinished
from superopt.server.jobs.store import FINAL
from superopt.server.optimization_service import OptimizationService, of
from superopt.server.routes.job_responses import describe, ended, send_file
from superopt.server.routes.jobs import go_on
from superopt.server.routes.render import page
from superopt.server.routes.report_rendering import shown
from superopt.server.settings import ServiceLimits
from superopt.server.views.charts import timeline

__all__ = ["EXAMPLES", "JobWaitStatus", "expected_wait", "received_model", "router"]


router = APIRouter(include_in_schema=False)
_WORDS = ("enable", "disable", "dim", "source")  # fields in which blanks or commas stand between several
_REPORTS = 3  # that the first page names
_FORM = 1 << 14  # bytes of a form that holds no file


FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = {"Python": "optimize.py", "curl": "optimize.sh", "JavaScript": "optimize.mjs"}


def _examples(service: OptimizationService) -> list[str]:
    """Models of the corpus that are there and small enough to be sent."""
    folder, most = service.settings.corpus, service.settings.limits.body
    if folder is None:
        return []
    paths = [folder / f"{model['name']}.json" for model in service.recorded.models]
    return sorted(p.stem for p in paths if p.is_file() and p.stat().st_size <= most)


def _finished_reports(service: OptimizationService) -> list[dict[str, Any]]:
    """Recorded reports to begin with: the first models of the corpus that are measured faster; else any."""
    recorded = service.recorded
    names = [str(m["name"]) for m in recorded.models if m["name"] in service.gallery.names]
    measured = {n: recorded.measured[n] for n in names if n in recorded.measured}
    faster = [n for n, m in measured.items() if outcome(float(m["ratio"]), float(m["spread"])) == "faster"]
    return [{"name": n, "ratio": measured[n]["ratio"] if n in faster else None} for n in (faster or names)[:_REPORTS]]


async def _form(request: Request, problem: HttpProblem | None = None) -> Response:
    service = of(request)
    targets = ["cpu", *(p["target"] for p in service.catalogue.profiles())]
    values: dict[str, Any] = {
        "examples": await run_in_threadpool(_examples, service), "targets": targets, "problem": problem,
        "limits": service.settings.limits, "needs_key": await service.needs_key(),
        "example": request.query_params.get("example", ""), "stores": service.stores.prefixes,
        "reports": await run_in_threadpool(_finished_reports, service),
    }  # fmt: skip
    return page("optimize.html", "/", status=problem.status if problem else 200, **values)


@router.get("/")
async def get_optimize(request: Request) -> Response:
    """The form."""
    return await _form(request)


@router.post("/optimize")
async def post_form(request: Request) -> Response:
    """The form, sent: a job, and off to its page; a script that asks for JSON gets the job, or the problem."""
    service = of(request)
    script = request.headers.get("accept", "").startswith("application/json")
    try:
        job = await _submit(service, request)
    except HttpProblem as problem:
        if script:
            raise
        return await _form(request, problem)
    place = f"/jobs/{job['id']}"
    return JSONResponse(describe(job), 202, {"Location": place}) if script else RedirectResponse(place, 303)


async def _submit(service: OptimizationService, request: Request) -> Mapping[str, Any]:
    upload, caller, name = await received_model(service, request)
    fields = upload.fields
    options = read_options(lambda name: _values(fields, name), service.settings.limits, service.catalogue)
    return await service.enqueue(service.submission(upload, options, caller, name=name))


async def received_model(service: OptimizationService, request: Request) -> tuple[ReceivedModel, ApiCaller, str]:
    """The model of a form, who sent it, and its name: a file, an object of a store, or an example.

    Raises:
        HttpProblem: there is none, it is too large, or the key is not known.
    """
    limits = service.settings.limits
    upload = await receive(request, service.blobs, limits, limits.body)
    fields = upload.fields
    caller = await service.caller(request, next(iter(fields.get("key", [])), ""))
    if not upload.model and (sources := _values(fields, "source")):
        upload = replace(await service.carried(service.stores.fetch, sources), fields=fields)
    name = printable(upload.filename, 120)
    if not upload.model:
        name = next(iter(fields.get("example", [])), "")
        if name not in await run_in_threadpool(_examples, service):
            raise HttpProblem(422, "invalid-model", "choose a file, or one of the examples")
        upload = replace(await run_in_threadpool(_example, service, name), fields=fields)
    return upload, caller, name


def _values(fields: Mapping[str, list[str]], name: str) -> list[str]:
    """Several words in one text field are several values."""
    given = fields.get(name, [])
    return [w for v in given for w in v.replace(",", " ").split()] if name in _WORDS else [v for v in given if v]


def _example(service: OptimizationService, name: str) -> ReceivedModel:
    folder = service.settings.corpus
    assert folder is not None
    with IncomingBlob(service.blobs) as spool:
        spool.write((folder / f"{name}.json").read_bytes())
        return ReceivedModel(spool.keep(), None, GRAPH_JSON, name, spool.size)


@router.get("/jobs/{job_id}")
async def get_job_page(job_id: JobId, request: Request) -> Response:
    """Progress, then the report. Without script the page loads itself again while the job runs."""
    service = of(request)
    try:
        job = await service.job(job_id)
    except HttpProblem as problem:
        return page("problem.html", "", status=problem.status, problem=problem.body)
    live = job["state"] not in FINAL
    progress, wait = await run_in_threadpool(_progress, service, job) if live else (None, None)
    shown = await run_in_threadpool(_report, service, job) if job["state"] == "succeeded" else {"report": None}
    pinned = await run_in_threadpool(service.pins.of, job_id)
    link = f"{str(request.base_url).rstrip('/')}/p/{pinned}" if pinned else ""
    return page("job.html", "/", wide=shown["report"] is not None, job=describe(job), live=live, link=link,
                progress=progress, wait=wait, needs_key=await service.needs_key(),
                known=service.catalogue.entries, **shown)  # fmt: skip


def _progress(service: OptimizationService, job: Mapping[str, Any]) -> tuple[dict[str, Any] | None, JobWaitStatus]:
    """The last progress of a job that has not ended, and what to expect of it."""
    if job["state"] == "queued":
        ahead = service.store.ahead(job)
        return None, expected_wait(service.database, service.settings.limits, job, ahead)
    rows = service.store.events_after(job["id"], max(0, job["events"] - 2))
    found = next((row["data"] for row in reversed(rows) if row["kind"] == "progress"), None)
    return found, expected_wait(service.database, service.settings.limits, job, 0)


def _report(service: OptimizationService, job: Mapping[str, Any]) -> dict[str, Any]:
    """What the page says of a job that succeeded; its report is ``None`` when it is not kept any more."""
    files, said = job["outputs"]["files"], describe(job)
    path = service.blobs.fetched(files["report"]["sha256"])
    if not path.is_file():
        return {"report": None}
    drawing = service.blobs.fetched(files["comparison"]["sha256"]) if "comparison" in files else None
    lines = json.loads(drawing.read_bytes()) if drawing is not None and drawing.is_file() else {}
    shared = said["links"].get("frames_weights", "")
    frames = f"{said['links']['self']}/frames" if "frames" in said["links"] else ""
    sentences = ["Continuing it may find more."] if "continue" in said["links"] else []
    if job["cached"]:
        sentences.append("This is the result of an equal earlier job.")
    values = shown(json.loads(path.read_text()))
    if values["report"]["status"] == "unchanged" and (cut := unfinished(job["outputs"])):
        sentence = f"The search {cut}." if cut.startswith("stopped") else f"{cut[0].upper()}{cut[1:]}."
        values["head"] = replace(values["head"], basis=printable(sentence, 600))
    return {
        "addresses": {"comparison": said["links"].get("comparison", ""), "frames": frames, "shared": shared},
        "sentences": sentences,
        "timeline": timeline(lines), **values,
    }  # fmt: skip


async def _caller(request: Request, service: OptimizationService) -> ApiCaller:
    """Who sent a page's button, by the key in its form.

    Raises:
        HttpProblem: the form is too large, or the key is not known.
    """
    upload = await receive(request, service.blobs, service.settings.limits, _FORM)
    return await service.caller(request, next(iter(upload.fields.get("key", [])), ""))


@router.post("/jobs/{job_id}/cancel")
async def post_cancel(job_id: JobId, request: Request) -> Response:
    """The page's cancel button; back to the page."""
    service = of(request)
    try:
        caller = await _caller(request, service)
        await service.own_job(job_id, caller)
        await run_in_threadpool(service.store.cancel, job_id)
    except HttpProblem as problem:
        return page("problem.html", "", status=problem.status, problem=problem.body)
    return RedirectResponse(f"/jobs/{job_id}", 303)


@router.post("/jobs/{job_id}/pin")
async def post_pin_page(job_id: JobId, request: Request) -> Response:
    """The page's button to keep the job; back to the page, which says the link."""
    service = of(request)
    try:
        caller = await _caller(request, service)
        await service.own_job(job_id, caller)
        await run_in_threadpool(service.pins.pin, job_id, caller.owner)
    except HttpProblem as problem:
        return page("problem.html", "", status=problem.status, problem=problem.body)
    return RedirectResponse(f"/jobs/{job_id}", 303)


@router.post("/jobs/{job_id}/continue")
async def post_continue_page(job_id: JobId, request: Request) -> Response:
    """The page's button to search on; off to the new job's page."""
    service = of(request)
    try:
        caller = await _caller(request, service)
        job = await go_on(service, job_id, caller)
    except HttpProblem as problem:
        return page("problem.html", "", status=problem.status, problem=problem.body)
    return RedirectResponse(f"/jobs/{job['id']}", 303)


@router.get("/jobs/{job_id}/graph.{form}")
async def get_graph_file(job_id: JobId, form: str, request: Request) -> Response:
    """The result as a file to download; its form is in the address, where a browser can say it."""
    service = of(request)
    try:
        job = await service.job(job_id)
        files = ended(job)["files"]
        if form not in ("json", "onnx") or form not in files or (form == "onnx" and "data" in files):
            raise HttpProblem(404, "not-found", "the result has no such form")
        return await send_file(service, job, request, form, GRAPH_JSON if form == "json" else ONNX, {})
    except HttpProblem as problem:
        return page("problem.html", "", status=problem.status, problem=problem.body)


# -- How long a job waits ----------------------------------------------------------------------------------------------
#
# How long a job has run and what its reader may expect, from the jobs that ended before.


_RECENT = 20  # jobs whose durations are looked at: enough for a median, and of today


@dataclass(frozen=True)
class JobWaitStatus:
    """What a page says of a job that has not ended.

    Attributes:
        elapsed: seconds since it was sent, or since its work began.
        expects: what comes, in words.
    """

    elapsed: float
    expects: str


def expected_wait(database: JobDatabase, limits: ServiceLimits, job: Mapping[str, Any], ahead: int) -> JobWaitStatus:
    """What to expect of a job.

    Args:
        database: of the jobs.
        limits: of the service.
        job: its row.
        ahead: queued jobs that come first.
    """
    with database.read() as connection:
        clock = connection.execute(sa.select(now())).scalar_one()
        if job["state"] != "running" or job["started"] is None:
            return JobWaitStatus(max(0.0, clock - job["created"]), _queue(connection, ahead))
    seconds = float(job["options"].get("time_limit", limits.search_seconds))
    expects = f"The search takes at most {seconds:g} s; checking and drawing the result come after it."
    return JobWaitStatus(max(0.0, clock - job["started"]), expects)


def _queue(connection: sa.Connection, ahead: int) -> str:
    """When the work on a queued job begins."""
    count = sa.select(sa.func.count()).select_from(jobs).where(jobs.c.state == "running")
    running = connection.execute(count).scalar_one()
    before = ahead + running
    if not before:
        return "It begins as soon as a worker is free."
    words = f"{before} {'job is' if before == 1 else 'jobs are'} before it"
    rows = connection.execute(
        sa.select(jobs.c.started, jobs.c.finished)
        .where(jobs.c.state == "succeeded", jobs.c.cached.is_(False), jobs.c.started.is_not(None))
        .order_by(jobs.c.finished.desc()).limit(_RECENT)
    ).all()  # fmt: skip
    took = [finished - started for started, finished in rows if finished >= started]
    if not took:
        return f"{words}."
    return f"{words}; recent jobs took about {_duration(median(took))} each."


def _duration(seconds: float) -> str:
    """A rough time: seconds below two minutes, minutes above."""
    return f"{max(1, round(seconds))} s" if seconds < 120 else f"{round(seconds / 60)} min"


@router.get("/api")
async def get_api_page(request: Request) -> Response:
    """Every operation with its parameters and answers; the examples as they are run by the tests."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, operations in request.app.openapi()["paths"].items():
        for method, found in operations.items():
            groups.setdefault((found.get("tags") or ["others"])[0], []).append(_operation(path, method, found))
    examples = [(title, name, _text(name)) for title, name in EXAMPLES.items()]
    return page("api.html", "/api", groups=groups, problems=TITLES, examples=examples,
                needs_key=await of(request).needs_key())  # fmt: skip


@router.get("/docs")
async def get_docs() -> Response:
    """Where FastAPI's services have such a page, and people look for it."""
    return RedirectResponse("/api", 308)


@cache
def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _operation(path: str, method: str, found: dict[str, Any]) -> dict[str, Any]:
    answers = [(status, answer.get("description", "")) for status, answer in sorted(found["responses"].items())]
    return {
        "id": found["operationId"], "method": method.upper(), "path": path, "summary": found["summary"],
        "description": found.get("description", "").replace("`", ""), "parameters": found.get("parameters", []),
        "bodies": list(found.get("requestBody", {}).get("content", {})),
        "answers": [(s, "" if text == "a problem" else text) for s, text in answers],
    }  # fmt: skip
