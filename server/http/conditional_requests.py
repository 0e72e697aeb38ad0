"""Conditions and ranges of a GET, read alike for every resource: RFC 9110, sections 13.1.2 and 14.2."""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from superopt.server.http.problems import HttpProblem

__all__ = ["check_range", "is_current", "not_modified"]

_TAG = re.compile(r'"[^"]*"')
_RANGE = re.compile(r"(\d{1,19})-(\d{0,19})|-(\d{1,19})")


def is_current(if_none_match: str, tag: str) -> bool:
    """Whether what the client has is what it would get, so that it is answered 304.

    Args:
        if_none_match: the header as it came; empty where there is none.
        tag: the ETag of what would be sent, in its quotes, without ``W/``.
    """
    return if_none_match.strip() == "*" or tag in _TAG.findall(if_none_match)


def not_modified(request: Request, headers: Mapping[str, str]) -> Response | None:
    """The answer 304 with these headers, where the client has what their ETag names."""
    if is_current(request.headers.get("if-none-match", ""), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return None


def check_range(request: Request, size: int) -> None:
    """Take a Range that is none out of the request, as RFC 9110 says, before a file is sent by it.

    Raises:
        HttpProblem: 416 where all its ranges lie beyond the end.
    """
    units, _, text = request.headers.get("range", "").partition("=")
    found = [_RANGE.fullmatch(part.strip()) for part in text.split(",")]
    well_formed = units.strip().lower() == "bytes" and all(
        m is not None and not (m[2] and int(m[2]) < int(m[1])) for m in found
    )
    if not well_formed:
        request.scope["headers"] = [(n, v) for n, v in request.scope["headers"] if n != b"range"]
    elif all(m is not None and (int(m[1]) >= size if m[3] is None else not int(m[3])) for m in found):
        raise HttpProblem(416, "range-not-satisfiable", f"the file has {size} bytes, and the Range begins after them",
                      headers={"Content-Range": f"bytes */{size}"})  # fmt: skip
