"""How a job reads as JSON, and how its result is sent: content negotiation, ETags, problems of failed jobs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from superopt.server.http.body import GRAPH_JSON, MULTIPART, ONNX
from superopt.server.http.conditional_requests import check_range, not_modified
from superopt.server.http.problems import HttpProblem, from_outcome
from superopt.server.jobs.child import FILES, FRAME, SIDECAR
from superopt.server.jobs.result_reuse import unfinished
from superopt.server.optimization_service import OptimizationService

__all__ = ["delivered", "describe", "ended", "negotiate", "send_file", "send_result"]

_FORMS: Mapping[str, str] = {
    GRAPH_JSON: "json", "application/json": "json", ONNX: "onnx", "application/x-onnx": "onnx",
    "application/onnx": "onnx", "application/vnd.onnx": "onnx", MULTIPART: "parts",
    "multipart/mixed": "parts",
}  # fmt: skip
_TYPES = {"json": GRAPH_JSON, "onnx": ONNX, "parts": MULTIPART}
_CHUNK = 1 << 20
# What makes up a result: fetched file by file, each can be gone on with where a connection was cut (Range).
_PIECES = {"onnx": ("onnx",), "onnx and data": ("onnx", "data"), "json": ("json",), "parts": ("parts", "weights")}
_SUFFIX = {"json": ".json", "onnx": ".onnx", "report": ".report.json", "comparison": ".comparison.json"}


def _when(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def describe(
    job: Mapping[str, Any], *, ahead: int | None = None, webhook: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A job as JSON data."""
    base = f"/v1/jobs/{job['id']}"
    outputs = job["outputs"] or {}
    found: dict[str, Any] = {
        "id": job["id"], "state": job["state"], "name": job["name"] or outputs.get("name", ""),
        "options": job["options"],
        "created": _when(job["created"]), "started": _when(job["started"]), "finished": _when(job["finished"]),
        "attempt": job["attempt"], "cached": job["cached"], "cancelling": job["cancel"] and job["state"] == "running",
        "status": outputs.get("status"), "stopped": outputs.get("stopped"), "ahead": ahead,
        "problem": from_outcome(job["error"]).body if job["error"] else None,
        "unfinished": unfinished(outputs) or None, "webhook": webhook,
        "links": {"self": base, "events": f"{base}/events", "page": f"/jobs/{job['id']}"},
    }  # fmt: skip
    if job["state"] == "succeeded":
        found["links"] |= {"result": f"{base}/result", "report": f"{base}/report"}
        found["links"]["files"] = {
            FILES[name]: f"{base}/files/{FILES[name]}" for name in _PIECES[_form_of(outputs["files"])]
        }  # fmt: skip
        found["representations"] = {_TYPES[name]: size for name, size in _graphs(outputs["files"]).items()}
        if "comparison" in outputs["files"]:
            found["links"]["comparison"] = f"{base}/comparison"
        if f"{FRAME}1" in outputs["files"]:
            found["links"]["frames"] = f"{base}/frames/{{step}}"
        if "shared" in outputs["files"]:
            found["links"]["frames_weights"] = f"{base}/files/{FILES['shared']}"
        if found["unfinished"]:
            found["links"]["continue"] = f"{base}/continue"
            found["unfinished"] += f"; POST {base}/continue searches on"
    return found


def _graphs(files: Mapping[str, Any]) -> dict[str, int]:
    """The forms in which the result can be had, and about how many bytes each takes."""
    found = {name: int(facts["size"]) for name, facts in files.items() if name in _TYPES}
    if "data" in files:  # an ONNX model that is not whole by itself
        found["parts"] = found.pop("onnx") + int(files["data"]["size"])
    elif "parts" in found:
        found["parts"] += int(files["weights"]["size"])
    elif "json" in found:  # no weight is long enough for a part of its own
        found["parts"] = found["json"]
    return found


def _form_of(files: Mapping[str, Any]) -> str:
    """The form of :data:`_PIECES` in which a result can be had whole, the most usual first."""
    if "data" in files:
        return "onnx and data"
    return next(name for name in ("onnx", "json", "parts") if name in files)


