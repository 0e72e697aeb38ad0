"""The end of a job is told where its client said: signed, again until it arrives, never inside a private network."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import jsonschema
import pytest
import sqlalchemy as sa
from service_testing import GRAPH, tiny, until
from starlette.testclient import TestClient
from test_store import OUTPUTS, claimed, submission

from superopt.server.app import create_app
from superopt.server.http.problems import HttpProblem
from superopt.server.jobs.database import JobDatabase, webhooks
from superopt.server.jobs.store import JobStore
from superopt.server.jobs.webhooks import ForbiddenAddress, WebhookDispatcher, may_reach, post, signature
from superopt.server.settings import ServiceLimits, ServiceSettings

SECRET = "0123456789abcdef"
LIMITS = ServiceLimits(webhook_seconds=0.5, webhook_first=0.0, webhook_tries=3)


@dataclass
class Receiver:
    """A server that keeps what it is sent, and answers as it is told."""

    statuses: list[int] = field(default_factory=list)  # of the next answers; then 204
    seen: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    kept = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            kept.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            status = kept.statuses.pop(0) if kept.statuses else 204
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"{kept.url}/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    kept.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield kept
    server.shutdown()
    server.server_close()


def ended_job(store: JobStore, url: str) -> str:
    job, _ = store.enqueue(submission(webhook=(url, SECRET)))
    store.succeed(claimed(store), OUTPUTS)
    return str(job["id"])


def test_the_end_of_a_job_is_told_once_and_signed(store: JobStore, database: JobDatabase, receiver: Receiver) -> None:
    hooks = WebhookDispatcher(database, "any", LIMITS)
    job, _ = store.enqueue(submission(webhook=(f"{receiver.url}/hook?a=b", SECRET)))
    assert not hooks.deliver_next()  # it has not ended
    store.succeed(claimed(store), OUTPUTS)
    assert hooks.deliver_next()
    assert not hooks.deliver_next()
    [(path, headers, body)] = receiver.seen
    assert path == "/hook?a=b"
    told = json.loads(body)
    assert (told["type"], told["data"]["id"], told["data"]["state"]) == ("job.finished", job["id"], "succeeded")
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert hooks.of(job["id"]) == {"state": "delivered", "tries": 1, "answer": "204"}
    with database.read() as connection:
        assert connection.execute(sa.select(webhooks.c.secret)).scalar_one() is None  # nobody needs it any more


def test_what_does_not_arrive_is_sent_again_and_given_up_at_last(
    store: JobStore, database: JobDatabase, receiver: Receiver
) -> None:
    hooks = WebhookDispatcher(database, "any", LIMITS)
    receiver.statuses = [500, 302]
    job_id = ended_job(store, receiver.url)
    for state, answer in (("waiting", "500"), ("waiting", "302"), ("delivered", "204")):
        assert hooks.deliver_next()
        assert hooks.of(job_id)["state"] == state  # type: ignore[index]
        assert hooks.of(job_id)["answer"] == answer  # type: ignore[index]
    assert [path for path, *_ in receiver.seen] == ["/"] * 3  # no redirect is followed
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        lost, _ = store.enqueue(submission("2", webhook=(f"http://127.0.0.1:{silent.getsockname()[1]}", SECRET)))
        store.succeed(claimed(store), OUTPUTS)
        for tries in (1, 2, 3):
            assert hooks.deliver_next()
            state = "given-up" if tries == 3 else "waiting"
            assert hooks.of(lost["id"]) == {"state": state, "tries": tries, "answer": "no answer"}
    assert not hooks.deliver_next()


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}", "http://localhost:{port}", "http://0x7f.1:{port}"])
def test_nothing_is_sent_into_a_private_network(
    store: JobStore, database: JobDatabase, receiver: Receiver, url: str
) -> None:
    port = receiver.url.rpartition(":")[2]
    job_id = ended_job(store, url.format(port=port))
    hooks = WebhookDispatcher(database, "public", LIMITS)
    assert hooks.deliver_next()
    assert hooks.of(job_id)["answer"] == "the address is not allowed"  # type: ignore[index]
    assert receiver.seen == []
    with pytest.raises(ForbiddenAddress):
        post(url.format(port=port), {}, b"", seconds=1.0, private=False)


@pytest.mark.parametrize(
    ("address", "public"),
    [("93.184.216.34", True), ("2606:2800:220:1::1", True), ("127.0.0.1", False), ("10.1.2.3", False),
     ("172.16.0.1", False), ("192.168.1.1", False), ("169.254.169.254", False), ("100.64.0.1", False),
     ("0.0.0.0", False), ("224.0.0.1", False), ("255.255.255.255", False), ("::1", False), ("::", False),
     ("fe80::1%eth0", False), ("fc00::1", False), ("ff02::1", False), ("::ffff:127.0.0.1", False),
     ("::ffff:93.184.216.34", True), ("::127.0.0.1", False), ("64:ff9b::7f00:1", False), ("64:ff9b::a01:203", False),
     ("64:ff9b:1::1", False), ("2002:7f00:1::", False), ("2002:a01:203::", False), ("nonsense", False)],
)  # fmt: skip
def test_addresses_are_public_or_not_whatever_they_stand_for(address: str, public: bool) -> None:
    assert may_reach(address) is public


@pytest.mark.parametrize(
    ("mode", "url", "secret", "said"),
    [("off", "https://example.com/", SECRET, "sends no web-hooks"), ("public", "ftp://example.com/", SECRET, "address"),
     ("public", "file:///etc/passwd", SECRET, "address"), ("public", "https:///x", SECRET, "address"),
     ("public", "https://me:pw@example.com/", SECRET, "address"),
     ("public", "https://example.com:0/", SECRET, "address"),
     ("public", "https://example.com:99999/", SECRET, "address"), ("public", "http://a b/", SECRET, "address"),
     ("public", "http://example.com/\r\nX: y", SECRET, "address"), ("public", "http://[::1]/", SECRET, "private"),
     ("public", "http://10.0.0.1/", SECRET, "private"), ("any", "http://10.0.0.1/", "short", "secret"),
     ("any", "http://10.0.0.1/", "", "secret"), ("any", "http://10.0.0.1/" + "a" * 2000, SECRET, "address")],
)  # fmt: skip
def test_what_is_no_web_hook_is_refused(mode: str, url: str, secret: str, said: str, tmp_path: Path) -> None:
    database = JobDatabase(f"sqlite:///{tmp_path}/jobs.sqlite")
    with pytest.raises(HttpProblem) as refused:
        WebhookDispatcher(database, mode, LIMITS).accept(url, secret)
    assert (refused.value.status, refused.value.errors[0]["parameter"]) == (400, "webhook")
    assert said in refused.value.detail
    database.close()


def test_secrets_may_be_bytes_in_base64() -> None:
    key = base64.b64encode(b"k" * 24).decode()
    expected = base64.b64encode(hmac.new(b"k" * 24, b"id.1.body", hashlib.sha256).digest()).decode()
    assert signature(f"whsec_{key}", "id", 1, b"body") == f"v1,{expected}"


def test_a_job_is_submitted_with_its_web_hook(tmp_path: Path, receiver: Receiver) -> None:
    settings = ServiceSettings(data=tmp_path, webhooks="any")
    with TestClient(create_app(settings), base_url="http://localhost") as http:
        headers = {"Content-Type": GRAPH, "Webhook-Secret": SECRET}
        sent = http.post("/v1/jobs", params={"webhook": receiver.url}, content=tiny(), headers=headers)
        job = http.get(sent.headers["location"]).json()
        assert job["webhook"] == {"state": "waiting", "tries": 0, "answer": None}
        http.delete(sent.headers["location"])
        until(lambda: http.get(sent.headers["location"]).json()["webhook"]["state"] == "delivered", 20)
        document = http.get("/openapi.json").json()
    [(_, sent_headers, body)] = receiver.seen
    assert json.loads(body)["data"]["state"] == "cancelled"
    assert SECRET not in sent.text
    for method, path in (("post", "/v1/jobs"), ("put", "/v1/jobs/{job_id}"), ("post", "/v1/optimize")):
        [callback] = document["paths"][path][method]["callbacks"]["jobFinished"].values()
        declared = callback["post"]["requestBody"]["content"]["application/json"]["schema"]
        jsonschema.validate(json.loads(body), {**declared, "components": document["components"]})
        assert {p["name"] for p in callback["post"]["parameters"]} == {
            n for n in sent_headers if n.startswith("webhook-")
        }
