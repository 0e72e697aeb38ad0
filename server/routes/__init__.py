"""The HTTP resources, a router each."""

from superopt.server.routes.jobs import router as jobs
from superopt.server.routes.library import router as library
from superopt.server.routes.meta import router as meta
from superopt.server.routes.optimize import router as optimize
from superopt.server.routes.pages import router as pages
from superopt.server.routes.rules import router as rules

__all__ = ["ROUTERS"]

ROUTERS = (optimize, jobs, rules, meta, pages, library)
