"""A problem as an answer: a page where a browser asks for one, else RFC 9457's document."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from superopt.server.http.problems import HttpProblem
from superopt.server.routes.render import page

__all__ = ["answer"]

_HTML = ("text/html", "application/xhtml+xml")


def answer(request: Request, problem: HttpProblem) -> Response:
    """The answer to a request that cannot be met."""
    if not _wants_page(request.headers.get("accept", "")):
        response: Response = problem.response()
    else:
        response = page("problem.html", "", status=problem.status, headers=problem.headers, problem=problem.body)
    response.headers["Vary"] = "Accept"
    return response


def _wants_page(accept: str) -> bool:
    """Whether an Accept header names HTML, as browsers do for what is to be looked at, before any JSON."""
    for part in accept.lower().split(","):
        media = part.partition(";")[0].strip()
        if media in _HTML:
            return True
        if media.endswith("json"):
            return False
    return False
