"""What is answered in one request: ``POST /v1/optimize``, a small graph in, a faster one out; ``/v1/inspect``, a look.

A look at a model before it is optimized has its facts and its drawing, and takes no job.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from superopt.ir.errors import printable
from superopt.server.http import openapi as doc
from superopt.server.http.body import ReceivedModel, receive
from superopt.server.http.problems import HttpProblem
from superopt.server.jobs.store import FINAL
from superopt.server.optimization_service import OptimizationService, of
from superopt.server.routes.job_responses import describe, send_result
from superopt.server.routes.jobs import enqueue
from superopt.server.routes.pages import received_model
from superopt.server.routes.render import page

__all__ = ["router"]

router = APIRouter(tags=["optimize"])


@router.post("/v1/optimize", openapi_extra=doc.submission("Webhook-Secret"), responses=doc.OPTIMIZED,
             summary="Optimize a small graph")  # fmt: skip
async def post_optimize(request: Request) -> Response:
    """Answers with the rewritten graph, in the form that the Accept header names (by default that of the body).

    The work is a job like any other (``Link: rel=describedby`` leads to its report); if it takes too long to wait
    for, the answer is 202 with the job's Location. Larger bodies go to ``/v1/jobs``.
    """
    service = of(request)
    limits = service.settings.limits
    job = await enqueue(request, limits.sync_body)
    if job["state"] in FINAL:
        return await send_result(service, job, request)
    finished = await _wait(service, request, job["id"], limits.sync_seconds)
    if not finished and await request.is_disconnected():
        await run_in_threadpool(service.store.cancel, job["id"])
    job = await service.job(job["id"])
    if not finished:
        return JSONResponse(describe(job), 202, {"Location": f"/v1/jobs/{job['id']}"})
    return await send_result(service, job, request)


@router.post("/v1/inspect", responses=doc.INSPECTION, openapi_extra=doc.model_body(), summary="Look at a model")
async def post_inspect(request: Request) -> Response:
    """Operators, shapes, weights and work of a model, and its graph as ``GET /v1/jobs/{id}/comparison`` has it.

    Nothing is rewritten and no job is made.
    """
    service = of(request)
    await service.caller(request)
    upload: ReceivedModel = await receive(request, service.blobs, service.settings.limits, service.settings.limits.body)
    return JSONResponse(await service.slowly(service.inspector.inspected, upload))


@router.post("/inspect", include_in_schema=False)
async def post_inspect_page(request: Request) -> Response:
    """The same as a page, from the form's second button."""
    service = of(request)
    try:
        upload, _, name = await received_model(service, request)
        found = await service.slowly(service.inspector.inspected, upload)
    except HttpProblem as problem:
        return page("problem.html", "/", status=problem.status, problem=problem.body)
    return page("inspect.html", "/", wide=True, name=name or printable(found["name"], 120) or "Model", found=found)


@router.get("/inspect", include_in_schema=False)
async def get_inspect_page() -> Response:
    """A page that was sent by a form is opened again by its address: back to the form."""
    return RedirectResponse("/", 303)


async def _wait(service: OptimizationService, request: Request, job_id: str, seconds: float) -> bool:
    """Until the job has ended, the time is over, the client is gone or the service ends."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while (left := deadline - loop.time()) > 0 and not service.watcher.closing:
        if await service.watcher.finished(job_id, min(left, 2.0)):
            return True
        if await request.is_disconnected():
            return False
    return False
