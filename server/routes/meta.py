"""Limits, health and metrics."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from superopt.server.http import openapi as doc
from superopt.server.http.keys import Caller
from superopt.server.http.metrics_text import exposition
from superopt.server.jobs.usage import usage_of
from superopt.server.service import of

__all__ = ["router"]

router = APIRouter(tags=["service"])
_PUBLIC = (
    "sync_body", "body", "upload", "uploads",
    "upload_share", "upload_idle",
    "body_idle", "body_seconds", "sync_seconds", "wait", "search_seconds", "most_search_seconds",
    "job_seconds", "job_memory", "result", "per_minute", "active", "queued", "retention", "pins", "streams",
    "streams_per_address",
)  # fmt: skip


@router.get("/v1/limits", responses=doc.LIMITS, summary="Limits")
async def get_limits(request: Request) -> Response:
    """Bytes and seconds that requests and jobs may take, and whether a key is needed."""
    service = of(request)
    limits, door = asdict(service.settings.limits), asdict(service.settings.door)
    del door["trusted_proxies"]  # nobody else's business
    return JSONResponse({"limits": {name: limits[name] for name in _PUBLIC} | door, "version": service.version,
                         "stores": {"read": service.stores.prefixes, "results": service.stores.results},
                         "api_key_needed": await service.needs_key()})  # fmt: skip


@router.get("/livez", responses=doc.HEALTH, summary="Alive")
async def livez(request: Request) -> Response:
    """200 while the process answers."""
    return of(request).health.answer("/livez")


@router.get("/readyz", responses=doc.HEALTH, summary="Ready")
async def readyz(request: Request) -> Response:
    """200 while jobs can be accepted: the database answers and the disk can be written."""
    return of(request).health.answer("/readyz")


@router.get("/v1/usage", responses=doc.USAGE, openapi_extra=doc.guarded(), summary="Usage")
async def get_usage(request: Request) -> Response:
    """What the API key used: jobs by their end, seconds of workers, bytes of models. An operator's sees all."""
    service = of(request)
    rows = await run_in_threadpool(usage_of, service.database, _seen_by(await service.caller(request)))
    return JSONResponse({"usage": rows}, headers={"Cache-Control": "no-store"})


@router.get("/metrics", responses=doc.METRICS, openapi_extra=doc.guarded(), summary="Metrics",
            response_class=PlainTextResponse)  # fmt: skip
async def metrics(request: Request) -> Response:
    """Counters, gauges and histograms in Prometheus' text format. Needs a key where the service does; what single keys
    used is there for an operator's key."""
    service = of(request)
    caller = await service.caller(request)
    text = await run_in_threadpool(exposition, service, _seen_by(caller))
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _seen_by(caller: Caller) -> str | None:
    """Whose usage a caller may see: his own, or everybody's (``None``)."""
    return None if caller.operator else caller.owner
