"""``/v1/jobs``: submit, look, follow, fetch, cancel. Whoever knows a job's id may read it; its owner may cancel it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from superopt.server.http import openapi as doc
from superopt.server.http.body import GRAPH_JSON, ONNX, ReceivedModel, pieces, receive
from superopt.server.http.keys import ApiCaller
from superopt.server.http.parameters import JobId, canonical_id, read_options, wrong
from superopt.server.http.problems import HttpProblem
from superopt.server.jobs.child import FILES, FRAME
from superopt.server.jobs.job_list import MOST, JobFilter, list_jobs, read_wanted
from superopt.server.jobs.result_reuse import reusable
from superopt.server.jobs.store import FINAL, WAITING
from superopt.server.optimization_service import OptimizationService, of
from superopt.server.routes.job_responses import delivered, describe, ended, send_file, send_result
from superopt.server.settings import ServiceLimits

__all__ = ["enqueue", "go_on", "router", "submit"]

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*(\"?)(\d{1,6})\1(?:$|[,;\s])", re.IGNORECASE | re.ASCII)
_BREATH = 15.0  # seconds between comments in a silent stream, so that proxies keep it open


@router.post("", status_code=202, openapi_extra=doc.submission("Idempotency-Key", "Prefer", "Webhook-Secret"),
             responses=doc.JOB_ACCEPTED, summary="Submit a job")  # fmt: skip
async def post_job(request: Request) -> Response:
    """Accepts a model and answers 202 with the job's Location.

    ``Prefer: wait=N`` waits up to N seconds for its end. An ``Idempotency-Key`` makes a repeated request find the
    first one's job.
    """
    key = request.headers.get("idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise HttpProblem(400, "bad-request", "Idempotency-Key is 1 to 200 visible ASCII characters")
    return await submit(request, key=key)


@router.put("/{job_id}", status_code=202, openapi_extra=doc.submission("Prefer", "Webhook-Secret"),
            responses=doc.JOB_ACCEPTED, summary="Submit a job under your own id")  # fmt: skip
async def put_job(job_id: JobId, request: Request) -> Response:
    """Accepts a model under a UUID of the client's choice; the same request again finds the same job."""
    if not of(request).is_job(job_id):
        raise HttpProblem(400, "bad-request", "the job id is not a UUID")
    return await submit(request, job_id=job_id)


async def submit(request: Request, *, job_id: str | None = None, key: str | None = None) -> Response:
    """Receive a model, enqueue it, and wait for it as long as the client prefers."""
    service = of(request)
    limits = service.settings.limits
    job = await enqueue(request, limits.body, job_id=job_id, key=key)
    headers = {"Location": f"/v1/jobs/{job['id']}"}
    wait = _WAIT.search(request.headers.get("prefer", ""))
    if wait and job["state"] not in FINAL:
        seconds = min(float(wait[2]), limits.wait)
        headers["Preference-Applied"] = f"wait={seconds:g}"
        await service.watcher.finished(job["id"], seconds)
        job = await service.job(job["id"])
    return JSONResponse(describe(job), 200 if job["state"] in FINAL else 202, headers)


async def enqueue(
    request: Request, most: int, *, job_id: str | None = None, key: str | None = None
) -> Mapping[str, Any]:
    """The job of a request whose body is a model and whose query has the options.

    Args:
        request: of whoever may submit.
        most: bytes of the body.
        job_id: the client's own.
        key: under which the same request again finds the same job.

    Raises:
        HttpProblem: the caller, the options or the body are refused.
    """
    service = of(request)
    limits = service.settings.limits
    caller = await service.caller(request)
    told = service.webhooks.accept(
        request.query_params.get("webhook", ""), request.headers.get("webhook-secret", "")
    )  # fmt: skip
    options = read_options(request.query_params.getlist, limits, service.catalogue)
    chosen, named = request.query_params.getlist("upload"), request.query_params.getlist("source")
    if chosen and named:
        raise HttpProblem(400, "invalid-parameter", "source: a model is either uploaded or named",
                      errors=[{"parameter": "source", "detail": "stands beside upload"}])  # fmt: skip
    for reference in ("upload", "source"):
        if reference in request.query_params:
            await _refuse_body(request, reference, limits)
    if named:
        upload = await service.carried(service.stores.fetch, named)
    elif chosen:
        found = [await run_in_threadpool(service.uploads.find, i, caller.owner) for i in dict.fromkeys(chosen)]
        upload = await service.slowly(service.uploads.model, found)
    else:
        upload = await receive(request, service.blobs, limits, most)
    if not upload.model:
        raise HttpProblem(422, "invalid-model", "the form has no part named graph")
    job = await service.enqueue(
        service.submission(upload, options, caller, job_id=job_id, key=key, webhook=told)
    )  # fmt: skip
    request.state.job = job["id"]
    return job


