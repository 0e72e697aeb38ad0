"""A service in a temporary folder: the application alone, or a live one with a worker; SQLite, and PostgreSQL."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

for _library in ("fastapi", "sqlalchemy", "uvicorn", "jinja2", "python_multipart", "httpx"):
    pytest.importorskip(_library, reason="the service is an extra: pip install 'superopt[server]' httpx")

with warnings.catch_warnings(action="ignore"):  # Starlette recommends the successor of httpx
    from starlette.testclient import TestClient

from superopt.server.app import create_app  # noqa: E402
from superopt.server.jobs.database import JobDatabase  # noqa: E402
from superopt.server.jobs.store import JobStore  # noqa: E402
from superopt.server.settings import ServiceLimits, ServiceSettings  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))  # test modules are no package; this is how they share a module
from service_testing import POSTGRES, Live, Stopwatch, free_port, postgres, start, stop  # noqa: E402


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """The application without workers: jobs stay queued."""
    with TestClient(create_app(ServiceSettings(data=tmp_path)), base_url="http://localhost") as made:
        yield made


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service with one worker, a short lease and small limits."""
    limits = ServiceLimits(
        grace=1.0, sync_body=1 << 16, body=1 << 20, body_idle=1.0, search_seconds=30.0, job_memory=4 << 30
    )
    folder = tmp_path_factory.mktemp("live")
    started = start(ServiceSettings(data=folder, port=free_port(), lease=2.0, poll=0.1, limits=limits))
    yield started
    stop(started)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server of Debian's package in a temporary folder, or the one in ``SUPEROPT_TEST_POSTGRES``."""
    if given := os.environ.get("SUPEROPT_TEST_POSTGRES"):
        yield given
        return
    pytest.importorskip("psycopg", reason="needs the extra postgres: pip install 'superopt[postgres]'")
    if not (POSTGRES / "initdb").exists():
        pytest.skip("no PostgreSQL 15 here: apt-get install postgresql-15, or set SUPEROPT_TEST_POSTGRES to a URL")
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobDatabase]:
    """An empty, migrated database of either kind."""
    if request.param == "sqlite":
        made = JobDatabase(f"sqlite:///{tmp_path}/jobs.sqlite")
    else:
        made = JobDatabase(ServiceSettings(data=tmp_path, database=request.getfixturevalue("postgres_url")).url)
        with made.write() as connection:
            connection.exec_driver_sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    made.migrate()
    yield made
    made.close()


@pytest.fixture
def clock() -> Stopwatch:
    return Stopwatch()


@pytest.fixture
def store(database: JobDatabase, clock: Stopwatch) -> JobStore:
    return JobStore(database, ServiceLimits(attempts=2, per_minute=500, active=500), clock)
