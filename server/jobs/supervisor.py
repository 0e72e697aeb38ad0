"""``superopt serve`` and ``superopt worker``: the API and its worker processes, started and kept running together."""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import superopt
from superopt.fleet.child import ends_with
from superopt.ir.errors import UsageError
from superopt.server.http import logs
from superopt.server.settings import ConnectionLimits, ServiceLimits, ServiceSettings

__all__ = ["Workers", "host", "die_with_parent", "from_json", "serve", "to_json"]

log = logging.getLogger("superopt.serve")
_ROOT = str(Path(superopt.__file__).parents[1])
_START = "import sys; sys.path.append({root!r}); from superopt.server.jobs.worker import main; main()"
_SWITCH = 0.0005  # seconds a thread may keep the interpreter: cheap answers do not queue behind the database's work
_NEVER = 1 << 30
_BACKLOG = 2048  # connections that may wait to be accepted
_ACCEPTS = 64  # connections accepted between two looks at the network: libuv takes one for each handle of the socket
_A_HANDLE = 16  # open files that the process may have for each such handle: few of them where few may be open
_FILES = 256  # besides connections: the database, bodies that are received, results that are sent
_PATIENCE = 8.0  # seconds that a worker may take to give its job back


def to_json(settings: ServiceSettings) -> str:
    """The settings as text, for a command line."""
    return json.dumps(asdict(settings), default=str)


def from_json(text: str) -> ServiceSettings:
    """The settings that :func:`to_json` wrote."""
    data: dict[str, Any] = json.loads(text)
    corpus = Path(data["corpus"]) if data["corpus"] else None
    door = ConnectionLimits(**{**data["door"], "trusted_proxies": tuple(data["door"]["trusted_proxies"])})
    limits = ServiceLimits(**data["limits"])
    given = {"data": Path(data["data"]), "corpus": corpus, "stores": tuple(data["stores"]), "limits": limits}
    return ServiceSettings(**{**data, **given, "door": door})


def die_with_parent(parent: int) -> None:
    """End (by SIGKILL) when the parent thread does, however it ends; Linux only, elsewhere the lease has to do."""
    if not ends_with(parent):
        sys.exit(1)