async def _refuse_body(request: Request, reference: str, limits: ServiceLimits) -> None:
    """A model that is sent beside a reference to another one would be lost."""
    async for _ in pieces(request, limits, limits.body):
        raise wrong(reference, "stands beside a body; send the model, or name it")


@router.get("", responses=doc.JOBS, openapi_extra=doc.listing("limit", "after"), summary="List your jobs")
async def get_jobs(request: Request) -> Response:
    """The jobs of the API key, or all of them where there are no keys: the newest first, a page at a time; all filters
    must fit. ``next`` (and the Link header) lead to the next page."""
    service = of(request)
    caller = await service.caller(request)
    wanted = _wanted(request)
    rows, after = await run_in_threadpool(list_jobs, service.database, caller.owner, wanted)
    headers = {"Cache-Control": "no-store"}
    link = None
    if after is not None:
        query = [(n, v) for n, v in request.query_params.multi_items() if n != "after"]
        link = f"/v1/jobs?{urlencode([*query, ('after', after)])}"
        headers["Link"] = f'<{link}>; rel="next"'
    return JSONResponse({"jobs": [describe(row) for row in rows], "next": link}, headers=headers)


@router.delete("", responses=doc.JOBS, openapi_extra=doc.listing(), summary="Cancel many jobs")
async def delete_jobs(request: Request) -> Response:
    """Cancels those of your jobs that fit all filters and have not ended, 200 at most; at least one filter is needed.
    The answer has each as it is now; ``next`` is there where more of them wait."""
    service = of(request)
    caller = await service.caller(request)
    wanted = _wanted(request)
    if not wanted.narrow:
        raise HttpProblem(400, "invalid-parameter", "say which: state, id or name")
    waiting = replace(wanted, limit=MOST, states=tuple(s for s in WAITING if s in (wanted.states or WAITING)))
    rows: list[Mapping[str, Any]] = []
    after: str | None = None
    if waiting.states:
        rows, after = await run_in_threadpool(list_jobs, service.database, caller.owner, waiting)
    found = [await run_in_threadpool(service.store.cancel, row["id"]) for row in rows]
    link = None if after is None else f"/v1/jobs?{request.url.query}"
    return JSONResponse({"jobs": [describe(job) for job in found if job is not None], "next": link})


def _wanted(request: Request) -> JobFilter:
    given = request.query_params
    limit = given.get("limit", "50")
    return read_wanted(
        given.getlist("state"), [canonical_id(i) for i in given.getlist("id")], given.get("name", ""),
        given.get("after", ""),
        int(limit) if limit.isascii() and limit.isdecimal() and len(limit) < 6 else 0,
    )  # fmt: skip


@router.post("/{job_id}/continue", status_code=202, openapi_extra=doc.continuation(), responses=doc.JOB_ACCEPTED,
             summary="Search on")  # fmt: skip
async def post_continue(job_id: JobId, request: Request) -> Response:
    """A new job that goes on where the search of this one was cut short; 409 where it went to its end."""
    service = of(request)
    caller = await service.caller(request)
    given = request.query_params.getlist("time_limit")
    job = await go_on(service, job_id, caller, given)
    return JSONResponse(describe(job), 202, {"Location": f"/v1/jobs/{job['id']}"})