def ended(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a successful job left.

    Raises:
        HttpProblem: the job's own if it failed; 409 while it has no result, or was cancelled.
    """
    if job["state"] == "succeeded":
        outputs: Mapping[str, Any] = job["outputs"]
        return outputs
    if job["state"] == "failed":
        raise from_outcome(job["error"])
    if job["state"] == "cancelled":
        raise HttpProblem(409, "job-cancelled", "the job was cancelled; it has no result")
    raise HttpProblem(409, "not-ready", f"the job is {job['state']}; GET it to see how far it is", retry_after=1)


def delivered(service: OptimizationService, job: Mapping[str, Any]) -> dict[str, Path]:
    """The files of a result in the form that ``links.files`` has, and its report, by name.

    Raises:
        HttpProblem: as :func:`ended` has them; 410 where they are not kept any more.
    """
    files = ended(job)["files"]
    found = {FILES[n]: service.blobs.fetched(files[n]["sha256"]) for n in (*_PIECES[_form_of(files)], "report")}
    if not all(path.is_file() for path in found.values()):
        raise HttpProblem(410, "gone", "the result is not kept any more; submit the model again")
    return found


def negotiate(accept: str, preferred: str, available: Mapping[str, Any], without: Mapping[str, str]) -> str:
    """Which representation an Accept header wants: ``json`` or ``onnx``; ``preferred`` where it does not say.

    Raises:
        HttpProblem: 406, with the reason why a representation that exists in general does not exist here.
    """
    wanted: list[tuple[float, str]] = []
    for part in accept.split(",") if accept.strip() else ["*/*"]:
        media, *parameters = (p.strip().lower() for p in part.split(";"))
        quality = next((p[2:] for p in parameters if p.startswith("q=")), "1")
        try:
            weight = float(quality)
        except ValueError:
            weight = 0.0
        if media in ("*/*", "application/*"):
            first = preferred if preferred in available else next(iter(available))
            wanted.append((weight - 1e-6, first))
        elif media == "multipart/*":
            wanted.append((weight - 1e-6, "parts"))
        elif media in _FORMS:
            wanted.append((weight, _FORMS[media]))
    for weight, name in sorted(wanted, key=lambda w: -w[0]):
        if weight > 0 and name in available:
            return name
    reasons = [without[name] for _, name in wanted if name in without]
    have = " or ".join(_TYPES[name] for name in available)
    raise HttpProblem(406, "not-acceptable", "; ".join([*reasons, f"the result can be had as {have}"]))


async def send_result(service: OptimizationService, job: Mapping[str, Any], request: Request) -> Response:
    """The rewritten graph of a finished job, in the form that the request prefers (by default that of the input).

    Raises:
        HttpProblem: the job failed, is not finished, or has no such representation.
    """
    outputs = ended(job)
    graphs = _graphs(outputs["files"])
    preferred = next(name for name, media in _TYPES.items() if media == job["media"])
    name = negotiate(request.headers.get("accept", ""), preferred, graphs, outputs["without"])
    extra = {
        "Vary": "Accept", "Superopt-Status": outputs["status"],
        **({"Superopt-Unfinished": _as_header(said)} if (said := describe(job)["unfinished"]) else {}),
        "Link": f'</v1/jobs/{job["id"]}/report>; rel="describedby", </jobs/{job["id"]}>; rel="alternate"',
    }  # fmt: skip
    if name == "parts":
        return await _send_parts(service, job, request, extra)
    return await send_file(service, job, request, name, _TYPES[name], extra)


async def _send_parts(
    service: OptimizationService, job: Mapping[str, Any], request: Request, extra: Mapping[str, str]
) -> Response:
    """The result as it can be sent in: ``multipart/form-data`` with the parts ``graph`` and ``weights.safetensors``, or
    ``data`` where it is an ONNX model with its weights beside it."""
    files = job["outputs"]["files"]
    if "data" in files:
        wanted = [("graph", FILES["onnx"], ONNX, files["onnx"]), ("data", FILES["data"], ONNX, files["data"])]
    elif "parts" in files:
        wanted = [("graph", "graph.json", GRAPH_JSON, files["parts"]), (SIDECAR, SIDECAR, ONNX, files["weights"])]
    else:
        wanted = [("graph", "graph.json", GRAPH_JSON, files["json"])]
    tag = f'"{hashlib.sha256("".join(facts["sha256"] for *_, facts in wanted).encode()).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "private, max-age=3600", **extra}
    if (unchanged := not_modified(request, headers)) is not None:
        return unchanged
    boundary = f"superopt-{tag[1:33]}"  # a digest of the contents, so the contents do not hold it
    pieces: list[bytes | Path] = []
    for part, filename, media, facts in wanted:
        path = await run_in_threadpool(service.blobs.fetched, facts["sha256"])
        if not await run_in_threadpool(path.is_file):
            raise HttpProblem(410, "gone", "the result is not kept any more; submit the model again")
        pieces += [f'--{boundary}\r\nContent-Disposition: form-data; name="{part}"; filename="{filename}"\r\n'
                   f"Content-Type: {media}\r\n\r\n".encode(), path, b"\r\n"]  # fmt: skip
    pieces.append(f"--{boundary}--\r\n".encode())
    size = sum(len(p) if isinstance(p, bytes) else p.stat().st_size for p in pieces)
    headers |= {"Content-Length": str(size)}
    if request.method == "HEAD":
        return Response(media_type=f"{MULTIPART}; boundary={boundary}", headers=headers)
    return StreamingResponse(_joined(pieces), media_type=f"{MULTIPART}; boundary={boundary}", headers=headers)


def _joined(pieces: list[bytes | Path]) -> Iterator[bytes]:
    for piece in pieces:
        if isinstance(piece, bytes):
            yield piece
            continue
        with piece.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk


async def send_file(
    service: OptimizationService,
    job: Mapping[str, Any],
    request: Request,
    name: str,
    media: str,
    extra: Mapping[str, str],
    *,
    filename: str = "",
) -> Response:
    """A file of a finished job, with its digest as ETag."""
    facts = job["outputs"]["files"][name]
    tag = f'"{facts["sha256"]}"'
    headers = {"ETag": tag, "Cache-Control": "private, max-age=3600", **extra}
    if (unchanged := not_modified(request, headers)) is not None:
        return unchanged
    path = await run_in_threadpool(service.blobs.fetched, facts["sha256"])
    if not await run_in_threadpool(path.is_file):
        raise HttpProblem(410, "gone", "the result is not kept any more; submit the model again")
    check_range(request, path.stat().st_size)
    filename = filename or f"{_stem(job)}{_SUFFIX.get(name, f'.{name}.json')}"
    return FileResponse(path, media_type=media, headers=headers, filename=filename)


def _as_header(text: str) -> str:
    """A sentence that may hold names of the model's as the value of a header."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)[:500]


def _stem(job: Mapping[str, Any]) -> str:
    """What the files of a job are called when they are saved: as its model, so that they are found again."""
    name = str(job["name"] or (job["outputs"] or {}).get("name", ""))
    stem = re.sub(r"\.(?:onnx|json)$", "", name.rpartition("/")[2].rpartition("\\")[2])
    safe = re.sub(r"[^\w\u0300-\u036f.+@#=,()-]+", "_", stem).strip("._")[:100]
    return f"{safe}-superopt" if safe else f"superopt-{job['id'][:8]}"
