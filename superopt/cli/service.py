"""``superopt serve`` and ``superopt worker``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["COMMANDS"]

Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", envvar="SUPEROPT_DATA", help="where jobs are kept [~/.local/share/superopt]"),
]
DatabaseUrl = Annotated[
    str | None, typer.Option(metavar="URL", envvar="SUPEROPT_DATABASE", help="postgresql://… instead of SQLite in DIR")
]


def serve(
    host: Annotated[str, typer.Option(help="beyond 127.0.0.1 an API key is needed")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    workers: Annotated[int, typer.Option(min=0, help="worker processes; 0 leaves the work to `superopt worker`")] = 1,
    data: Data = None,
    database: DatabaseUrl = None,
) -> None:
    """Serve the HTTP API and its pages, with workers, in one command."""
    from superopt import server

    def announce(url: str) -> None:
        typer.echo(f"superopt serves {url} with {workers} worker(s); Ctrl-C ends it", err=True)

    server.serve(_settings(data, database, host=host, port=port, workers=workers), announce)


def worker(data: Data = None, database: DatabaseUrl = None) -> None:
    """Run jobs of a service that shares this database and folder."""
    from superopt import server

    server.work(_settings(data, database))


def _settings(data: Path | None, database: str | None, **more: Any) -> Any:
    from superopt import server

    folder = (data or server.default_data()).absolute()
    return server.Settings(data=folder, database=database, corpus=server.examples(), **more)


COMMANDS = (serve, worker)