async def go_on(
    service: OptimizationService, job_id: str, caller: ApiCaller, seconds: Sequence[str] = ()
) -> Mapping[str, Any]:
    """Enqueue the model of a job whose search was cut short again: regions that were finished are not searched again.

    Args:
        service: that has the job.
        job_id: of the caller's own job.
        caller: who asks.
        seconds: the time limit as it came; the job's own where there is none.

    Raises:
        HttpProblem: 403 or 404; 409 where there is nothing to go on with; 400 for the time limit.
    """
    job = await service.own_job(job_id, caller)
    if reusable(ended(job)):
        raise HttpProblem(409, "conflict", "the search of this job went to its end; there is nothing to go on with")
    asked = read_options(lambda name: seconds if name == "time_limit" else (), service.settings.limits,
                         service.catalogue)  # fmt: skip
    options = dict(job["options"]) | ({"time_limit": asked["time_limit"]} if seconds else {})
    upload = ReceivedModel(job["model"], job["weights"], job["media"])
    return await service.enqueue(service.submission(upload, options, caller, name=job["name"]))


@router.post("/{job_id}/deliver", responses=doc.DELIVERED, openapi_extra=doc.guarded(),
             summary="Write the result to the store")  # fmt: skip
async def post_deliver(job_id: JobId, request: Request) -> Response:
    """Writes the files of the result and the report to the operator's store, in a folder of the job's id; 409 where
    there is no such store. Doing it again writes the same."""
    service = of(request)
    job = await service.own_job(job_id, await service.caller(request))
    files = await run_in_threadpool(delivered, service, job)
    made = await service.carried(service.stores.deliver, files, job["id"])
    return JSONResponse({"files": made})


@router.get("/{job_id}", responses=doc.JOB, summary="Look at a job")
async def get_job(job_id: JobId, request: Request) -> Response:
    """State, progress so far, and links to what there is."""
    service = of(request)
    job = await service.job(job_id)
    ahead = await run_in_threadpool(service.store.ahead, job) if job["state"] == "queued" else None
    return JSONResponse(describe(job, ahead=ahead, webhook=await run_in_threadpool(service.webhooks.of, job_id)))


@router.delete("/{job_id}", responses=doc.JOB, summary="Cancel a job")
async def delete_job(job_id: JobId, request: Request) -> Response:
    """Cancels a job that has not ended; one that has ended stays as it is. Either way it says what state it is in."""
    service = of(request)
    caller = await service.caller(request)
    await service.own_job(job_id, caller)
    after = await run_in_threadpool(service.store.cancel, job_id)
    if after is None:
        raise HttpProblem(404, "not-found", "there is no such job, or it is not kept any more")
    return JSONResponse(describe(after))


@router.get("/{job_id}/result", responses=doc.GRAPH, summary="Fetch the rewritten graph")
async def get_result(job_id: JobId, request: Request) -> Response:
    """The graph, as ONNX or JSON by the Accept header; by default in the form that was sent. A failed job's problem."""
    service = of(request)
    return await send_result(service, await service.job(job_id), request)


@router.get("/{job_id}/report", responses=doc.REPORT, summary="Fetch the report")
async def get_report(job_id: JobId, request: Request) -> Response:
    """What was rewritten, by which rules, at which cost (``superopt.report``)."""
    service = of(request)
    job = await service.job(job_id)
    ended(job)
    return await send_file(service, job, request, "report", "application/json", {})


@router.get("/{job_id}/comparison", responses=doc.COMPARISON, summary="Fetch input and result as one graph")
async def get_comparison(job_id: JobId, request: Request) -> Response:
    """Both graphs as one, each node marked ``both``, ``before`` or ``after``: what the job's page draws."""
    service = of(request)
    job = await service.job(job_id)
    if "comparison" not in ended(job)["files"]:
        raise HttpProblem(404, "not-found", "this job was done by a version that kept no comparison")
    return await send_file(service, job, request, "comparison", "application/json", {})


