"""A client of ``superopt serve``: send a model, follow its job, fetch what came of it. Python's own library is enough.

>>> from superopt.client import Client
>>> service = Client("http://127.0.0.1:8000")
>>> job = service.submit("model.onnx", time_limit=60)  # large files go in pieces, and on where they were cut
>>> done = service.wait(job["id"])
>>> service.result(job["id"], "faster.onnx")
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

__all__ = ["Client", "ServiceError"]

_PIECE = 8 << 20  # bytes of one request of an upload
_READ = 1 << 20
_TUS = {"Tus-Resumable": "1.0.0"}  # the version of the protocol, in every request of an upload
_FETCHING = 700.0  # seconds for a request that has the service fetch or write gigabytes; its own limit is 600
_FINAL = frozenset({"succeeded", "failed", "cancelled"})
_LOST = (URLError, HTTPException, ConnectionError, TimeoutError)

Job = dict[str, Any]


class ServiceError(Exception):
    """The service refused; ``problem`` is its RFC 9457 document, ``status`` the HTTP status."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(f"{status}: {problem.get('detail') or problem.get('title') or 'no reason given'}")
        self.status = status
        self.problem = dict(problem)


class Client:
    """One service.

    Args:
        url: where it answers.
        key: an API key, where it wants one.
        timeout: seconds for one request.
        patience: seconds for which a service that cannot be reached is tried again.
    """

    def __init__(self, url: str, key: str = "", *, timeout: float = 60.0, patience: float = 60.0) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout = timeout
        self._patience = patience
        self._shared: set[tuple[str, Path]] = set()  # weights of frames that were fetched, and where to

    def submit(
        self, model: str | Path, *data: str | Path, idempotency_key: str = "", webhook_secret: str = "", **options: Any
    ) -> Job:  # fmt: skip
        """Send a model, with the files of its weights, and have it optimized.

        Args:
            model: an ONNX model or a JSON graph; or ``s3://…`` where the service has a store, which then fetches it and
                what is named beside it (with a slash at its end: the files directly in that folder).
            data: files that it points to, beside it (``model.onnx.data``).
            idempotency_key: the same request again with the same key finds the first one's job; it is then sent again
                where the service cannot be reached.
            webhook_secret: that signs what is sent to the ``webhook`` among the options.
            options: as query parameters of ``POST /v1/jobs``: ``time_limit=60, target="cpu", dim=["N=8"]``.

        Returns:
            The job.

        Raises:
            ServiceError: it was refused. OSError: a file cannot be read, or the service cannot be reached.
        """
        headers = {"Idempotency-Key": idempotency_key, "Webhook-Secret": webhook_secret}
        headers = {name: value for name, value in headers.items() if value}
        files = (model, *data)
        named = [f for f in files if isinstance(f, str) and f.startswith("s3://")]
        if named:
            if len(named) < len(files):
                raise ValueError("a model and its files are all here, or all in the store")
            query = {**options, "source": named}
            return self._json("POST", "/v1/jobs", query, headers=headers, timeout=max(self._timeout, _FETCHING))
        uploads = [self.upload(path) for path in files]
        try:
            return self._json("POST", "/v1/jobs", {**options, "upload": uploads}, headers=headers)
        finally:
            for upload in uploads:
                self._ask("DELETE", f"/v1/uploads/{upload}", headers=_TUS)

    def upload(self, path: str | Path, progress: Callable[[int, int], None] | None = None) -> str:
        """Send a file in pieces; where the connection is cut it goes on from what has arrived.

        Args:
            path: the file.
            progress: called with bytes sent and in all.

        Returns:
            The upload's id.
        """
        path = Path(path)
        size = path.stat().st_size
        name = base64.b64encode(path.name.encode()).decode()
        headers = {**_TUS, "Upload-Length": str(size), "Upload-Metadata": f"filename {name}"}
        made = self._ask("POST", "/v1/uploads", headers=headers)
        place = made[1]["location"]
        deadline = time.monotonic() + self._patience
        here = 0
        with path.open("rb") as file:
            while here < size:
                file.seek(here)
                headers = {**_TUS, "Upload-Offset": str(here), "Content-Type": "application/offset+octet-stream"}
                try:
                    here = int(self._once("PATCH", place, headers, file.read(_PIECE))[1]["upload-offset"])
                    deadline = time.monotonic() + self._patience
                except (ServiceError, *_LOST) as error:
                    if isinstance(error, ServiceError) and error.status != 409:
                        raise
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.2)
                    here = int(self._ask("HEAD", place, headers=_TUS)[1]["upload-offset"])
                if progress is not None:
                    progress(here, size)
        return str(place).rsplit("/", 1)[1]

    def job(self, job_id: str) -> Job:
        """A job as it stands."""
        return self._json("GET", f"/v1/jobs/{quote(job_id)}")

    def jobs(self, **filters: Any) -> Iterator[Job]:
        """Your jobs, the newest first: ``state="queued"``, ``name="resnet"``, ``id=[…]``."""
        path = f"/v1/jobs?{urlencode(filters, doseq=True)}"
        while path:
            found = self._json("GET", path)
            yield from found["jobs"]
            path = found["next"] or ""

    def cancel_all(self, **filters: Any) -> list[Job]:
        """End those of your jobs that fit all filters, of which there is at least one; as :meth:`jobs` has them."""
        ended: list[Job] = []
        path = f"/v1/jobs?{urlencode(filters, doseq=True)}"
        while path:
            found = self._json("DELETE", path)
            ended += found["jobs"]
            path = found["next"] or ""
        return ended

    def usage(self) -> list[dict[str, Any]]:
        """What your key used; with an operator's key what each did."""
        rows: list[dict[str, Any]] = self._json("GET", "/v1/usage")["usage"]
        return rows

    def wait(self, job_id: str, timeout: float | None = None, every: float = 0.5) -> Job:
        """The job when it has ended.

        Raises:
            TimeoutError: it has not, after ``timeout`` seconds. ServiceError: it failed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (job := self.job(job_id))["state"] not in _FINAL:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"job {job_id} is {job['state']} after {timeout:g} s")
            time.sleep(every)
        if job["state"] == "failed":
            raise ServiceError(int(job["problem"]["status"]), job["problem"])
        return job

    def result(self, job_id: str, path: str | Path) -> Path:
        """Fetch the rewritten model: as ONNX, or as a JSON graph where the name ends in ``.json``.

        An ONNX model above 2 GiB has its weights in a file, which is put beside it under the name that the model has
        for it. What was cut goes on where it was; nothing half-fetched is left under these names.
        """
        path = Path(path)
        files = self.job(job_id)["links"].get("files", {})
        if path.suffix != ".json" and "graph.onnx" in files:
            for name, place in files.items():
                self._fetch(place, path if name == "graph.onnx" else path.with_name(name))
            return path
        media = "application/vnd.superopt.graph+json" if path.suffix == ".json" else "application/octet-stream"
        path.write_bytes(self._ask("GET", f"/v1/jobs/{quote(job_id)}/result", headers={"Accept": media})[0])
        return path

    def _fetch(self, place: str, path: Path) -> None:
        """A file in one stream, on where it was cut."""
        part = path.with_name(f"{path.name}.part")
        deadline = time.monotonic() + self._patience
        with part.open("wb") as file:
            while True:
                headers = {**self._headers, **({"Range": f"bytes={file.tell()}-"} if file.tell() else {})}
                try:
                    with urlopen(Request(self._url + place, headers=headers), timeout=self._timeout) as answer:
                        whole = file.tell() + int(answer.headers["Content-Length"])
                        while piece := answer.read(_READ):
                            file.write(piece)
                            deadline = time.monotonic() + self._patience
                    if file.tell() == whole:
                        break
                except HTTPError as error:
                    raise _refused(error) from None
                except _LOST:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.5)
        part.replace(path)

    def report(self, job_id: str) -> dict[str, Any]:
        """What was rewritten, by which rules, and what it gained."""
        return self._json("GET", f"/v1/jobs/{quote(job_id)}/report")

    def frame(self, job_id: str, step: int, path: str | Path) -> Path:
        """Fetch the model after a step of the report's derivation, as a JSON graph; its long weights, which all steps
        share, come once into ``frames.safetensors`` beside it."""
        path = Path(path)
        shared = self.job(job_id)["links"].get("frames_weights")
        beside = path.with_name("frames.safetensors")
        if shared is not None and (job_id, beside) not in self._shared:
            self._fetch(shared, beside)
            self._shared.add((job_id, beside))
        path.write_bytes(self._ask("GET", f"/v1/jobs/{quote(job_id)}/frames/{step}")[0])
        return path

    def deliver(self, job_id: str) -> dict[str, str]:
        """Have the result and its report written to the service's store; their references by name."""
        path = f"/v1/jobs/{quote(job_id)}/deliver"
        made: dict[str, str] = self._json("POST", path, timeout=max(self._timeout, _FETCHING))["files"]
        return made

    def go_on(self, job_id: str, time_limit: float | None = None) -> Job:
        """A new job that goes on where the search of this one was cut short."""
        options = {} if time_limit is None else {"time_limit": time_limit}
        return self._json("POST", f"/v1/jobs/{quote(job_id)}/continue", options)

    def cancel(self, job_id: str) -> Job:
        """End a job."""
        return self._json("DELETE", f"/v1/jobs/{quote(job_id)}")

    def rules(self, words: str = "", **filters: Any) -> list[dict[str, Any]]:
        """Rules of the library: those that some words mean, the likeliest first."""
        found: list[dict[str, Any]] = self._json("GET", "/v1/rules", {"q": words, **filters})["rules"]
        return found

    def judge(
        self, forall: Mapping[str, str], lhs: Sequence[str], rhs: Sequence[str], where: Sequence[str] = (), *,
        corpus: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Whether a rule is true: its verdict, with a certificate or numbers against it; with ``corpus`` also what it
        would gain by itself on the models of the corpus."""
        rule = {"forall": dict(forall), "lhs": list(lhs), "rhs": list(rhs)} | ({"where": list(where)} if where else {})
        headers = {"Content-Type": "application/json"}
        body, _ = self._ask(
            "POST", f"/v1/rules/judge?corpus={str(corpus).lower()}", body=json.dumps(rule).encode(), headers=headers
        )
        found: dict[str, Any] = json.loads(body)
        return found

    def _json(
        self, method: str, path: str, query: Mapping[str, Any] | None = None, *,
        headers: Mapping[str, str] | None = None, timeout: float | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        if query:
            path = f"{path}?{urlencode({k: v for k, v in query.items() if v not in ('', None)}, doseq=True)}"
        found: dict[str, Any] = json.loads(self._ask(method, path, headers=headers, timeout=timeout)[0])
        return found

    def _ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout: float | None = None,
    ) -> tuple[bytes, dict[str, str]]:
        """One request, again while the service cannot be reached and asking twice does no harm."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return self._once(method, path, headers or {}, body, timeout)
            except _LOST:
                harmless = method in ("GET", "HEAD", "DELETE") or "Idempotency-Key" in (headers or {})
                if not harmless or time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def _once(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        timeout: float | None = None,
    ) -> tuple[bytes, dict[str, str]]:
        request = Request(self._url + path, body, {**self._headers, **headers}, method=method)
        try:
            with urlopen(request, timeout=timeout or self._timeout) as answer:
                return answer.read(), {k.lower(): v for k, v in answer.headers.items()}
        except HTTPError as error:
            raise _refused(error) from None


def _refused(error: HTTPError) -> ServiceError:
    text = error.read()
    try:
        problem = json.loads(text)
    except ValueError:
        problem = {"detail": text[:200].decode(errors="replace")}
    return ServiceError(error.code, problem)
