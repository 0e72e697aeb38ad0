"""Is the result the same through every door? ``python tests/doors.py MODELS``; ``make doors`` takes the whole corpus.

Each model goes through the command line, Python, ``superopt serve`` (a JSON graph posted, an ONNX file posted, an ONNX
file uploaded in pieces) and the built wheel in an environment of its own; at the limits of this shell, and at small
ones. Nothing may fail, and the digests of the results have to be equal. What is done is kept: run it again to go on.

Small limits are those of a container with 2 GiB: 128 open files, a home that cannot be written, and RLIMIT_DATA, which
counts the private memory that a process may write. That is what a container has to hold; RLIMIT_AS would also count
mapped files and libraries, whose pages the system drops when it needs room. Peaks are of resident memory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from superopt import formats  # noqa: E402
from superopt.client import Client, ServiceError  # noqa: E402
from superopt.ir.disk_cache import OPTIMIZER_PACKAGES, code_digest  # noqa: E402

PACKAGES = (*OPTIMIZER_PACKAGES, "cli", "server")  # whose code decides what comes through a door
SERVED = ("post-json", "post-onnx", "upload")
DOORS = ("cli", "python", *SERVED, "wheel")
FILES, MEMORY = 128, 2 << 30  # of the small limits
SECONDS = 900.0  # for one model through one door
_PYTHON = """
import json, sys, superopt
result = superopt.optimize(sys.argv[1], target=sys.argv[2])
print(json.dumps(result.report.json()))
"""
_MEDIA = {"post-json": "application/vnd.superopt.graph+json", "post-onnx": "application/octet-stream"}


@dataclass(frozen=True)
class Limits:
    """What processes may take, and the environment that goes with it."""

    name: str
    environment: Mapping[str, str]
    files: int = 0
    memory: int = 0

    def apply(self) -> None:
        """In the process that is to be limited."""
        if self.files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.files, self.files))
        if self.memory:
            resource.setrlimit(resource.RLIMIT_DATA, (self.memory, self.memory))


def limits_named(name: str, place: Path) -> Limits:
    """``default``: those of this shell, with a cache of their own; ``small``: a container's."""
    if name == "default":
        return Limits(name, {**os.environ, "SUPEROPT_CACHE": str(place / "cache")})
    home = Path("/proc")  # where nobody, root included, can make a file
    environment = {k: v for k, v in os.environ.items() if k not in ("SUPEROPT_CACHE", "XDG_CACHE_HOME")}
    return Limits(name, {**environment, "HOME": str(home)}, FILES, MEMORY)


@dataclass(frozen=True)
class Passed:
    """A model that went through a door."""

    model: str
    door: str
    limits: str
    digest: str = ""
    stopped: str = ""  # why the search ended: what the clock cut short need not be what another run finds
    error: str = ""
    seconds: float = 0.0
    peak: int = 0  # MiB


def passed(
    model: Path, door: str, limits: Limits, report: Mapping[str, Any], seconds: float, peak: int = 0
) -> Passed:  # fmt: skip
    """What a report says."""
    digest, stopped = report["result"]["digest"], report["search"]["stopped"]
    return Passed(model.stem, door, limits.name, digest, stopped, seconds=seconds, peak=peak)


@dataclass(frozen=True)
class Service:
    """A running service."""

    url: str

    @property
    def client(self) -> Client:
        return Client(self.url)

    def post(self, body: bytes, media: str, target: str) -> dict[str, Any]:
        query = urlencode({"target": target})
        request = Request(f"{self.url}/v1/jobs?{query}", body, {"Content-Type": media})
        try:
            with urlopen(request, timeout=SECONDS) as answer:
                return dict(json.load(answer))
        except HTTPError as error:
            raise ServiceError(error.code, json.load(error)) from None

    def largest_body(self) -> int:
        with urlopen(f"{self.url}/v1/limits", timeout=60) as answer:
            return int(json.load(answer)["limits"]["body"])


