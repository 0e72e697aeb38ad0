"""A connection that is over is gone: a crowd that leaves must not wait for the garbage collector, which stops all."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the service is an extra: pip install 'superopt[server]'")

import uvicorn

from superopt.server.http.connection import HttpConnection
from superopt.server.http.connections import OpenConnections
from superopt.server.http.socket_transport import BoundedReadProtocol
from superopt.server.settings import ConnectionLimits

GET = b"GET /x HTTP/1.1\r\nHost: localhost\r\n"
SAID = {
    "nothing": b"", "a request": GET + b"\r\n", "half a request": GET + b"X: ", "garbage": b"garbage\r\n\r\n",
    "a body that ends early": b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{",
    "a pipeline that is too long": (GET + b"\r\n") * 40,
}  # fmt: skip


async def _app(scope: Any, receive: Any, send: Any) -> None:
    while (await receive())["type"] != "http.disconnect" and scope["method"] == "POST":
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("said", SAID)
def test_a_lost_connection_is_no_garbage(said: str) -> None:
    made: list[weakref.ref[HttpConnection]] = []

    async def run() -> None:
        config = uvicorn.Config(_app, log_level="critical", lifespan="off")
        config.load()
        state = uvicorn.server.ServerState()
        connections = OpenConnections(ConnectionLimits(linger_seconds=0.1), 1 << 20)

        def protocol() -> BoundedReadProtocol:
            one = HttpConnection(connections, config=config, server_state=state, app_state={})
            made.append(weakref.ref(one))
            return BoundedReadProtocol(one)

        loop = asyncio.get_running_loop()
        server = await loop.create_server(protocol, "127.0.0.1", 0)
        for _ in range(3):
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            writer.write(SAID[said])
            await asyncio.sleep(0.05)
            writer.transport.abort()
        for _ in range(100):
            if all(one() is None for one in made):
                break
            await asyncio.sleep(0.02)
        server.close()

    gc.disable()  # what is found below was freed without it
    try:
        asyncio.run(run())
        assert len(made) == 3
        assert [one() for one in made] == [None] * 3
    finally:
        gc.enable()
