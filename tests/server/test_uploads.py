"""Uploads that are cut and go on: nothing is lost, nothing is twice, and only their owner adds to them."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from service_testing import Live, free_port, start, stop, tiny, until
from starlette.testclient import TestClient
from test_live import with_data

from superopt.server.app import create_app
from superopt.server.database import Database
from superopt.server.keys import Keys
from superopt.server.problems import Problem
from superopt.server.settings import Limits, Settings
from superopt.server.uploads import Uploads

TUS = {"Tus-Resumable": "1.0.0"}
PIECE = {**TUS, "Content-Type": "application/offset+octet-stream"}


def named(name: str) -> dict[str, str]:
    return {**TUS, "Upload-Metadata": f"filetype dGV4dA==, filename {base64.b64encode(name.encode()).decode()}"}


def begin(http: httpx.Client, name: str, length: int) -> str:
    made = http.post("/v1/uploads", headers={"Upload-Length": str(length), **named(name)})
    assert made.status_code == 201, made.text
    assert made.headers["tus-resumable"] == "1.0.0"
    return str(made.headers["location"])


def cut(live: Live, place: str, offset: int, sent: bytes, length: int) -> None:
    """Announce a piece, send some of it, and hang up."""
    with socket.create_connection(("127.0.0.1", live.settings.port), timeout=20) as connection:
        head = f"PATCH {place} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {PIECE['Content-Type']}\r\n"
        head += f"Tus-Resumable: 1.0.0\r\nUpload-Offset: {offset}\r\nContent-Length: {length}\r\n\r\n"
        connection.sendall(head.encode() + sent)


def offset(http: httpx.Client, place: str) -> int:
    return int(http.head(place, headers=TUS).headers["upload-offset"])


def test_a_model_arrives_over_a_connection_that_is_cut_twice(live: Live) -> None:
    files = {"model.onnx" if name == "graph" else name: body for name, body in with_data().items()}
    places = {}
    for name, body in files.items():
        place = places[name] = begin(live.http, name, len(body))
        third = len(body) // 3
        cut(live, place, 0, body[:third], len(body))
        until(lambda place=place, third=third: offset(live.http, place) == third, 10)
        cut(live, place, third, body[third : 2 * third], len(body) - third)
        until(lambda place=place, third=third: offset(live.http, place) == 2 * third, 10)
        wrong = live.http.patch(place, content=body[third:], headers={**PIECE, "Upload-Offset": str(third)})
        assert wrong.status_code == 409
        done = live.http.patch(place, content=body[2 * third :], headers={**PIECE, "Upload-Offset": str(2 * third)})
        assert (done.status_code, done.headers["upload-offset"]) == (204, str(len(body)))
    ids = [place.rsplit("/", 1)[1] for place in places.values()]
    answer = live.http.post("/v1/jobs", params={"upload": ids, "time_limit": 10})
    assert answer.status_code in (200, 202), answer.text  # at once where the same model was optimised before
    until(lambda: live.succeeded(answer), 120)
    assert live.http.get(answer.headers["location"]).json()["name"] == "model.onnx"
    for place in places.values():
        assert live.http.delete(place, headers=TUS).status_code == 204
        assert live.http.head(place, headers=TUS).status_code == 404
    again = live.http.post("/v1/jobs", params={"upload": ids})
    assert again.status_code == 404


def test_what_is_refused(client: TestClient) -> None:
    told = client.options("/v1/uploads")
    assert (told.status_code, told.headers["tus-version"]) == (204, "1.0.0")
    most = int(told.headers["tus-max-size"])
    long = client.post("/v1/uploads", headers={"Upload-Length": str(most + 1), **named("m.onnx")})
    assert long.status_code == 413
    for name in ("../m.onnx", ".m", "model", "", "a\x00b"):
        assert client.post("/v1/uploads", headers={"Upload-Length": "5", **named(name)}).status_code == 422
    for length in ("", "-1", "1e3", "٣"):
        headers = {"Upload-Length": length.encode("utf-8"), **{k: v.encode() for k, v in named("m.onnx").items()}}
        assert client.post("/v1/uploads", headers=headers).status_code == 400
    place = begin(client, "m.json", 20)
    more = client.patch(place, content=b"x" * 21, headers={**PIECE, "Upload-Offset": "0"})
    assert more.status_code == 413
    assert client.patch(place, content=b"x", headers={**TUS, "Upload-Offset": "0"}).status_code == 415
    half = client.post("/v1/jobs", params={"upload": place.rsplit("/", 1)[1]})
    assert half.status_code == 409
    assert "bytes of 20 have arrived" in half.json()["detail"]


def test_two_models_are_too_many(client: TestClient) -> None:
    ids = []
    for name in ("a.json", "b.json"):
        place = begin(client, name, len(tiny()))
        assert client.patch(place, content=tiny(), headers={**PIECE, "Upload-Offset": "0"}).status_code == 204
        ids.append(place.rsplit("/", 1)[1])
    assert client.post("/v1/jobs", params={"upload": ids}).status_code == 422
    assert client.post("/v1/jobs", params={"upload": ids[:1]}).status_code == 202


def test_only_the_owner_adds_and_only_so_many(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, limits=Limits(uploads=2))
    database = Database(settings.url)
    database.migrate()
    keys = [Keys(database).add(name) for name in ("one", "two")]
    database.close()
    first, second = ({"Authorization": f"Bearer {key}"} for key in keys)
    with TestClient(create_app(settings), base_url="http://localhost") as http:
        assert http.post("/v1/uploads", headers={"Upload-Length": "5", **named("m.onnx")}).status_code == 401
        made = [http.post("/v1/uploads", headers={"Upload-Length": "5", **named("m.onnx"), **first}) for _ in range(3)]
        assert [m.status_code for m in made] == [201, 201, 429]
        place = made[0].headers["location"]
        assert http.head(place, headers={**TUS, **second}).status_code == 404
        assert http.patch(place, content=b"x", headers={**PIECE, "Upload-Offset": "0", **second}).status_code == 404
        assert http.patch(place, content=b"x", headers={**PIECE, "Upload-Offset": "0", **first}).status_code == 204


def test_a_service_that_was_killed_knows_what_had_arrived(tmp_path: Path) -> None:
    settings = Settings(tmp_path, port=free_port(), workers=0)
    live = start(settings)
    try:
        place = begin(live.http, "m.json", 1000)
        cut(live, place, 0, b"x" * 400, 1000)
        until(lambda: offset(live.http, place) == 400, 10)
    finally:
        live.process.kill()
        live.process.wait()
        live.http.close()
    live = start(settings)
    try:
        assert offset(live.http, place) == 400
    finally:
        stop(live)


@pytest.mark.parametrize("age", [0.0, 1000.0])
def test_old_uploads_are_swept(client: TestClient, age: float) -> None:
    place = begin(client, "m.json", 10)
    client.app.state.service.uploads.sweep(age - 1.0)  # type: ignore[attr-defined]
    assert client.head(place, headers=TUS).status_code == (404 if age == 0.0 else 200)


@pytest.mark.parametrize("version", [None, "0.2.2", "1.0.0, 0.2.2"])
def test_whoever_speaks_another_version_is_told_and_nothing_is_done(client: TestClient, version: str | None) -> None:
    place = begin(client, "m.json", 3)
    headers = {k: v for k, v in {**named("m.json"), **PIECE, "Upload-Length": "5", "Upload-Offset": "0"}.items()
               if k != "Tus-Resumable"} | ({} if version is None else {"Tus-Resumable": version})  # fmt: skip
    for method, where in (("POST", "/v1/uploads"), ("PATCH", place), ("HEAD", place), ("DELETE", place)):
        content = b"abc" if method == "PATCH" else None
        answer = client.request(method, where, headers=headers, content=content)
        assert (answer.status_code, answer.headers["tus-version"]) == (412, "1.0.0")
    assert offset(client, place) == 0
    assert len(list(uploads_of(client)._folder.glob("*.part"))) == 1


def uploads_of(client: TestClient) -> Uploads:
    found = client.app.state.service.uploads  # type: ignore[attr-defined]
    assert isinstance(found, Uploads)
    return found


def test_an_upload_is_used_again_and_again_and_nothing_is_left_lying_about(client: TestClient) -> None:
    place = begin(client, "m.json", len(tiny()))
    client.patch(place, content=tiny(), headers={**PIECE, "Upload-Offset": "0"})
    for seed in range(3):
        params = {"upload": place.rsplit("/", 1)[1], "seed": str(seed)}
        assert client.post("/v1/jobs", params=params).status_code == 202
    assert list(uploads_of(client)._blobs.incoming.iterdir()) == []


def test_an_upload_that_is_removed_while_a_piece_comes_is_gone(client: TestClient) -> None:
    uploads = uploads_of(client)
    place = begin(client, "m.json", 10)
    found = uploads.find(place.rsplit("/", 1)[1], "")

    async def removed_meanwhile() -> AsyncIterator[bytes]:
        yield b"half "
        uploads.remove(found)
        yield b"gone."

    async def after() -> AsyncIterator[bytes]:
        yield b"late"

    for chunks in (removed_meanwhile(), after()):
        with pytest.raises(Problem) as refused:
            asyncio.run(uploads.append(found, 0, chunks))
        assert refused.value.status == 404
    assert list(uploads._folder.iterdir()) == []