@dataclass(frozen=True)
class Doors:
    """What goes through doors.

    Attributes:
        place: a folder for what is made on the way.
        target: a recorded profile gives the same prices everywhere; with a measured one, digests may differ because
            measurements do.
    """

    place: Path
    target: str

    def command(self, door: str, model: Path, report: Path) -> list[str]:
        """A process that writes the report of a model."""
        if door == "python":
            return [sys.executable, "-c", _PYTHON, str(model), self.target]
        program = [sys.executable, "-m", "superopt.cli"] if door == "cli" else [str(self.installed() / "superopt")]
        return [*program, "optimize", str(model), "-o", str(report.with_suffix(".onnx")), "--json", str(report), "-f",
                "--target", self.target]  # fmt: skip

    def process(self, door: str, model: Path, limits: Limits) -> Passed:
        """A model through a process of its own."""
        report = self.place / "report.json"
        report.unlink(missing_ok=True)
        began = time.monotonic()
        process = subprocess.Popen(
            self.command(door, model, report), env=limits.environment, cwd=self.place, preexec_fn=limits.apply,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            said, problems = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return Passed(model.stem, door, limits.name, error=f"no result within {SECONDS:.0f} s")
        seconds = time.monotonic() - began
        if process.returncode:
            error = (problems.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
            return Passed(model.stem, door, limits.name, error=error, seconds=seconds)
        found = json.loads(said if door == "python" else report.read_text())
        return passed(model, door, limits, found, seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)

    def installed(self) -> Path:
        """The programs of an environment that has the wheel and what it depends on, and nothing else."""
        name = hashlib.sha256(code_digest(*PACKAGES).encode()).hexdigest()[:12]
        home = self.place / f"wheel-{name}"
        if not (home / "ready").is_file():
            shutil.rmtree(home, ignore_errors=True)
            venv.create(home, with_pip=True)
            pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
            subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(home), str(ROOT)], check=True)
            subprocess.run([*pip, "install", str(next(home.glob("superopt-*.whl")))], check=True)
            (home / "ready").touch()
        return home / "bin"

    @contextmanager
    def service(self, limits: Limits) -> Iterator[Service]:
        """``superopt serve``, with a worker."""
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        data = self.place / f"service-{limits.name}"
        shutil.rmtree(data, ignore_errors=True)
        command = [sys.executable, "-m", "superopt.cli", "serve", "--port", str(port), "--data", str(data)]
        with (self.place / f"service-{limits.name}.log").open("w") as log:
            process = subprocess.Popen(
                command, env=limits.environment, preexec_fn=limits.apply, stdout=log, stderr=log, start_new_session=True
            )
        try:
            service = Service(f"http://127.0.0.1:{port}")
            service.client.rules("nothing")  # asked until it answers
            yield service
        finally:
            process.terminate()
            process.wait(30)
            shutil.rmtree(data, ignore_errors=True)

    def served(self, door: str, model: Path, limits: Limits, service: Service) -> Passed:
        """A model through the service."""
        began = time.monotonic()
        try:
            job = self.sent(door, model, service)
            found = service.client.report(service.client.wait(job["id"], SECONDS)["id"])
        except (ServiceError, TimeoutError, OSError) as error:
            return Passed(model.stem, door, limits.name, error=str(error), seconds=time.monotonic() - began)
        return passed(model, door, limits, found, time.monotonic() - began)

    def sent(self, door: str, model: Path, service: Service) -> dict[str, Any]:
        """The job that was made of a model."""
        if door == "post-json":
            return service.post(model.read_bytes(), _MEDIA[door], self.target)
        path = self.place / "input.onnx"
        formats.save(formats.load(model), path, force=True)
        if door == "post-onnx" and path.stat().st_size <= service.largest_body():
            return service.post(path.read_bytes(), _MEDIA[door], self.target)
        return service.client.submit(path, target=self.target)  # what is too large to be posted is to be uploaded


