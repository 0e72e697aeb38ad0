"""``superopt serve`` and ``worker``; ``strip`` and ``apply`` for models that are optimized elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from superopt.cli.command_utilities import MOST_WORKERS, Force, Model, ModelInputPath, Seed, err, out, save
from superopt.cli.output_paths import claim
from superopt.ir.errors import UsageError

__all__ = ["COMMANDS"]

Data = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        envvar="SUPEROPT_DATA",
        help="where jobs are kept [$XDG_DATA_HOME/superopt, or ~/.local/share/superopt]",
    ),
]
DatabaseUrl = Annotated[
    str | None, typer.Option(metavar="URL", envvar="SUPEROPT_DATABASE", help="postgresql://… instead of SQLite in DIR")
]
Apart = Annotated[
    bool,
    typer.Option("--apart", envvar="SUPEROPT_APART",
                 help="hosts have folders of their own; files travel through the database (the same for all of them)"),
]  # fmt: skip
Proxies = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-proxy", metavar="ADDRESS", envvar="SUPEROPT_TRUSTED_PROXIES",
        help="believe the X-Forwarded-For of this address or network; again for more (docs/service.md)",
    ),
]  # fmt: skip
Stores = Annotated[
    list[str] | None,
    typer.Option(
        "--store", metavar="s3://BUCKET/FOLDER/", envvar="SUPEROPT_STORE",
        help="models may be named that lie below; again for more. Credentials as for any S3 client (docs/service.md)",
    ),
]  # fmt: skip
StoreResults = Annotated[
    str | None,
    typer.Option(metavar="s3://BUCKET/FOLDER/", envvar="SUPEROPT_STORE_RESULTS", help="results may be written below"),
]
Connections = Annotated[
    int, typer.Option(min=1, envvar="SUPEROPT_CONNECTIONS", help="connections that may be open at once")
]
PerAddress = Annotated[
    int, typer.Option(min=1, envvar="SUPEROPT_CONNECTIONS_PER_ADDRESS", help="of them, those of one client address")
]
LogLevel = Annotated[
    str, typer.Option(envvar="SUPEROPT_LOG_LEVEL", metavar="LEVEL", help="debug, info, warning or error")
]
LogFormat = Annotated[
    str,
    typer.Option(envvar="SUPEROPT_LOG_FORMAT", metavar="FORMAT",
                 help="json (an object a line), text, or auto: text where standard error is a terminal"),
]  # fmt: skip
AccessLog = Annotated[bool, typer.Option(envvar="SUPEROPT_ACCESS_LOG", help="log a line a request")]
Webhooks = Annotated[
    str,
    typer.Option(envvar="SUPEROPT_WEBHOOKS", metavar="WHERE",
                 help="where clients may have the end of a job told: off, public (addresses) or any (private, too)"),
]  # fmt: skip


def serve(
    host: Annotated[str, typer.Option(help="beyond 127.0.0.1 an API key is needed")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    workers: Annotated[int, typer.Option(min=0, help="worker processes; 0 leaves the work to `superopt worker`")] = 1,
    data: Data = None,
    database: DatabaseUrl = None,
    apart: Apart = False,
    trusted_proxy: Proxies = None,
    store: Stores = None,
    store_results: StoreResults = None,
    connections: Connections = 1000,
    connections_per_address: PerAddress = 256,
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
    access_log: AccessLog = True,
    webhooks: Webhooks = "off",
) -> None:
    """Serve the HTTP API and its pages, with workers, in one command.

    What a connection may take and how slow it may be is set by SUPEROPT_HEADER_BYTES, SUPEROPT_HEADER_SECONDS and
    others: docs/service.md, GET /v1/limits.
    """
    from superopt import server

    def announce(url: str) -> None:
        typer.echo(f"superopt serves {url} with {workers} worker(s); Ctrl-C ends it", err=True)

    door = server.ConnectionLimits.from_environment(
        os.environ, trusted_proxies=_names(trusted_proxy), connections=connections,
        connections_per_address=connections_per_address,
    )  # fmt: skip
    stores = {"stores": _names(store), "store_results": store_results or None}
    logs = {"log_level": log_level, "log_format": log_format, "access_log": access_log}
    settings = _settings(data, database, apart=apart, host=host, port=port, workers=workers, door=door,
                         webhooks=webhooks, **stores, **logs)  # fmt: skip
    server.serve(settings, announce)


def worker(
    data: Data = None,
    database: DatabaseUrl = None,
    apart: Apart = False,
    workers: Annotated[int, typer.Option(min=1, max=MOST_WORKERS, help="worker processes of this host")] = 1,
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Run jobs of a service that shares this database, and this folder unless hosts are --apart."""
    from superopt import server

    if apart and database is None:
        raise UsageError("--apart shares nothing but a database", hint="--database postgresql://user@host/name")
    logs = {"log_level": log_level, "log_format": log_format}
    server.work(_settings(data, database, apart=apart, workers=workers, **logs))


def _names(given: list[str] | None) -> tuple[str, ...]:
    """Names that came one by one, or with commas between them."""
    return tuple(name for text in given or () for name in text.replace(",", " ").split())


def _settings(data: Path | None, database: str | None, /, **more: Any) -> Any:
    from superopt import server

    folder = (data or server.default_data()).absolute()
    return server.ServiceSettings(data=folder, database=database, corpus=server.examples(), **more)


Output = Annotated[str, typer.Option("-o", "--output", metavar="OUT", help=".onnx or .json; - for stdout")]


def strip(model: Model, output: Output, force: Force = False) -> None:
    """Write MODEL's topology: shapes, operators, attributes, integers and single numbers, and no weights.

    Optimize it anywhere (superopt optimize, POST /v1/jobs); superopt apply puts what came back onto MODEL.
    """
    from superopt.formats import load
    from superopt.pipeline.weightless_optimization import topology

    if output.endswith(".onnx") or output == "-":
        raise UsageError("a topology is a JSON graph: ONNX has no weights without elements", hint="-o NAME.json")
    claim({"-o": output}, [model], force=force)
    with ModelInputPath(model) as path:
        save(topology(load(path)), output, force)


def apply(
    model: Model,
    patch: Annotated[str, typer.Argument(metavar="PATCH", help="what was made of MODEL's topology")],
    output: Output,
    seed: Seed = 0,
    no_check: Annotated[bool, typer.Option("--no-check", help="skip the check against MODEL")] = False,
    force: Force = False,
) -> None:
    """Apply to MODEL what was made of its topology, and compare the result with MODEL (exit 5 where it differs)."""
    from superopt.formats import load
    from superopt.pipeline.weightless_optimization import apply as applied

    claim({"-o": output}, [model, patch], force=force)
    with ModelInputPath(model) as first, ModelInputPath(patch) as second:
        graph, found_check = applied(load(first), load(second), seed=seed, check=not no_check)
        save(graph, output, force)
    console = err() if output == "-" else out()
    if found_check is not None:
        console.print(
            f"check {found_check.verdict}: {found_check.trials} trials, max rel error {found_check.max_rel_error:.2e}, "
            f"max abs error {found_check.max_abs_error:.2e} {found_check.reason}".rstrip(),
            markup=False,
        )
    if output != "-":
        console.print(f"wrote {output}", markup=False)


COMMANDS = (strip, apply, serve, worker)
