"""The page of the API: the OpenAPI document and the examples, readable."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from superopt.server.http.problems import TITLES
from superopt.server.optimization_service import of
from superopt.server.routes.render import page

__all__ = ["EXAMPLES", "router"]

router = APIRouter(include_in_schema=False)
FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = {"Python": "optimize.py", "curl": "optimize.sh", "JavaScript": "optimize.mjs"}


@router.get("/api")
async def get_api_page(request: Request) -> Response:
    """Every operation with its parameters and answers; the examples as they are run by the tests."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, operations in request.app.openapi()["paths"].items():
        for method, found in operations.items():
            groups.setdefault((found.get("tags") or ["others"])[0], []).append(_operation(path, method, found))
    examples = [(title, name, _text(name)) for title, name in EXAMPLES.items()]
    return page("api.html", "/api", groups=groups, problems=TITLES, examples=examples,
                needs_key=await of(request).needs_key())  # fmt: skip


@router.get("/docs")
async def get_docs() -> Response:
    """Where FastAPI's services have such a page, and people look for it."""
    return RedirectResponse("/api", 308)


@cache
def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _operation(path: str, method: str, found: dict[str, Any]) -> dict[str, Any]:
    answers = [(status, answer.get("description", "")) for status, answer in sorted(found["responses"].items())]
    return {
        "id": found["operationId"], "method": method.upper(), "path": path, "summary": found["summary"],
        "description": found.get("description", "").replace("`", ""), "parameters": found.get("parameters", []),
        "bodies": list(found.get("requestBody", {}).get("content", {})),
        "answers": [(s, "" if text == "a problem" else text) for s, text in answers],
    }  # fmt: skip
