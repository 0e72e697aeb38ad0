"""``POST /v1/optimize``: a small graph in, a faster one out, in one request."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from superopt.server.http import openapi as doc
from superopt.server.jobs.store import FINAL
from superopt.server.optimization_service import OptimizationService, of
from superopt.server.routes.job_responses import describe, send_result
from superopt.server.routes.jobs import enqueue

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["optimize"])


@router.post("/optimize", openapi_extra=doc.submission("Webhook-Secret"), responses=doc.OPTIMIZED,
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
