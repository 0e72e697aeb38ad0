"""The HTTP service and its pages: ``serve`` and ``work``. What they need beyond superopt is the extra ``server``."""

from __future__ import annotations

if __name__ != "superopt.server":
    raise ImportError("import superopt.server; server/ is where its source lives")

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from superopt.ir.errors import UsageError
from superopt.server.settings import ConnectionLimits, ServiceLimits, ServiceSettings, default_data

__all__ = [
    "ConnectionLimits",
    "ServiceLimits",
    "ServiceSettings",
    "default_data",
    "examples",
    "require",
    "serve",
    "work",
]

_NEEDED = ("fastapi", "uvicorn", "httptools", "sqlalchemy", "jinja2", "python_multipart")


def require() -> None:
    """Refuse with the way out when the extra is not installed.

    Raises:
        UsageError: a library is missing.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(f"the service needs {', '.join(missing)}", hint="pip install 'superopt[server]'")


def examples() -> Path:
    """The gallery: the corpus' models, and what was recorded of them. In a checkout its files are links."""
    return Path(__file__).parent / "gallery"


def serve(settings: ServiceSettings, announce: Callable[[str], None] | None = None) -> None:
    """Run the API and its workers until interrupted; ``announce`` is told the address once it answers there.

    Raises:
        UsageError: a library is missing, or it would be open to others without an API key, or cannot listen.
    """
    require()
    from superopt.server.jobs import supervisor

    supervisor.serve(settings, announce)


def work(settings: ServiceSettings) -> None:
    """Run jobs of a service that runs elsewhere, until interrupted, in as many processes as the settings say.

    Raises:
        UsageError: a library is missing.
    """
    require()
    from superopt.server.http import logs
    from superopt.server.jobs import supervisor, worker

    if settings.workers > 1:
        supervisor.host(settings)
    else:
        logs.set_up(settings.log_level, settings.log_format)
        worker.work(settings)
