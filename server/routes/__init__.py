"""The HTTP resources, a router each."""

from superopt.server.routes import jobs, meta, optimize, pages, rules

__all__ = ["ROUTERS"]

ROUTERS = (optimize.router, jobs.router, rules.router, meta.router, pages.router)
