"""RFC 9457 problems: one exception that handlers raise, and how the engine's own errors read over HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import JSONResponse

from superopt.server.http.system_errors import SystemErrorMeaning

__all__ = ["MEDIA", "TITLES", "HttpProblem", "from_meaning", "from_outcome"]

MEDIA = "application/problem+json"
_URN = "urn:superopt:problem:"

TITLES: Mapping[str, str] = {
    "bad-request": "The request is not understood",
    "unauthorised": "An API key is needed",
    "forbidden": "Not allowed",
    "not-found": "Not found",
    "method-not-allowed": "The resource does not do that",
    "not-acceptable": "No representation that the Accept header names",
    "header-timeout": "The headers came too slowly",
    "body-timeout": "The body came too slowly",
    "header-too-large": "The headers are too large",
    "url-too-long": "The address is too long",
    "expectation-failed": "This expectation cannot be met",
    "not-implemented": "This way of sending is not understood",
    "http-version": "This version of HTTP is not spoken",
    "conflict": "The request does not fit the state of what it names",
    "not-ready": "The job has no result yet",
    "precondition-failed": "A version of the protocol that is not spoken",
    "gone": "It was here, and is not kept any more",
    "invalid-reference": "The reference leads to no model",
    "too-large": "The body is too large",
    "range-not-satisfiable": "The Range lies beyond the end",
    "unsupported-media-type": "This kind of body is not read",
    "invalid-parameter": "A parameter is wrong",
    "invalid-rule": "This is no rule",
    "invalid-model": "The model is not valid",
    "unsupported-model": "The model holds what superopt does not understand",
    "usage": "The options do not fit together",
    "resource-limit": "The work is more than a limit allows",
    "crashed": "The process that worked on this model died",
    "job-lost": "Every worker that tried the job died",
    "job-cancelled": "The job was cancelled",
    "idempotency-key-reused": "The Idempotency-Key stands for another request",
    "quota": "Over a quota",
    "queue-full": "The queue is full",
    "internal": "An error of the service",
    "unavailable": "The service cannot answer now",
    "disk-full": "The disk of the service is full",
    "too-many-files": "The service has too many files open",
    "not-writable": "The service may not write where it keeps its files",
    "out-of-memory": "The machine of the service has no memory left",
    "disk-error": "The disk of the service reports errors",
}
# exit code of the engine's error → (status, type)
_ENGINE: Mapping[int, tuple[int, str]] = {
    2: (400, "usage"), 3: (422, "invalid-model"), 4: (422, "unsupported-model"), 5: (422, "unsupported-model"),
    6: (422, "unsupported-model"), 7: (422, "resource-limit"), 130: (422, "resource-limit"),
}  # fmt: skip
_NODE = re.compile(r"""node (["'])(?P<name>.*)\1(?: \(.*\))?""")


class HttpProblem(Exception):  # RFC 9457's word
    """An answer that is no success.

    Args:
        status: the HTTP status.
        kind: a key of :data:`TITLES`; the problem's ``type`` is ``urn:superopt:problem:<kind>``.
        detail: what is wrong with this request, and what to do.
        errors: each place at which it is wrong: ``detail`` and ``pointer``, ``node`` or ``parameter``.
        retry_after: seconds after which to try again.
        headers: more headers of the answer.
    """

    def __init__(
        self, status: int, kind: str, detail: str, *, errors: Sequence[Mapping[str, str]] = (),
        retry_after: int | None = None, headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.errors = list(errors)
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)

    @property
    def body(self) -> dict[str, Any]:
        """The problem document."""
        found = {
            "type": _URN + self.kind, "title": TITLES[self.kind], "status": self.status, "detail": self.detail,
        }  # fmt: skip
        return {**found, "errors": [dict(e) for e in self.errors]} if self.errors else found

    def response(self) -> JSONResponse:
        """As an HTTP answer."""
        return JSONResponse(self.body, self.status, self.headers, MEDIA)


def from_meaning(found: SystemErrorMeaning) -> HttpProblem:
    """The problem of an error of the operating system."""
    return HttpProblem(503, found.kind, found.text, retry_after=found.retry_after)


def from_outcome(error: Mapping[str, Any]) -> HttpProblem:
    """The problem that a failed job ended with, from what its child or worker wrote down."""
    if "type" in error:
        return HttpProblem(int(error["status"]), str(error["type"]), str(error["detail"]))
    status, kind = _ENGINE.get(int(error.get("exit_code", 1)), (500, "internal"))
    where, what = str(error.get("where", "")), str(error.get("what", ""))
    text = "; ".join(part for part in (f"{where}: {what}" if where else what, str(error.get("hint", ""))) if part)
    return HttpProblem(status, kind, text, errors=[_place(where, what)])


def _place(where: str, what: str) -> dict[str, str]:
    """One entry of ``errors``: the JSON pointer or the node that the engine's message names."""
    found = {"detail": what}
    for part in where.split(", "):
        if part.startswith("/"):
            found["pointer"] = part
        elif match := _NODE.fullmatch(part):
            found["node"] = match["name"]
    return found
