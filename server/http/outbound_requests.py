"""Requests that the service makes itself, to addresses that clients name: only to where they may lead."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

__all__ = ["ForbiddenAddress", "is_address", "may_reach", "post"]

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE = ipaddress.IPv6Network("::/96")  # an IPv4 address in the last four bytes, too
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")


class ForbiddenAddress(Exception):
    """The address leads into a private network."""


def is_address(host: str) -> bool:
    """Whether a host is written as an IP address, not as a name."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def may_reach(address: str) -> bool:
    """Whether an IP address is one of the public internet, whatever other address it stands for."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return all(a.is_global and not a.is_multicast for a in _meant(found)) and found not in _LOCAL_NAT64


def _meant(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The address, and those that a gateway or this machine would make of it."""
    if not isinstance(address, ipaddress.IPv6Address) or address.ipv4_mapped is None:
        yield address
    if isinstance(address, ipaddress.IPv6Address):
        inner = (address.ipv4_mapped, address.sixtofour, *(address.teredo or ()))
        yield from (a for a in inner if a is not None)
        if address in _NAT64 or address in _COMPATIBLE:
            yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)


def post(url: str, headers: Mapping[str, str], body: bytes, *, seconds: float, private: bool) -> int:
    """Send a body.

    Args:
        url: of HTTP or HTTPS.
        headers: besides Host and Content-Length.
        body: is sent as it is.
        seconds: for all of it.
        private: whether it may go to a private network.

    Returns:
        The status of the answer.

    Raises:
        ForbiddenAddress: the name resolves to an address that is not public.
        OSError: nobody answers in time.
    """
    place = urlsplit(url)
    host, secure = place.hostname or "", place.scheme == "https"
    port = place.port or (443 if secure else 80)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    if not private and not all(map(may_reach, addresses)):
        raise ForbiddenAddress(url)
    connection = _Pinned(host, port, addresses[0], seconds, ssl.create_default_context() if secure else None)
    watchdog = threading.Timer(seconds, connection.abort)
    watchdog.start()
    try:
        target = (place.path or "/") + (f"?{place.query}" if place.query else "")
        connection.request("POST", target, body, dict(headers))
        return connection.getresponse().status
    except http.client.HTTPException as error:
        raise OSError(f"the answer is not understood: {type(error).__name__}") from error
    finally:
        watchdog.cancel()
        connection.close()


class _Pinned(http.client.HTTPConnection):
    """A connection to an address that was looked at, under the name that it was found by."""

    def __init__(self, host: str, port: int, address: str, seconds: float, secure: ssl.SSLContext | None) -> None:
        super().__init__(host, port, timeout=seconds)
        self._address, self._secure = address, secure
        self.default_port = 443 if secure else 80  # what the Host header leaves out

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), self.timeout)
        if self._secure is not None:
            self.sock = self._secure.wrap_socket(self.sock, server_hostname=self.host)

    def abort(self) -> None:
        """End it from another thread; whoever waits for it gets an ``OSError``."""
        if self.sock is not None:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
