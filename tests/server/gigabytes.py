"""By hand: gigabytes over a connection that is cut twice on the way in and twice on the way out; the result is proved.

``python tests/server/gigabytes.py [--gib 4] [--rows 128] [--seconds 300]`` makes a model of blocks of two products of
8192 by 8192 with its weights beside it, serves, sends, optimizes, fetches, and runs ``superopt verify``. Exit code 1
where a connection was not cut, nothing was improved, or the models are not proved equal.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).parent))
from service_testing import free_port, start, stop

from superopt.client import Client
from superopt.server.settings import ServiceLimits, ServiceSettings

_CUTS = 2  # in each direction


class Cutting:
    """A proxy that hangs up: twice in each direction, at thirds of the bytes that are to pass."""

    def __init__(self, port: int, least: int) -> None:
        self.port, self._to = free_port(), port
        self.cuts = {"in": 0, "out": 0}
        self._passed = {"in": 0, "out": 0}
        self._least = least
        self._socket = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            near, _ = self._socket.accept()
            far = socket.create_connection(("127.0.0.1", self._to))
            for way, a, b in (("in", near, far), ("out", far, near)):
                threading.Thread(target=self._pass, args=(way, a, b), daemon=True).start()

    def _pass(self, way: str, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # the other direction hung up
            while data := source.recv(1 << 20):
                sink.sendall(data)
                self._passed[way] += len(data)
                if self.cuts[way] < _CUTS and self._passed[way] > self._least * (self.cuts[way] + 1) / (_CUTS + 1):
                    self.cuts[way] += 1
                    break
        for end in (source, sink):
            with suppress(OSError):  # it is closed already
                end.shutdown(socket.SHUT_RDWR)


def model(folder: Path, blocks: int, rows: int, width: int) -> tuple[Path, Path]:
    """Blocks of ``Relu((x · a) ⊙ s) · c + x``: of each, the scale goes into the product."""
    rng, weights, nodes, last = np.random.default_rng(0), [], [], "x"
    data = folder / "large.onnx.data"
    with data.open("wb") as file:
        for n in range(blocks):
            for name, shape in ((f"a{n}", (width, width)), (f"s{n}", (width,)), (f"c{n}", (width, width))):
                array = rng.standard_normal(shape, np.float32) / np.float32(width**0.5 if len(shape) == 2 else 1)
                proto = TensorProto(name=name, data_type=1, dims=shape, data_location=TensorProto.EXTERNAL)
                for key, value in (("location", data.name), ("offset", file.tell()), ("length", array.nbytes)):
                    proto.external_data.add(key=key, value=str(value))
                weights.append(proto)
                file.write(array.data)
            nodes += [
                helper.make_node("MatMul", [last, f"a{n}"], [f"p{n}"]),
                helper.make_node("Mul", [f"p{n}", f"s{n}"], [f"m{n}"]),
                helper.make_node("Relu", [f"m{n}"], [f"r{n}"]),
                helper.make_node("MatMul", [f"r{n}", f"c{n}"], [f"q{n}"]),
                helper.make_node("Add", [f"q{n}", last], [f"y{n}"]),
            ]
            last = f"y{n}"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, width]) for n in ("x", last)]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], initializer=weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "large.onnx"
    path.write_bytes(made.SerializeToString())
    return path, data


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=300.0, help="time limit of the job")
    given = parser.parse_args()
    blocks = max(1, round(given.gib * 2**30 / (8 * given.width**2)))
    with tempfile.TemporaryDirectory(prefix="superopt-gigabytes-") as name:
        folder = Path(name)
        path, data = model(folder, blocks, given.rows, given.width)
        size = data.stat().st_size
        limits = ServiceLimits(search_seconds=given.seconds)
        live = start(ServiceSettings(folder / "service", port=free_port(), workers=1, limits=limits))
        try:
            proxy = Cutting(live.settings.port, size)
            client = Client(f"http://127.0.0.1:{proxy.port}", patience=120.0)
            began = time.monotonic()
            job = client.submit(path, data, time_limit=given.seconds)
            sent = time.monotonic()
            done = client.wait(job["id"], timeout=10 * given.seconds)
            ended = time.monotonic()
            client.result(done["id"], folder / "faster.onnx")
            fetched = time.monotonic()
            peak = _peak(live.process.pid)
        finally:
            stop(live)
        gone = f"{size / 2**30:.2f} GiB sent in {sent - began:.0f} s, {done['status']} in {ended - sent:.0f} s"
        print(f"{gone}, fetched in {fetched - ended:.0f} s; cuts {proxy.cuts}; server at most {peak} MiB", flush=True)
        began = time.monotonic()
        checked = subprocess.run(
            [sys.executable, "-m", "superopt", "verify", path, folder / "faster.onnx"], check=False
        )
        print(f"superopt verify: exit code {checked.returncode} in {time.monotonic() - began:.0f} s")
    met = done["status"] == "improved" and set(proxy.cuts.values()) == {_CUTS} and checked.returncode == 0
    print("met" if met else "NOT met")
    return 0 if met else 1


def _peak(process: int) -> int:
    """MiB that a process has held at most."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) >> 10


if __name__ == "__main__":
    sys.exit(main())