class Workers:
    """Worker processes, started from one thread and started again when they die."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="workers", daemon=True)

    def start(self) -> None:
        """Start as many as the settings say."""
        self._thread.start()

    def stop(self) -> None:
        """Ask them to give their jobs back and end; after a while make them."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        self._processes = [self._spawn() for _ in range(self._settings.workers)]
        pause = 1.0
        while not self._stop.wait(pause):
            dead = [i for i, p in enumerate(self._processes) if p.poll() is not None]
            for index in dead:
                log.warning("worker %d ended with %s; starting another", self._processes[index].pid,
                            self._processes[index].returncode)  # fmt: skip
                self._processes[index] = self._spawn()
            pause = min(2 * pause, 10.0) if dead else 1.0
        self._end()  # here, because their PR_SET_PDEATHSIG counts threads: they would be killed when this one ends

    def _end(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", _START.format(root=_ROOT), to_json(self._settings), str(os.getpid())]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)


def host(settings: ServiceSettings) -> None:
    """Run workers, without the API, until SIGTERM or SIGINT; their jobs then go back to the queue."""
    logs.set_up(settings.log_level, settings.log_format)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    workers = Workers(settings)
    workers.start()
    while not ended.wait(60.0):  # a signal is handled between two waits, where one for ever would not let it
        pass
    workers.stop()


def serve(settings: ServiceSettings, announce: Callable[[str], None] | None = None) -> None:
    """Run the API and the workers until SIGTERM (exit code 0) or SIGINT (130).

    Args:
        settings: where it listens, and its limits.
        announce: told the address once it answers there.

    Raises:
        UsageError: it would listen beyond this machine without an API key; the database, the folder or the address
            cannot be used.
    """
    import uvicorn

    from superopt.server.app import create_app
    from superopt.server.http.connection import HttpConnection
    from superopt.server.http.socket_transport import BoundedReadProtocol

    _check(settings)
    settings = _with_room(settings)
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises the signal again once it has shut down
        signal.signal(number, _leave)
    logs.set_up(settings.log_level, settings.log_format, access=settings.access_log)
    sys.setswitchinterval(_SWITCH)
    with _listening(settings) as place:

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                gc.collect()
                gc.freeze()  # the library stays: looking through it again took 150 ms in which nothing was answered
                gc.set_threshold(*gc.get_threshold()[:2], _NEVER)  # the connections see to it, when there are few
                if announce is not None and self.started:
                    name = f"[{settings.host}]" if ":" in settings.host else settings.host
                    announce(f"http://{name}:{place.getsockname()[1]}")

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                app.state.service.watcher.close()
                await super().shutdown(sockets)

        app = create_app(settings)  # before the workers, which would take the processor from it
        connections = app.state.service.connections
        http: Any = lambda **uvicorn_gives: BoundedReadProtocol(HttpConnection(connections, **uvicorn_gives))  # noqa: E731
        server = Server(uvicorn.Config(
            app, log_config=None, log_level="warning", access_log=False, server_header=False, proxy_headers=False,
            http=http, ws="none", timeout_graceful_shutdown=5, backlog=_BACKLOG,
        ))  # fmt: skip
        workers = Workers(settings)
        workers.start()
        try:
            server.run(sockets=[place, *(place.dup() for _ in range(_handles() - 1))])
        finally:
            workers.stop()


def _check(settings: ServiceSettings) -> None:
    from sqlalchemy.exc import SQLAlchemyError

    from superopt.server.http.keys import ApiKeyStore
    from superopt.server.jobs.database import JobDatabase

    try:
        settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(f"{settings.data} cannot be made: {error.strerror}", hint="choose another --data") from None
    database = JobDatabase(settings.url)
    try:
        database.persist(database.migrate, 30)
        protected = ApiKeyStore(database).any()
    except SQLAlchemyError as error:
        raise UsageError(f"the database cannot be used: {str(getattr(error, 'orig', error)).splitlines()[0]}") from None
    finally:
        database.close()
    if not settings.private and not protected:
        others = "a trusted proxy speaks for" if settings.door.trusted_proxies else f"{settings.host} is open to"
        raise UsageError(
            f"without an API key only this machine may be served, and {others} others",
            hint=f"make a key: python -m superopt.server.http.keys --data {settings.data} add NAME",
        )


def _with_room(settings: ServiceSettings) -> ServiceSettings:
    """The settings with as many connections as the process may have open files for, which it is allowed now.

    Raises:
        UsageError: more connections are asked for than by default, and it may not have so many files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    asked = settings.door.connections
    wanted = asked + asked // 4 + _FILES  # a quarter may be closing
    if resource.RLIM_INFINITY in (soft, hard) or wanted <= hard:
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return settings
    if asked > ConnectionLimits().connections:
        raise UsageError(
            f"{asked} connections need {wanted} open files, and this process may have {hard}",
            hint="raise the limit (ulimit -Hn), or set SUPEROPT_CONNECTIONS lower",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    fitting = max(1, (hard - min(_FILES, hard // 2)) * 4 // 5)
    log.warning(
        "of %d connections %d may be open at once: this process may have %d open files; ulimit -Hn raises that",
        asked, fitting, hard,
    )  # fmt: skip
    return replace(settings, door=replace(settings.door, connections=fitting))


def _handles() -> int:
    """How many handles of the socket accept connections: fewer where few files may be open."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _ACCEPTS if files == resource.RLIM_INFINITY else min(_ACCEPTS, 1 + files // _A_HANDLE)


def _listening(settings: ServiceSettings) -> socket.socket:
    """The socket of the settings' address.

    Raises:
        UsageError: the address is in use, or is not one of this machine.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (")[0]
        raise UsageError(
            f"{settings.host}:{settings.port} cannot be listened on: {why}", hint="choose another --port"
        ) from None


def _leave(number: int, frame: object) -> None:
    raise SystemExit(130 if number == signal.SIGINT else 0)
