"""What the head of a request says about its body; ambiguous heads are refused, because proxies may read them otherwise.

RFC 9112, sections 3.2 (Host), 6.1 and 6.3 (where the body ends).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.server.http.problems import HttpProblem

__all__ = ["RequestBodyFraming", "read_head"]


@dataclass(frozen=True)
class RequestBodyFraming:
    """Where the body ends.

    Attributes:
        length: of the body in bytes; ``None`` is chunked.
        forwarded: all ``X-Forwarded-For`` as one list, as it came.
    """

    length: int | None
    forwarded: str = ""


def read_head(version: str, headers: Sequence[tuple[bytes, bytes]], *, upgrade: bool, most: int) -> RequestBodyFraming:
    """Check the headers that decide how the rest of the connection is read.

    Args:
        version: of HTTP, as ``1.1``.
        headers: names in lower case.
        upgrade: whether the client asks for another protocol, which is ignored.
        most: bytes of a body.

    Raises:
        HttpProblem: 400, 413, 417, 501 or 505.
    """
    if version not in ("1.0", "1.1"):
        raise HttpProblem(505, "http-version", "HTTP/1.1 and HTTP/1.0 are spoken here")
    seen: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        seen.setdefault(name, []).append(value)
    hosts = seen.get(b"host", ())
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        raise HttpProblem(400, "bad-request", "send exactly one Host header")
    if any(value.strip().lower() != b"100-continue" for value in seen.get(b"expect", ())):
        raise HttpProblem(417, "expectation-failed", "the only expectation that is met is 100-continue")
    length = _length(version, seen, most)
    if upgrade and length != 0:  # the parser takes what follows for the other protocol
        raise HttpProblem(400, "bad-request", "a request to change the protocol cannot have a body; leave Upgrade out")
    return RequestBodyFraming(length, b", ".join(seen.get(b"x-forwarded-for", ())).decode("latin-1"))


def _length(version: str, seen: dict[bytes, list[bytes]], most: int) -> int | None:
    codings, lengths = seen.get(b"transfer-encoding"), seen.get(b"content-length", [])
    if codings is not None:
        if lengths or version == "1.0":
            raise HttpProblem(400, "bad-request", "send Content-Length, or Transfer-Encoding with HTTP/1.1; never both")
        if [coding.strip().lower() for coding in codings] != [b"chunked"]:
            raise HttpProblem(501, "not-implemented", "the only transfer coding that is understood is chunked")
        return None
    if len(lengths) > 1 or not all(value.isdigit() for value in lengths):
        raise HttpProblem(400, "bad-request", "Content-Length is not one number")
    digits = lengths[0].lstrip(b"0") if lengths else b""
    if len(digits) > 18 or int(digits or b"0") > most:
        raise HttpProblem(413, "too-large", f"the body is larger than {most} bytes; GET /v1/limits shows the limits")
    return int(digits or b"0")