@router.get("/{job_id}/frames/{step}", responses=doc.FRAME, summary="Fetch the model after a step")
async def get_frame(job_id: JobId, step: int, request: Request) -> Response:
    """The whole model after a step of the report's derivation, for ``superopt verify``; the last one is the result.

    Long weights are in the file of ``links.frames_weights``, beside which it is to lie; all steps share that.
    """
    service = of(request)
    job = await service.job(job_id)
    files = ended(job)["files"]
    if f"{FRAME}{step}" not in files:
        why = "the derivation has no such step" if f"{FRAME}1" in files else (
            "no frames are kept: nothing changed, or they are too large together; superopt explain --step makes them"
        )  # fmt: skip
        raise HttpProblem(404, "not-found", why)
    return await send_file(service, job, request, f"{FRAME}{step}", GRAPH_JSON, {})


@router.get("/{job_id}/files/{name}", responses=doc.FILE, summary="Fetch a file of the result")
async def get_result_file(job_id: JobId, name: str, request: Request) -> Response:
    """One of the job's ``links.files`` (or ``links.frames_weights``), whole or a ``Range`` of it, so that a large one
    can be gone on with where it was cut."""
    service = of(request)
    job = await service.job(job_id)
    files = ended(job)["files"]
    kept = next((key for key, file in FILES.items() if file == name and key in files), None)
    if kept is None:
        raise HttpProblem(404, "not-found", "the result has no such file")
    media = GRAPH_JSON if name.endswith(".json") else ONNX
    return await send_file(service, job, request, kept, media, {"Accept-Ranges": "bytes"}, filename=name)


@router.head("/{job_id}/events", include_in_schema=False)
async def head_events(job_id: JobId, request: Request) -> Response:
    """That there is such a stream; it would not end before the job does."""
    await of(request).job(job_id)
    return Response(media_type="text/event-stream", headers={"Cache-Control": "no-store"})


@router.get("/{job_id}/events", responses=doc.EVENTS, summary="Follow a job", openapi_extra=doc.last_event_id())
async def get_events(job_id: JobId, request: Request) -> Response:
    """Server-sent events: queued, started, progress, finished. Resumes after ``Last-Event-ID``; ends with the job."""
    service = of(request)
    job = await service.job(job_id)
    given = request.headers.get("last-event-id", request.query_params.get("last_event_id", "0"))
    if not (given.isascii() and given.isdecimal() and len(given) < 10):
        raise HttpProblem(400, "bad-request", "Last-Event-ID is not the number of an event")
    if job["state"] in FINAL and int(given) >= job["events"]:
        return Response(status_code=204)  # tells an EventSource to stop asking
    limits, client = service.settings.limits, request.client.host if request.client else ""
    if service.streams.total() >= limits.streams or service.streams[client] >= limits.streams_per_address:
        raise HttpProblem(429, "quota", "too many streams are open; poll the job instead", retry_after=5)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(
        _stream(service, job_id, int(given), client), media_type="text/event-stream", headers=headers
    )


async def _stream(service: OptimizationService, job_id: str, seen: int, client: str) -> AsyncIterator[bytes]:
    service.streams[client] += 1
    try:
        yield b"retry: 1000\n\n"
        while True:
            rows = await run_in_threadpool(service.store.events_after, job_id, seen)
            for row in rows:
                seen = row["seq"]
                yield _event(seen, row["kind"], {**row["data"], "at": row["at"]})
                if row["kind"] == "finished":
                    return
            if not rows and await run_in_threadpool(service.store.job, job_id) is None:
                return
            if not await service.watcher.news(job_id, seen, _BREATH):
                if service.watcher.closing:  # the client asks again, and goes on where this stream ends
                    return
                yield b": still here\n\n"
    finally:
        service.streams[client] -= 1
        service.streams += Counter()  # without the clients that have none


def _event(seq: int, kind: str, data: dict[str, Any]) -> bytes:
    return f"id: {seq}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()
