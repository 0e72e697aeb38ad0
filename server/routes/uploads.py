"""``/v1/uploads``: files in pieces, which go on where a connection was cut (tus 1.0.0)."""

from __future__ import annotations

import base64
import binascii

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from superopt.server.http import openapi as doc
from superopt.server.http.body import pieces
from superopt.server.http.problems import HttpProblem
from superopt.server.jobs.uploads import ResumableUpload
from superopt.server.optimization_service import of

__all__ = ["router"]

router = APIRouter(prefix="/v1/uploads", tags=["uploads"])
_VERSION = "1.0.0"
_TUS = {"Tus-Resumable": _VERSION, "Cache-Control": "no-store"}
_PIECE = "application/offset+octet-stream"


@router.options("", status_code=204, responses=doc.UPLOADS, summary="What of tus is spoken")
async def options_uploads(request: Request) -> Response:
    """Version, extensions and the longest upload."""
    most = of(request).uploads.most
    told = {"Tus-Version": _VERSION, "Tus-Extension": "creation,termination", "Tus-Max-Size": str(most)}
    return Response(status_code=204, headers={**_TUS, **told})


@router.post("", status_code=201, responses=doc.UPLOAD_MADE, openapi_extra=doc.tus("Upload-Length", "Upload-Metadata"),
             summary="Begin an upload")  # fmt: skip
async def post_upload(request: Request) -> Response:
    """Answers with its Location, to which PATCH sends pieces; ``Upload-Metadata: filename BASE64`` names the file."""
    _spoken(request)
    service = of(request)
    caller = await service.caller(request)
    length = _number(request, "upload-length")
    made = await run_in_threadpool(service.uploads.create, caller.owner, length, _filename(request))
    return Response(status_code=201, headers={**_TUS, "Location": f"/v1/uploads/{made.id}", "Upload-Offset": "0"})


@router.head(
    "/{upload_id}", responses=doc.UPLOADS, openapi_extra=doc.tus(), summary="How much of an upload has arrived"
)
async def head_upload(upload_id: str, request: Request) -> Response:
    """``Upload-Offset`` is where to go on."""
    upload = await _found(upload_id, request)
    here = await run_in_threadpool(of(request).uploads.offset, upload)
    return Response(headers={**_TUS, "Upload-Offset": str(here), "Upload-Length": str(upload.length)})


@router.patch("/{upload_id}", status_code=204, responses=doc.UPLOADS, openapi_extra=doc.tus("Upload-Offset"),
              summary="Send a piece of an upload")  # fmt: skip
async def patch_upload(upload_id: str, request: Request) -> Response:
    """Adds the body at ``Upload-Offset``. What came before a connection was cut stays."""
    service = of(request)
    upload = await _found(upload_id, request)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _PIECE:
        raise HttpProblem(
            415, "unsupported-media-type", f"pieces are sent as {_PIECE}", headers={"Accept-Patch": _PIECE}
        )
    limits = service.settings.limits
    here = await service.uploads.append(
        upload, _number(request, "upload-offset"), pieces(request, limits, limits.body)
    )  # fmt: skip
    return Response(status_code=204, headers={**_TUS, "Upload-Offset": str(here)})


@router.delete("/{upload_id}", status_code=204, responses=doc.UPLOADS, openapi_extra=doc.tus(),
               summary="Forget an upload")  # fmt: skip
async def delete_upload(upload_id: str, request: Request) -> Response:
    """Jobs that were made of it keep what they need."""
    upload = await _found(upload_id, request)
    await run_in_threadpool(of(request).uploads.remove, upload)
    return Response(status_code=204, headers=_TUS)


def _spoken(request: Request) -> None:
    """Whoever speaks another version, or does not say which, must be told so before anything is done."""
    if request.headers.get("tus-resumable") != _VERSION:
        raise HttpProblem(
            412,
            "precondition-failed",
            f"send Tus-Resumable: {_VERSION}, the version of tus that is spoken",
            headers={"Tus-Version": _VERSION, **_TUS},
        )


async def _found(upload_id: str, request: Request) -> ResumableUpload:
    _spoken(request)
    service = of(request)
    caller = await service.caller(request)
    return await run_in_threadpool(service.uploads.find, upload_id, caller.owner)


def _number(request: Request, header: str) -> int:
    text = request.headers.get(header, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise HttpProblem(400, "bad-request", f"{header.title()} has to be a number of bytes")
    return int(text)


def _filename(request: Request) -> str:
    """The file's name from ``Upload-Metadata``: words and base64, with commas between."""
    for pair in request.headers.get("upload-metadata", "").split(","):
        name, _, value = pair.strip().partition(" ")
        if name == "filename":
            try:
                return base64.b64decode(value, validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                raise HttpProblem(400, "bad-request", "Upload-Metadata: the filename is not base64 of UTF-8") from None
    return ""
