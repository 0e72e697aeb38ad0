"""The blobs: nothing that is placed again is swept, and nothing is left lying about."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from superopt.server.jobs.blobs import Blobs, IncomingBlob


def kept(blobs: Blobs, content: bytes) -> str:
    with IncomingBlob(blobs) as spool:
        spool.write(content)
        return spool.keep()


def aged(blobs: Blobs, digest: str) -> None:
    os.utime(blobs.path(digest), (1.0, 1.0))


def test_what_is_placed_again_while_it_is_swept_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = Blobs(tmp_path)
    digest, other = kept(blobs, b"a model"), kept(blobs, b"another")
    aged(blobs, digest)
    aged(blobs, other)
    listed = blobs.all

    def and_posted_again() -> Iterator[tuple[str, os.stat_result]]:
        yield from list(listed())
        assert kept(blobs, b"a model") == digest

    monkeypatch.setattr(blobs, "all", and_posted_again)
    assert blobs.sweep(frozenset(), frozenset(), 60.0) == 1
    assert blobs.path(digest).read_bytes() == b"a model"
    assert not blobs.path(other).exists()
    assert list(blobs.incoming.iterdir()) == []


def test_a_form_of_empty_parts_opens_one_file(client: TestClient) -> None:
    """A part without content may come again, as a form sends it; a stranger sends it a thousand times."""
    part = b'--b\r\nContent-Disposition: form-data; name="graph"; filename=""\r\n\r\n\r\n'
    seen: list[int] = []
    spool = IncomingBlob.__init__

    def counted(self: IncomingBlob, blobs: Blobs) -> None:
        seen.append(1)
        spool(self, blobs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IncomingBlob, "__init__", counted)
        answer = client.post(
            "/v1/jobs", content=part * 1000 + b"--b--\r\n", headers={"Content-Type": "multipart/form-data; boundary=b"}
        )
    assert answer.status_code == 422, answer.text
    assert len(seen) == 1
