"""Limits, health and metrics."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from superopt.server.http import openapi as doc
from superopt.server.http.histogram import JOB_SECONDS, Histogram, labelled
from superopt.server.http.keys import ApiCaller
from superopt.server.jobs.job_list import STATES
from superopt.server.jobs.usage import QUEUE_WAIT, RUN_TIME, histogram_rows, usage_of
from superopt.server.optimization_service import OptimizationService, of

__all__ = ["exposition", "router"]

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


def _seen_by(caller: ApiCaller) -> str | None:
    """Whose usage a caller may see: his own, or everybody's (``None``)."""
    return None if caller.operator else caller.owner


# -- The text of the metrics -------------------------------------------------------------------------------------------
#
# Everything that is counted, in Prometheus' text format.


Labels = tuple[tuple[str, str], ...]


def exposition(service: OptimizationService, owner: str | None) -> str:
    """The text.

    Args:
        service: whose counters are read.
        owner: whose usage is in it; everybody's where there is none.
    """
    return "\n".join([*_requests(service), *_jobs(service), *_usage(service, owner), *_process(service)]) + "\n"


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    yield from (f"# HELP {name} {text}", f"# TYPE {name} {kind}")
    for labels, value in samples:
        yield f"{name}{labelled(labels)} {value}"


def _requests(service: OptimizationService) -> Iterator[str]:
    counted = sorted(service.requests.items())
    yield from _family(
        "superopt_http_requests_total", "counter", "Answers by method, route and status.",
        (((("method", m), ("route", r), ("status", str(s))), n) for (m, r, s), n in counted),
    )  # fmt: skip
    name = "superopt_http_request_seconds"
    yield from (f"# HELP {name} From the head of a request to the last byte of its answer, by outcome.",
                f"# TYPE {name} histogram", *service.latency.lines(name))  # fmt: skip
    refused = sorted(service.connections.refused.items())
    yield from _family(
        "superopt_refused_total", "counter",
        "What the door refused, by problem (and status; 0 is a closed connection).",
        (((("problem", kind), ("status", str(status))), n) for (kind, status), n in refused),
    )  # fmt: skip


def _jobs(service: OptimizationService) -> Iterator[str]:
    states = service.store.counts()
    kept = (((("state", state),), states.get(state, 0)) for state in STATES)
    yield from _family("superopt_jobs", "gauge", "Jobs kept, by state.", kept)
    texts = {
        QUEUE_WAIT: ("superopt_job_queue_seconds", "From the submission of a job to its first attempt."),
        RUN_TIME: ("superopt_job_run_seconds", "Time of a job's last attempt, by how it ended."),
    }
    made = {metric: Histogram(JOB_SECONDS) for metric in texts}
    for metric, outcome, le, count, seconds in histogram_rows(service.database):
        if metric in made:
            made[metric].add(le, count, seconds, {"outcome": outcome})
    for metric, (name, text) in texts.items():
        yield from (f"# HELP {name} {text}", f"# TYPE {name} histogram", *made[metric].lines(name))


def _usage(service: OptimizationService, owner: str | None) -> Iterator[str]:
    rows = usage_of(service.database, owner)
    ends = ("submitted", "succeeded", "failed", "cancelled")
    counts = (((("key", row["key"]), ("outcome", end)), row[end]) for row in rows for end in ends)
    yield from _family("superopt_key_jobs_total", "counter", "Jobs by API key and end; submitted counts all.", counts)
    for column, text in (("seconds", "Seconds of workers by API key."), ("input_bytes", "Bytes of models by API key.")):
        sums = (((("key", row["key"]),), row[column]) for row in rows)
        yield from _family(f"superopt_key_{column}_total", "counter", text, sums)


def _process(service: OptimizationService) -> Iterator[str]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    gauges = (
        ("superopt_rules", "Rules in the library.", len(service.catalogue.entries)),
        ("superopt_connections", "Open connections.", len(service.connections)),
        ("superopt_event_streams", "Open event streams.", service.streams.total()),
        ("superopt_uptime_seconds", "Seconds since the start.", round(time.monotonic() - service.started, 1)),
        ("process_cpu_seconds_total", "Processor time.", round(usage.ru_utime + usage.ru_stime, 2)),
        ("process_resident_memory_bytes", "Resident memory.", _resident()),
    )
    for name, text, value in gauges:
        yield from _family(name, "counter" if name.endswith("_total") else "gauge", text, [((), value)])


def _resident() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
