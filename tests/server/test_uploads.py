"""Uploads that are cut and go on: nothing is lost, nothing is twice, and only their owner adds to them."""

from __future__ import annotations

import asyncio
import base64
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from service_testing import Live, Stopwatch, free_port, start, tiny, until
from starlette.testclient import TestClient
from test_live import with_data

from superopt.server.app import create_app
from superopt.server.http.keys import ApiKeyStore
from superopt.server.http.problems import HttpProblem
from superopt.server.jobs.blobs import SPARE, Blobs
from superopt.server.jobs.database import JobDatabase
from superopt.server.jobs.uploads import Uploads
from superopt.server.settings import ServiceLimits, ServiceSettings

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
    assert answer.status_code in (200, 202), answer.text  # at once where the same model was optimized before
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
    settings = ServiceSettings(data=tmp_path, limits=ServiceLimits(uploads=2))
    database = JobDatabase(settings.url)
    database.migrate()
    keys = [ApiKeyStore(database).add(name) for name in ("one", "two")]
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
    settings = ServiceSettings(tmp_path, port=free_port(), workers=0)
    live = start(settings)
    try:
        place = begin(live.http, "m.json", 1000)
        cut(live, place, 0, b"x" * 400, 1000)
        until(lambda: offset(live.http, place) == 400, 10)
    finally:
        live.process.kill()
        live.process.wait()
        live.http.close()
    with TestClient(create_app(settings), base_url="http://localhost") as again:
        assert offset(again, place) == 400


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
        with pytest.raises(HttpProblem) as refused:
            asyncio.run(uploads.append(found, 0, chunks))
        assert refused.value.status == 404
    assert list(uploads._folder.iterdir()) == []


GIB = 1 << 30


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A disk with 64 GiB of room, as the system tells it."""
    facts = SimpleNamespace(free=64 * GIB + SPARE)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: facts)
    return facts


def reserving(folder: Path, clock: Stopwatch, **limits: float) -> Uploads:
    return Uploads(folder, Blobs(folder), ServiceLimits(**limits), clock)  # type: ignore[arg-type]


def refusal(uploads: Uploads, owner: str, length: int) -> tuple[int, str] | None:
    try:
        uploads.create(owner, length, "m.onnx")
    except HttpProblem as problem:
        return problem.status, problem.kind
    return None


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


@pytest.mark.usefixtures("disk")
def test_what_one_owner_reserves_keeps_nobody_else_out(tmp_path: Path, clock: Stopwatch) -> None:
    uploads = reserving(tmp_path, clock)
    answers = [refusal(uploads, "greedy", 8 * GIB) for _ in range(12)]
    assert answers == [None] * 4 + [(429, "quota")] * 8  # half of the disk
    assert refusal(uploads, "somebody", 8 * GIB) is None
    assert refusal(uploads, "somebody else", 8 * GIB) is None


@pytest.mark.usefixtures("disk")
def test_a_service_without_keys_lets_its_one_owner_have_the_disk(tmp_path: Path, clock: Stopwatch) -> None:
    uploads = reserving(tmp_path, clock)
    assert [refusal(uploads, "", 8 * GIB) for _ in range(9)] == [None] * 8 + [(429, "quota")]


def test_a_disk_without_room_is_not_blamed_on_the_owner(
    tmp_path: Path, clock: Stopwatch, disk: SimpleNamespace
) -> None:
    disk.free = 4 * GIB
    assert refusal(reserving(tmp_path, clock), "me", 8 * GIB) == (503, "disk-full")


@pytest.mark.usefixtures("disk")
def test_a_reservation_falls_where_no_byte_comes(tmp_path: Path, clock: Stopwatch) -> None:
    uploads = reserving(tmp_path, clock, uploads=5)
    empty = uploads.create("greedy", 8 * GIB, "a.onnx")
    begun = uploads.create("greedy", 8 * GIB, "b.onnx")
    alive = uploads.create("greedy", 8 * GIB, "c.onnx")
    last = uploads.create("greedy", 8 * GIB, "d.onnx")
    assert refusal(uploads, "greedy", 8 * GIB) == (429, "quota")
    asyncio.run(uploads.append(begun, 0, once(b"x")))
    for offset in range(3):  # a byte now and then
        clock.now += 200.0
        asyncio.run(uploads.append(alive, offset, once(b"y")))
    assert refusal(uploads, "greedy", 8 * GIB) is None  # three of the four hold nothing any more
    assert uploads.find(empty.id, "greedy") == empty
    assert refusal(uploads, "greedy", 8 * GIB) is None  # a sixth: those that are empty make way
    for gone in (empty, last):
        with pytest.raises(HttpProblem) as refused:
            uploads.find(gone.id, "greedy")
        assert refused.value.status == 404
    assert uploads.offset(begun) == 1  # what came is kept, and can be gone on with
    assert asyncio.run(uploads.append(begun, 1, once(b"x"))) == 2


def test_who_goes_on_after_a_pause_needs_room_again(tmp_path: Path, clock: Stopwatch, disk: SimpleNamespace) -> None:
    uploads = reserving(tmp_path, clock)
    begun = uploads.create("me", 8 * GIB, "a.onnx")
    asyncio.run(uploads.append(begun, 0, once(b"x")))
    clock.now += 301.0
    disk.free = SPARE + GIB
    with pytest.raises(HttpProblem) as refused:
        asyncio.run(uploads.append(begun, 1, once(b"x")))
    assert (refused.value.status, refused.value.kind) == (503, "disk-full")
    disk.free = SPARE + 64 * GIB
    assert asyncio.run(uploads.append(begun, 1, once(b"x"))) == 2


@pytest.mark.usefixtures("disk")
def test_a_restart_gives_uploads_their_minutes_again(tmp_path: Path, clock: Stopwatch) -> None:
    first = reserving(tmp_path, clock, upload=32 * GIB).create("greedy", 32 * GIB, "a.onnx")
    again = reserving(tmp_path, Stopwatch(5e6), upload=32 * GIB)
    assert refusal(again, "greedy", GIB) == (429, "quota")
    assert again.find(first.id, "greedy") == first
