"""A cluster as data: devices with speeds and memory, links with latency and bandwidth, read from TOML.

.. code-block:: toml

    name = "two hosts of four"

    [[device]]               # in the order of the mesh; ranks are numbered so
    name = "a"               # with a count above 1: a0, a1, …
    count = 4
    memory = 80e9            # bytes
    profile = "h100"         # a recorded profile; or flops, bandwidth and overhead:
    # flops = 400e12         # a second
    # bandwidth = 2.5e12     # bytes of memory a second
    # overhead = 3e-6        # seconds an operator

    [[link]]                 # both directions at once
    between = ["a*", "switch"]   # a name or a pattern of devices; other names are switches
    latency = 2e-6           # seconds
    bandwidth = 300e9        # bytes a second, each way
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from superopt.errors import InvalidModel

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["Cluster", "Device", "Link", "cluster_of", "read_cluster"]

_MOST = 4096  # devices: beyond, routes between all pairs are more than a plan looks at
_DEVICE = {"name", "count", "memory", "profile", "flops", "bandwidth", "overhead"}
_LINK = {"between", "latency", "bandwidth"}


@dataclass(frozen=True)
class Device:
    """A device.

    Attributes:
        name: unique in its cluster.
        memory: bytes.
        profile: the name or path of a recorded profile, "" where the peaks are given.
        flops: FLOPs a second, at best.
        bandwidth: bytes of memory a second, at best.
        overhead: seconds that an operator takes besides.
    """

    name: str
    memory: int
    profile: str = ""
    flops: float = 0.0
    bandwidth: float = 0.0
    overhead: float = 0.0

    @property
    def kind(self) -> tuple[str, float, float, float]:
        """What its speed follows from: equal for devices that are equally fast."""
        return self.profile, self.flops, self.bandwidth, self.overhead


@dataclass(frozen=True)
class Link:
    """A connection of two devices or switches: seconds of latency, bytes a second each way."""

    first: str
    second: str
    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Cluster:
    """Devices in the order of ranks, and links. Every device can reach every other."""

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = field(default=())

    @cached_property
    def network(self) -> nx.Graph[str]:
        """Devices and switches; an edge has ``latency`` and ``bandwidth``."""
        import networkx as nx

        graph: nx.Graph[str] = nx.Graph()
        graph.add_nodes_from(d.name for d in self.devices)
        graph.add_edges_from((k.first, k.second, {"latency": k.latency, "bandwidth": k.bandwidth}) for k in self.links)
        return graph

    @property
    def memory(self) -> int:
        """Bytes of the device that has least."""
        return min(d.memory for d in self.devices)


def read_cluster(path: Path) -> Cluster:
    """Read a cluster.

    Raises:
        InvalidModel: the file is no TOML, or no cluster; the message names the place.
        OSError: it cannot be read.
    """
    try:
        return cluster_of(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidModel(f"is not TOML: {error}", where=str(path)) from None
    except InvalidModel as error:
        raise error.within(str(path)) from None


def cluster_of(data: Mapping[str, Any]) -> Cluster:
    """A cluster from parsed TOML.

    Raises:
        InvalidModel: a key is missing or unknown, a number is out of range, or a device cannot be reached.
    """
    _refuse_unknown_keys(data, {"name", "device", "link"}, "/")
    name = data.get("name", "")
    if not isinstance(name, str):
        _refuse("/name", "is not text")
    devices = tuple(d for k, row in enumerate(_tables(data, "device")) for d in _devices(row, f"/device/{k}"))
    if not 1 <= len(devices) <= _MOST:
        _refuse("/device", f"{len(devices)} devices", f"a cluster has 1 to {_MOST}")
    names = [d.name for d in devices]
    if len(set(names)) < len(names):
        _refuse("/device", f"two devices have the name {next(n for n in names if names.count(n) > 1)}")
    links = tuple(x for k, row in enumerate(_tables(data, "link")) for x in _links(row, names, f"/link/{k}"))
    cluster = Cluster(name, devices, links)
    _connected(cluster)
    return cluster


def _devices(row: Mapping[str, Any], where: str) -> list[Device]:
    _refuse_unknown_keys(row, _DEVICE, where)
    name, count, profile = row.get("name"), row.get("count", 1), row.get("profile", "")
    if not isinstance(name, str) or not name:
        _refuse(f"{where}/name", "is missing or no text")
    if type(count) is not int or not 1 <= count <= _MOST:
        _refuse(f"{where}/count", f"{count!r} is no number of devices", f"1 to {_MOST}")
    if not isinstance(profile, str):
        _refuse(f"{where}/profile", "is no text")
    peaks = {"flops", "bandwidth", "overhead"} & row.keys()
    if bool(profile) == bool(peaks):
        _refuse(where, "gives " + ("a profile and peaks" if profile else "neither a profile nor peaks"),
                "write profile, or flops and bandwidth")  # fmt: skip
    memory = int(_positive(row, "memory", where))
    flops, bandwidth = (0.0, 0.0) if profile else (_positive(row, key, where) for key in ("flops", "bandwidth"))
    overhead = _positive(row, "overhead", where, least=0.0) if "overhead" in row else 0.0
    names = [name] if count == 1 else [f"{name}{k}" for k in range(count)]
    return [Device(n, memory, profile, flops, bandwidth, overhead) for n in names]


def _links(row: Mapping[str, Any], names: Sequence[str], where: str) -> list[Link]:
    _refuse_unknown_keys(row, _LINK, where)
    ends = row.get("between")
    if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(e, str) and e for e in ends):
        _refuse(f"{where}/between", "is no pair of names", 'for instance between = ["a*", "switch"]')
    latency, bandwidth = _positive(row, "latency", where, least=0.0), _positive(row, "bandwidth", where)
    first, second = (_matching(e, names, f"{where}/between") for e in ends)
    return [Link(a, b, latency, bandwidth) for a in first for b in second if a != b]


def _matching(pattern: str, names: Sequence[str], where: str) -> list[str]:
    found = [n for n in names if fnmatchcase(n, pattern)]
    if not found and any(c in pattern for c in "*?["):
        _refuse(where, f"no device is called {pattern}", f"devices are {', '.join(names[:8])}")
    return found or [pattern]


def _connected(cluster: Cluster) -> None:
    import networkx as nx

    first, *others = (d.name for d in cluster.devices)
    reached = nx.node_connected_component(cluster.network, first)
    if lost := [n for n in others if n not in reached]:
        _refuse("/link", f"no links lead from {first} to {lost[0]}", "links join devices, also through switches")


def _tables(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    rows = data.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        _refuse(f"/{key}", "is no array of tables", f"write [[{key}]]")
    return rows


def _refuse_unknown_keys(row: Mapping[str, Any], keys: set[str], where: str) -> None:
    if unknown := sorted(row.keys() - keys):
        _refuse(where, f"has the unknown key {unknown[0]!r}", f"known are {', '.join(sorted(keys))}")


def _positive(row: Mapping[str, Any], key: str, where: str, least: float | None = None) -> float:
    value = row.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
        _refuse(f"{where}/{key}", "is missing or no number")
    if value < least if least is not None else value <= 0:
        _refuse(f"{where}/{key}", f"{value} is {'negative' if least is not None else 'not positive'}")
    return float(value)


def _refuse(where: str, what: str, hint: str = "") -> NoReturn:
    raise InvalidModel(what, where=where, hint=hint)
