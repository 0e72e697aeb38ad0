"""The gallery, and any two models side by side: what was recorded or is kept, shown without a job."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from superopt.report.headline import ReportHeadline, measured_claim
from superopt.report.quantities import time_text
from superopt.server.http import openapi as doc
from superopt.server.http.parameters import JobId
from superopt.server.http.problems import HttpProblem
from superopt.server.optimization_service import OptimizationService, of
from superopt.server.routes.job_responses import describe, ended
from superopt.server.routes.render import page
from superopt.server.routes.report_rendering import shown
from superopt.server.routes.rules import sent
from superopt.server.views.charts import timeline
from superopt.server.views.graph_pairing import AFTER, BEFORE, BOTH, ComparedGraph, drawn, side_of

__all__ = ["router"]

router = APIRouter(tags=["gallery"])
_RESULT = "/result"
_ENDS = ("input", "output")  # which a drawing has as nodes, and a model has not
Which = Annotated[str, Query(max_length=100)]


@router.get("/v1/gallery", responses=doc.GALLERY, summary="What is recorded of the corpus")
async def get_gallery(request: Request) -> Response:
    """Each model with what a recorded optimization made of it, and how that was measured beside other tools."""
    service = of(request)
    body = await run_in_threadpool(_gallery, service)
    return sent(request, body)


@lru_cache(maxsize=4)
def _gallery(service: OptimizationService) -> bytes:
    rows = []
    for model in service.recorded.models:
        name = str(model["name"])
        entry = service.gallery.entry(name)
        row: dict[str, Any] = {"name": name, "family": model["family"], "page": f"/corpus/{name}"}
        if entry is not None:
            cost = entry["report"]["cost"]
            row |= {
                "target": entry["target"], "device": entry["device"], "date": entry["date"],
                "status": entry["report"]["status"], "before_us": cost["before_us"], "after_us": cost["after_us"],
                "links": {"self": f"/v1/gallery/{name}", "comparison": f"/v1/gallery/{name}/comparison"},
            }  # fmt: skip
        measured = service.recorded.measured.get(name)
        if measured is not None:
            row["measured"] = {k: measured[k] for k in ("ratio", "spread")}
        row["beside"] = {
            tool: {k: r[k] for k in ("ratio", "spread")}
            for tool, r in service.recorded.beside.get(name, {}).items() if r.get("ratio") is not None
        }  # fmt: skip
        rows.append(row)
    return json.dumps({"models": rows, "total": len(rows)}).encode()


@router.get("/v1/gallery/{name}", responses=doc.GALLERY_ENTRY, summary="One model of the corpus")
async def get_gallery_entry(name: str, request: Request) -> Response:
    """The report of its recorded optimization, and on which device and when."""
    entry = await run_in_threadpool(_entry, of(request), name)
    told = {k: v for k, v in entry.items() if k != "comparison"}
    return sent(request, json.dumps(told).encode())


@router.get("/v1/gallery/{name}/comparison", responses=doc.COMPARISON, summary="Its input and result as one graph")
async def get_gallery_comparison(name: str, request: Request) -> Response:
    """As of a job, without a job."""
    service = of(request)
    await run_in_threadpool(_entry, service, name)
    return sent(request, await run_in_threadpool(service.gallery.comparison, name))


@router.get("/v1/comparison", responses=doc.COMPARISON, summary="Any two models as one graph")
async def get_any_comparison(request: Request, a: Which, b: Which) -> Response:
    """Models of the corpus by name, jobs by id; with ``/result`` behind it, what was made of it.

    Nodes are paired by what they do and where they stand, whatever they are called.
    """
    service = of(request)
    found = await _compared(service, a, b)
    return sent(request, json.dumps(found, separators=(",", ":")).encode())


def _entry(service: OptimizationService, name: str) -> dict[str, Any]:
    found = service.gallery.entry(name)
    if found is None:
        raise HttpProblem(404, "not-found", "nothing is recorded of a model of this name; GET /v1/gallery lists them")
    return found


@dataclass(frozen=True)
class _Known:
    """A graph that can be compared: as a comparison shows it, and for which target that has prices."""

    side: ComparedGraph
    target: str


async def _known(service: OptimizationService, which: str) -> _Known:
    name, side = (which.removesuffix(_RESULT), AFTER) if which.endswith(_RESULT) else (which, BEFORE)
    if name in service.gallery.names:
        entry = await run_in_threadpool(_entry, service, name)
        return _Known(side_of(entry["comparison"], side), str(entry["target"]))
    job = await service.job(name) if service.is_job(name) else None
    if job is None:
        raise HttpProblem(404, "not-found", f"{name!r} is neither a model of the corpus nor the id of a job")
    facts = ended(job)["files"].get("comparison")
    path = service.blobs.fetched(facts["sha256"]) if facts else None
    if path is None or not await run_in_threadpool(path.is_file):
        raise HttpProblem(410, "gone", "no drawing of this job is kept")
    found = json.loads(await run_in_threadpool(path.read_bytes))
    if "nodes" not in found:
        raise HttpProblem(409, "conflict", str(found.get("omitted", "there is no drawing of this job")))
    return _Known(side_of(found, side), str(job["options"].get("target", "cpu")))


async def _compared(service: OptimizationService, a: str, b: str) -> dict[str, Any]:
    one, other = await _known(service, a), await _known(service, b)
    return await service.slowly(drawn, one.side, other.side) | {"targets": sorted({one.target, other.target})}


# --- pages ------------------------------------------------------------------------------------------------------------


@router.get("/corpus/{name}", include_in_schema=False)
async def get_model_page(name: str, request: Request) -> Response:
    """What a recorded optimization made of a model of the corpus."""
    service = of(request)
    model = next((m for m in service.recorded.models if m["name"] == name), None)
    entry = await run_in_threadpool(service.gallery.entry, name)
    if model is None or entry is None:
        problem = HttpProblem(404, "not-found", "nothing is recorded of a model of this name")
        return page("problem.html", "/corpus", status=404, problem=problem.body)
    measured = service.recorded.measured.get(name)
    values = shown(entry["report"])
    if measured:
        values["head"] = _benchmarked(values["head"], measured)
    return page(
        "model.html", "/corpus", wide=True, name=name, model=model, entry=entry,
        measured=measured, beside=service.recorded.beside.get(name, {}),
        addresses={"comparison": f"/v1/gallery/{name}/comparison", "frames": "", "shared": ""},
        known=service.catalogue.entries,
        sentences=(), timeline=timeline(entry["comparison"]), **values,
    )  # fmt: skip


def _benchmarked(head: ReportHeadline, measured: Mapping[str, Any]) -> ReportHeadline:
    """A headline that claims what the recorded benchmark measured, in the place of an estimate."""
    ratio, spread = float(measured["ratio"]), float(measured["spread"])
    found, claim = measured_claim(ratio, spread)
    before = measured["before_ms"]
    times = f"{time_text(before * 1e3)} → {time_text(before * 1e3 * ratio)}, " if before else ""
    basis = f"{times}measured in the recorded benchmark: {ratio:.3f} of the original’s time (±{spread:.3f})."
    return replace(head, outcome=found, claim=claim, basis=basis)


@router.get("/compare", include_in_schema=False)
async def get_compare_page(request: Request) -> Response:
    """Two models side by side; a form where the query does not name them."""
    service = of(request)
    a, b = (request.query_params.get(name, "").strip()[:100] for name in ("a", "b"))
    values: dict[str, Any] = {"a": a, "b": b, "names": sorted(service.gallery.names), "problem": None, "found": None,
                              "timeline": "", "labels": {w: await _label(service, w) for w in (a, b) if w}}  # fmt: skip
    if a and b:
        try:
            comparison = await _compared(service, a, b)
        except HttpProblem as problem:
            return page("compare.html", "/compare", status=problem.status, **{**values, "problem": problem})
        values |= {"found": _facts(comparison), "timeline": timeline(comparison)}
    return page("compare.html", "/compare", wide=values["found"] is not None, **values)


async def _label(service: OptimizationService, which: str) -> str:
    """What a page calls one of two models: a job by the name of its model."""
    name, result = which.removesuffix(_RESULT), which.endswith(_RESULT)
    job = await run_in_threadpool(service.store.job, name) if service.is_job(name) else None
    if job is not None:
        name = f"{describe(job)['name'] or 'job'} ({name[:8]})"
    return f"{name}, {'result' if result else 'original'}"


def _facts(comparison: Mapping[str, Any]) -> dict[str, Any]:
    nodes = [n for n in comparison["nodes"] if n["op"] not in _ENDS]
    sides = Counter(str(n["side"]) for n in nodes)
    ops = {s: Counter(str(n["op"]) for n in nodes if n["side"] in (BOTH, s)) for s in (BEFORE, AFTER)}
    names = sorted({*ops[BEFORE], *ops[AFTER]}, key=lambda o: (-max(ops[BEFORE][o], ops[AFTER][o]), o))
    lines = comparison.get("timeline")
    return {
        "count": {BOTH: sides[BOTH], BEFORE: sides[BOTH] + sides[BEFORE], AFTER: sides[BOTH] + sides[AFTER]},
        "operators": [(o, ops[BEFORE][o], ops[AFTER][o]) for o in names], "targets": comparison["targets"],
        "us": {s: sum(us for _, us, _ in lines[s]) for s in (BEFORE, AFTER)} if lines else None,
    }  # fmt: skip


# --- links that stay --------------------------------------------------------------------------------------------------


@router.put("/v1/jobs/{job_id}/pin", responses=doc.PIN, openapi_extra=doc.guarded(), summary="Keep a job")
async def put_pin(job_id: JobId, request: Request) -> Response:
    """Keeps a job that succeeded beyond the retention, under a short link; again gives the same link."""
    service = of(request)
    caller = await service.caller(request)
    await service.own_job(job_id, caller)
    pin = await run_in_threadpool(service.pins.pin, job_id, caller.owner)
    return JSONResponse({"pin": pin, "link": f"/p/{pin}", "job": job_id})


@router.delete("/v1/jobs/{job_id}/pin", status_code=204, responses=doc.UNPIN, openapi_extra=doc.guarded(),
               summary="Let a job go")  # fmt: skip
async def delete_pin(job_id: JobId, request: Request) -> Response:
    """The job is kept no longer than others."""
    service = of(request)
    await service.own_job(job_id, await service.caller(request))
    await run_in_threadpool(service.pins.unpin, job_id)
    return Response(status_code=204)


@router.get("/p/{pin}", include_in_schema=False)
async def get_pin(pin: str, request: Request) -> Response:
    """To the page of a pinned job."""
    found = await run_in_threadpool(of(request).pins.job, pin[:64])
    if found is None:
        problem = HttpProblem(404, "not-found", "nothing is pinned under this link")
        return page("problem.html", "", status=404, problem=problem.body)
    return RedirectResponse(f"/jobs/{found}", 303)
