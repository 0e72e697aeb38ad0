"""Limits, health and metrics."""

from __future__ import annotations

import resource
import time
from dataclasses import asdict

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from superopt.server import openapi as doc
from superopt.server.service import Service, of

__all__ = ["router"]

router = APIRouter(tags=["service"])
_PUBLIC = (
    "sync_body", "body", "upload", "uploads",
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


@router.get("/metrics", responses=doc.METRICS, summary="Metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Counters and gauges in Prometheus' text format."""
    service = of(request)
    states = await run_in_threadpool(service.store.counts)
    return PlainTextResponse(_exposition(service, states), media_type="text/plain; version=0.0.4; charset=utf-8")


def _exposition(service: Service, states: dict[str, int]) -> str:
    lines = ["# HELP superopt_http_requests_total Answers by method, route and status.",
             "# TYPE superopt_http_requests_total counter"]  # fmt: skip
    for (method, route, status), count in sorted(service.requests.items()):
        lines.append(f'superopt_http_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}')
    lines += ["# HELP superopt_jobs Jobs kept, by state.", "# TYPE superopt_jobs gauge"]
    for state in ("queued", "running", "succeeded", "failed", "cancelled"):
        lines.append(f'superopt_jobs{{state="{state}"}} {states.get(state, 0)}')
    lines += ["# HELP superopt_refused_total What the door refused, by problem (and status; 0 is a closed connection).",
              "# TYPE superopt_refused_total counter"]  # fmt: skip
    for (kind, status), count in sorted(service.connections.refused.items()):
        lines.append(f'superopt_refused_total{{problem="{kind}",status="{status}"}} {count}')
    usage = resource.getrusage(resource.RUSAGE_SELF)
    gauges = (
        ("superopt_rules", "Rules in the library.", len(service.catalogue.entries)),
        ("superopt_connections", "Open connections.", len(service.connections)),
        ("superopt_event_streams", "Open event streams.", service.streams.total()),
        ("superopt_uptime_seconds", "Seconds since the start.", round(time.time() - service.started, 1)),
        ("process_cpu_seconds_total", "Processor time.", round(usage.ru_utime + usage.ru_stime, 2)),
        ("process_resident_memory_bytes", "Resident memory.", _resident()),
    )
    for name, text, value in gauges:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}",
                  f"{name} {value}"]  # fmt: skip
    return "\n".join(lines) + "\n"


def _resident() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
