"""The HTTP resources, a router each."""

from fastapi import Depends
from fastapi.routing import APIRoute
from starlette.requests import Request

from superopt.server.http.head_method import ASKED
from superopt.server.http.parameters import refuse_unknown
from superopt.server.routes.gallery import router as gallery
from superopt.server.routes.jobs import router as jobs
from superopt.server.routes.library_pages import router as library
from superopt.server.routes.meta import router as meta
from superopt.server.routes.optimize_and_inspect import router as optimize
from superopt.server.routes.pages import router as pages
from superopt.server.routes.rules import router as rules
from superopt.server.routes.uploads import router as uploads

__all__ = ["HEAD_AGAIN", "ONLY_KNOWN", "ROUTERS"]


async def _only_known(request: Request) -> None:
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    if route.include_in_schema:  # a page may be linked to with whatever a mailer adds
        listed = (route.openapi_extra or {}).get("parameters", ())
        declared = [p.alias for p in route.dependant.query_params]
        refuse_unknown(request.query_params, [*declared, *(p["name"] for p in listed if p["in"] == "query")])


async def _head_again(request: Request) -> None:
    if request.scope.get(ASKED):
        request.scope["method"] = "HEAD"


HEAD_AGAIN = Depends(_head_again)  # once a HEAD has found its route: a file's answer then does not read the file
ONLY_KNOWN = Depends(_only_known)  # a query parameter that the OpenAPI document does not name is refused

ROUTERS = (optimize, jobs, uploads, rules, gallery, meta, pages, library)
