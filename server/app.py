"""The application: routes, problems for everything that goes wrong, and the guards in front of them."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

from anyio import to_thread
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from superopt.ir.errors import printable
from superopt.server.http import openapi
from superopt.server.http.head_method import HeadAsGet
from superopt.server.http.health import HealthCheckMiddleware
from superopt.server.http.problems import HttpProblem, from_meaning
from superopt.server.http.response_cache import ResponseCache
from superopt.server.http.security_middleware import SecurityMiddleware
from superopt.server.http.system_errors import meaning
from superopt.server.optimization_service import OptimizationService
from superopt.server.routes import HEAD_AGAIN, ONLY_KNOWN, ROUTERS
from superopt.server.routes.render import problem_answer
from superopt.server.settings import ServiceSettings

__all__ = ["create_app"]

log = logging.getLogger("superopt.serve")
_HERE = Path(__file__).parent
_THREADS = 8  # for the database: as many as its pool keeps; more only take the interpreter from one another
_KINDS = {404: "not-found", 405: "method-not-allowed", 413: "too-large", 415: "unsupported-media-type"}


def create_app(settings: ServiceSettings) -> FastAPI:
    """The ASGI application of one service. Workers run beside it (:mod:`superopt.server.jobs.supervisor`)."""
    service = OptimizationService(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        to_thread.current_default_thread_limiter().total_tokens = _THREADS
        await run_in_threadpool(service.database.persist, service.database.migrate, 30.0)
        await service.health.start()
        await service.watcher.start()
        await service.webhooks.start()
        yield
        await service.webhooks.stop()
        await service.watcher.stop()
        await service.health.stop()
        service.database.close()

    app = FastAPI(
        title="superopt", version=version("superopt"), lifespan=lifespan, docs_url=None, redoc_url=None,
        openapi_url="/openapi.json", generate_unique_id_function=_operation_id, redirect_slashes=False,
        description="Makes neural networks faster with rewrite rules that it proved: POST a graph, get a faster one.",
    )  # fmt: skip
    app.state.service = service
    app.openapi = lambda: openapi.document(app)  # type: ignore[method-assign]
    for router in ROUTERS:
        app.include_router(router, dependencies=[ONLY_KNOWN, HEAD_AGAIN])
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    _handle_problems(app)
    app.add_middleware(ResponseCache)
    app.add_middleware(HealthCheckMiddleware, health=service.health)
    app.add_middleware(HeadAsGet, routes=[route for router in ROUTERS for route in router.routes])
    app.add_middleware(SecurityMiddleware, service=service)  # the outermost
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


def _allowed(app: FastAPI, path: str, named: str) -> str:
    """The methods of a resource; the framework names only those of the first route that has its path."""
    methods = {name.strip() for name in named.split(",")}
    for template, operations in app.openapi()["paths"].items():
        if re.fullmatch(re.sub(r"\{[^}]+\}", "[^/]+", template), path):
            methods = {name.upper() for name in operations}
            break
    return ", ".join(sorted(methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())))


def _handle_problems(app: FastAPI) -> None:
    @app.exception_handler(HttpProblem)
    async def _problem(request: Request, error: HttpProblem) -> Response:
        return problem_answer(request, error)

    @app.exception_handler(RequestValidationError)
    async def _validation(request: Request, error: RequestValidationError) -> Response:
        places = [{"parameter": str(e["loc"][-1]), "detail": str(e["msg"])} for e in error.errors()]
        text = "; ".join(f"{p['parameter']}: {p['detail']}" for p in places)
        return problem_answer(request, HttpProblem(400, "invalid-parameter", text, errors=places))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        kind = _KINDS.get(error.status_code, "bad-request" if error.status_code < 500 else "internal")
        headers, detail = dict(error.headers or {}), str(error.detail)
        if error.status_code == 405:
            headers["Allow"] = _allowed(app, request.url.path, headers.get("Allow", ""))
            if request.method == "OPTIONS":
                return Response(status_code=204, headers={"Allow": headers["Allow"]})
            detail = f"{request.method} is none of its methods; they are {headers['Allow']}"
        elif error.status_code == 404:
            detail = f"there is nothing at {printable(request.url.path)}; /api describes what there is"
        return problem_answer(request, HttpProblem(error.status_code, kind, detail, headers=headers))

    @app.exception_handler(ClientDisconnect)
    async def _gone(request: Request, error: ClientDisconnect) -> Response:
        return HttpProblem(400, "bad-request", "the body ended early").response()  # nobody is there to read it

    @app.exception_handler(SQLAlchemyError)
    async def _database(request: Request, error: SQLAlchemyError) -> Response:
        return _machine(request, getattr(error, "orig", error) or error, "the database does not answer", 2)

    @app.exception_handler(OSError)
    async def _system(request: Request, error: OSError) -> Response:
        return _machine(request, error, "the service cannot read or write its files now", 10)

    @app.exception_handler(Exception)
    async def _bug(request: Request, error: Exception) -> Response:
        log.exception("%s %s", request.method, request.url.path, exc_info=error)
        return problem_answer(request, HttpProblem(500, "internal", "an error in the service; please report it"))


def _machine(request: Request, error: BaseException, otherwise: str, retry_after: int) -> Response:
    """The answer where the machine of the service is at fault; the log names the file, and what may help."""
    found = meaning(error)
    remedy = f"; {found.remedy}" if found else ""
    log.error("%s %s: %s%s", request.method, request.url.path, error, remedy)
    problem = (
        HttpProblem(503, "unavailable", otherwise, retry_after=retry_after) if found is None else from_meaning(found)
    )
    return problem_answer(request, problem)
