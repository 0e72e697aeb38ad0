"""Conditions and ranges of a GET: what RFC 9110 asks for, and problems where a range leads nowhere."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient
from test_api import problem
from test_jobs_api import finished

from superopt.server.http.conditional_requests import is_current


@pytest.mark.parametrize("header", ["*", '"a"', 'W/"a"', '"b", W/"a"', '"b","a"'])
def test_what_the_client_has_is_current(header: str) -> None:
    assert is_current(header, '"a"')


@pytest.mark.parametrize("header", ["", '"b"', "a", '"ba"', '"a', '"*"', 'W/"'])
def test_what_the_client_has_is_not_current(header: str) -> None:
    assert not is_current(header, '"a"')


@pytest.mark.parametrize("path", ["/v1/rules", "/v1/operators", "/v1/algorithms", "/v1/gallery"])
def test_every_resource_with_a_tag_reads_conditions_alike(client: TestClient, path: str) -> None:
    for header in ("*", client.get(path).headers["etag"]):
        answer = client.get(path, headers={"If-None-Match": header})
        assert (answer.status_code, answer.content) == (304, b"")
    assert client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


def test_ranges_of_a_result(client: TestClient) -> None:
    """A Range that is none is ignored; one beyond the end is a problem that names the length."""
    path = f"/v1/jobs/{finished(client, 'resnet')}/result"
    whole = client.get(path).content
    assert whole == b"{}"
    for header, part in (("bytes=0-0", b"{"), ("bytes=-1", b"}"), ("bytes=-5", b"{}"), (f"bytes=1-{10**18}", b"}")):
        answer = client.get(path, headers={"Range": header})
        assert (answer.status_code, answer.content) == (206, part)
    for header in ("items=0-1", "bytes=abc", "bytes=5-2", "bytes", "bytes=", "bytes=1-2-3", "bytes=-1.5"):
        answer = client.get(path, headers={"Range": header})
        assert (answer.status_code, answer.content) == (200, whole), header
    for header in (f"bytes={len(whole)}-", "bytes=-0", f"bytes={len(whole)}-,{len(whole) + 5}-"):
        answer = client.get(path, headers={"Range": header})
        problem(answer, 416, "range-not-satisfiable")
        assert answer.headers["content-range"] == f"bytes */{len(whole)}"