class Record:
    """A line for each model that went through a door, by everything that decides the result."""

    def __init__(self, path: Path, target: str) -> None:
        self._path, self._target = path, target
        rows = path.read_text().splitlines() if path.is_file() else []
        self._rows = {row["key"]: Passed(**row["passed"]) for row in map(json.loads, rows)}

    def key(self, model: Path, door: str, limits: str) -> str:
        content = hashlib.sha256(model.read_bytes()).hexdigest()
        return hashlib.sha256(f"{code_digest(*PACKAGES)} {content} {door} {limits} {self._target}".encode()).hexdigest()

    def get(self, key: str) -> Passed | None:
        """What is known; failures are tried again."""
        found = self._rows.get(key)
        return None if found is None or found.error else found

    def put(self, key: str, passed: Passed) -> None:
        self._rows[key] = passed
        with self._path.open("a") as file:
            file.write(json.dumps({"key": key, "passed": asdict(passed)}) + "\n")


def walk(
    doors: Doors, models: Sequence[Path], names: Sequence[str], limits: Sequence[Limits], record: Record,
    until: float = float("inf"),
) -> Iterator[Passed]:  # fmt: skip
    """Every model through every door at all limits; ends early when time is up."""
    for limit in limits:
        with ExitStack() as held:
            service: Service | None = None
            for model in models:
                for door in names:
                    key = record.key(model, door, limit.name)
                    known = record.get(key)
                    if known is None:
                        if time.monotonic() > until:
                            return
                        if door in SERVED:
                            service = service or held.enter_context(doors.service(limit))
                            known = doors.served(door, model, limit, service)
                        else:
                            known = doors.process(door, model, limit)
                        record.put(key, known)
                    yield known


def problems(rows: Sequence[Passed]) -> list[str]:
    """What failed, and models whose results differ."""
    found = [f"{r.model} through {r.door} at {r.limits} limits: {r.error}" for r in rows if r.error]
    for model in dict.fromkeys(r.model for r in rows):
        digests = {
            r.digest: f"{r.door} at {r.limits} limits" + (", cut short by time" if r.stopped == "time" else "")
            for r in rows if r.model == model and r.digest
        }  # fmt: skip
        if len(digests) > 1:
            found.append(f"{model}: results differ: " + ", ".join(f"{d[:8]} ({w})" for d, w in digests.items()))
    return found


def table(rows: Sequence[Passed]) -> str:
    """A row for each model and limits, a column for each door."""
    doors = [d for d in DOORS if any(r.door == d for r in rows)]
    lines = [f"{'model':24}{'limits':9}" + "".join(f"{d:11}" for d in doors) + "peak MiB"]
    for model, limits in dict.fromkeys((r.model, r.limits) for r in rows):
        own = {r.door: r for r in rows if (r.model, r.limits) == (model, limits)}
        cells = [f"{('FAILED' if own[d].error else own[d].digest[:8]) if d in own else '-':11}" for d in doors]
        lines.append(f"{model:24}{limits:9}{''.join(cells)}{max(r.peak for r in own.values()) or '-'}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--doors", default=",".join(DOORS), help="by comma")
    parser.add_argument("--limits", default="default,small", help="by comma")
    parser.add_argument("--target", default="profile:cpu-epyc-2core")
    parser.add_argument("--resume", type=Path, default=ROOT / "build" / "doors", help="folder of what is done")
    parser.add_argument("--total-limit", type=float, default=float("inf"), help="seconds after which nothing is begun")
    given = parser.parse_args()
    place = given.resume.resolve()
    place.mkdir(parents=True, exist_ok=True)
    names, limits = given.doors.split(","), [limits_named(name, place) for name in given.limits.split(",")]
    record, until = Record(place / "rows.jsonl", given.target), time.monotonic() + given.total_limit
    rows: list[Passed] = []
    for row in walk(Doors(place, given.target), [m.resolve() for m in given.models], names, limits, record, until):
        rows.append(row)
        print(f"{row.model} {row.door} {row.limits}: {row.error or row.digest[:8]}", file=sys.stderr)
    print(table(rows))
    found = problems(rows)
    left = len(given.models) * len(names) * len(limits) - len(rows)
    if left:
        found.append(f"{left} of {left + len(rows)} are left; run it again to go on")
    print("\n".join(found) or f"{len(rows)} results, one digest a model")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
