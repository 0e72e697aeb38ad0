"""Looking at a model before it is optimized: its facts and its drawing, without a job."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from superopt.ir.errors import printable
from superopt.server.http import openapi as doc
from superopt.server.http.body import ReceivedModel, receive
from superopt.server.http.problems import HttpProblem
from superopt.server.optimization_service import of
from superopt.server.routes.pages import received_model
from superopt.server.routes.render import page

__all__ = ["router"]

router = APIRouter(tags=["optimize"])


@router.post("/v1/inspect", responses=doc.INSPECTION, openapi_extra=doc.model_body(), summary="Look at a model")
async def post_inspect(request: Request) -> Response:
    """Operators, shapes, weights and work of a model, and its graph as ``GET /v1/jobs/{id}/comparison`` has it.

    Nothing is rewritten and no job is made.
    """
    service = of(request)
    await service.caller(request)
    upload: ReceivedModel = await receive(request, service.blobs, service.settings.limits, service.settings.limits.body)
    return JSONResponse(await service.slowly(service.inspector.inspected, upload))


@router.post("/inspect", include_in_schema=False)
async def post_inspect_page(request: Request) -> Response:
    """The same as a page, from the form's second button."""
    service = of(request)
    try:
        upload, _, name = await received_model(service, request)
        found = await service.slowly(service.inspector.inspected, upload)
    except HttpProblem as problem:
        return page("problem.html", "/", status=problem.status, problem=problem.body)
    return page("inspect.html", "/", wide=True, name=name or printable(found["name"], 120) or "Model", found=found)


@router.get("/inspect", include_in_schema=False)
async def get_inspect_page() -> Response:
    """A page that was sent by a form is opened again by its address: back to the form."""
    return RedirectResponse("/", 303)
