"""Templates → answers: what every page knows, how values are written, and a problem as a page or a document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from superopt.ir.errors import printable
from superopt.report import outcome
from superopt.report.headline import price_basis
from superopt.report.quantities import (
    bytes_text,
    count_text,
    counted,
    scientific_text,
    speedup_text,
    time_text,
    unbroken,
)
from superopt.server.http.problems import HttpProblem

__all__ = ["SEARCH_ENDS", "VERDICTS", "built", "page", "problem_answer"]


_HERE = Path(__file__).parents[1]
VERDICTS = {
    "proved_all_sizes": "proved for all sizes",
    "tested": "tested exactly, not proved", "refuted": "false", "unknown": "not known", "evaluated": "computed",
}  # fmt: skip
SEARCH_ENDS = {  # why a search ended
    "saturated": "no rule added anything new", "nodes": "its limit on the size of e-graphs was reached",
    "steps": "its limit on rounds was reached", "memory": "its memory limit was reached",
    "time": "its time limit was reached", "interrupted": "it was interrupted",
}  # fmt: skip
_PROOF = {  # what a verdict's parts are called
    "steps": "Steps", "ranks": "Proved rank by rank", "leading": "Leading axes", "nonzero": "Conditions on elements",
    "preconditions": "Preconditions",
}  # fmt: skip


_HTML = ("text/html", "application/xhtml+xml")


def built() -> bool:
    """Whether the interactive parts are there; without them pages are readable and say so."""
    return (_HERE / "static" / "app" / "app.js").is_file()


def _decimal(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _scientific(value: float | None) -> str:
    return "–" if value is None else scientific_text(value)


def _verdict(measured: Mapping[str, Any]) -> str:
    """The class of a measured ratio: ``good`` or ``worse``, or nothing where it shows no difference."""
    rounds = {"rounds": int(measured["runs"])} if "runs" in measured else {}  # benchmarks have enough
    found = outcome(float(measured["ratio"]), float(measured["spread"]), **rounds)
    return {"faster": "good", "slower": "worse"}.get(found, "")


def _unbroken(write: Callable[..., str]) -> Callable[..., str]:
    """A way to write a quantity, on pages: its number and its unit stay in one line."""
    return lambda *given: unbroken(write(*given))


@lru_cache(maxsize=1)
def _templates() -> Environment:
    made = Environment(loader=FileSystemLoader(_HERE / "templates"), autoescape=select_autoescape(default=True),
                       undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    made.filters |= {
        "us": _unbroken(time_text), "count": _unbroken(count_text), "size": _unbroken(bytes_text),
        "speedup": _unbroken(speedup_text), "unbroken": unbroken, "printable": printable, "zip": zip,
        "decimal": _decimal, "scientific": _scientific, "verdict": _verdict, "operators": counted,
        "price_basis": _unbroken(price_basis),
    }  # fmt: skip
    made.globals |= {"version": version("superopt"), "verdict_words": VERDICTS, "proof_words": _PROOF,
                     "search_ends": SEARCH_ENDS, "wide": False}  # fmt: skip
    return made


def page(
    template: str, here: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any
) -> Response:
    """A page.

    Args:
        template: its file.
        here: the address of its entry in the menu.
        status: of the answer.
        headers: of the answer.
        **values: what the template shows.
    """
    text = _templates().get_template(template).render(here=here, built=built(), **values)
    return HTMLResponse(text, status, dict(headers or {}))


def problem_answer(request: Request, problem: HttpProblem) -> Response:
    """The problem_answer to a request that cannot be met."""
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
