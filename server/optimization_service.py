"""What the routes share: the store, the files, the catalogue and the rules of the door."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.metadata import version
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from superopt.rules.library import BUILT_IN
from superopt.server.http.body import ReceivedModel
from superopt.server.http.connections import OpenConnections
from superopt.server.http.health import HealthMonitor
from superopt.server.http.histogram import HTTP_SECONDS, Histogram
from superopt.server.http.keys import ANYONE, ApiCaller, ApiKeyStore
from superopt.server.http.problems import HttpProblem
from superopt.server.jobs.blobs import Blobs
from superopt.server.jobs.database import JobDatabase
from superopt.server.jobs.database_blobs import DatabaseBlobs
from superopt.server.jobs.job_watch import JobWatcher
from superopt.server.jobs.object_storage import ObjectStores
from superopt.server.jobs.retention import PinnedJobs
from superopt.server.jobs.store import JobStore, JobSubmission
from superopt.server.jobs.uploads import Uploads
from superopt.server.jobs.webhooks import WebhookDispatcher
from superopt.server.settings import ServiceSettings
from superopt.server.views.catalogue import RuleEvidence, built_in_catalogue
from superopt.server.views.certificates import CertificateCache
from superopt.server.views.inspection import ModelInspector
from superopt.server.views.recorded_corpus import RecordedCorpus, ResultGallery
from superopt.server.views.rule_judging import RuleJudge
from superopt.server.views.rule_trials import try_rule

__all__ = ["OptimizationService", "of"]

_FETCHED = 2  # models that are fetched from a store or written there at once
_SLOW = 8  # trials and proofs that are made or waited for
_TRIALS = 2  # rules that are tried at once
_TRIAL_WAIT = 5.0  # seconds that one more waits for its turn
T = TypeVar("T")
_HEX = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass(eq=False)
class OptimizationService:
    """One running API process."""

    settings: ServiceSettings
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.database = JobDatabase(self.settings.url)
        self.store = JobStore(self.database, self.settings.limits)
        self.blobs = Blobs(self.settings.data, DatabaseBlobs(self.database) if self.settings.apart else None)
        self.keys = ApiKeyStore(self.database)
        limits = self.settings.limits
        self.uploads = Uploads(self.settings.data, self.blobs, limits)
        self.stores = ObjectStores(self.settings.stores, self.settings.store_results, self.blobs, limits)
        self.watcher = JobWatcher(self.store, self.settings.poll)
        self.webhooks = WebhookDispatcher(self.database, self.settings.webhooks, limits)
        self.catalogue = built_in_catalogue()
        self.certificates = CertificateCache(self.settings.data / "certificates")
        self.judge = RuleJudge()
        self.inspector = ModelInspector(self.blobs, limits)
        self.evidence = RuleEvidence(BUILT_IN)
        self.recorded = RecordedCorpus(self.settings.corpus)
        self.gallery = ResultGallery(self.settings.corpus)
        self.pins = PinnedJobs(self.database, self.settings.limits)
        self.health = HealthMonitor(self.store, self.blobs.incoming)
        self._slow, self._fetching = CapacityLimiter(_SLOW), CapacityLimiter(_FETCHED)
        self._trying = threading.BoundedSemaphore(_TRIALS)
        self.connections = OpenConnections(self.settings.door, self.settings.limits.body)
        self.streams: Counter[str] = Counter()  # open event streams by client address
        self._refused: dict[str, tuple[float, HttpProblem]] = {}  # by owner, and until when
        self.requests: dict[tuple[str, str, int], int] = {}  # (method, route, status) → count
        self.latency = Histogram(HTTP_SECONDS)

    async def slowly(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do what takes seconds, or waits for it, in threads of its own: all else goes on beside it.

        Raises:
            HttpProblem: 503 while too many wait; what the work raises.
        """
        return await _within(self._slow, work, *arguments)

    async def carried(self, work: Callable[..., T], *arguments: Any) -> T:
        """:meth:`slowly` for what goes to a store or comes from there, which may take minutes."""
        return await _within(self._fetching, work, *arguments)

    @cached_property
    def version(self) -> str:
        """The version of superopt and of what its results depend on."""
        return f"{version('superopt')}+onnxruntime-{version('onnxruntime')}+numpy-{version('numpy')}"

    def trial(self, rule_id: str, seed: int) -> dict[str, Any]:
        """Both sides of a rule, evaluated at small random sizes; a few at a time.

        Raises:
            HttpProblem: 404 for an unknown rule; 503 while too many are being tried.
        """
        if rule_id not in self.catalogue.entries:
            raise HttpProblem(404, "not-found", "there is no such rule; GET /v1/rules lists them")
        if not self._trying.acquire(timeout=_TRIAL_WAIT):
            raise HttpProblem(503, "unavailable", "too many rules are being tried at once", retry_after=1)
        try:
            return self._tried(rule_id, seed)
        finally:
            self._trying.release()

    @lru_cache(maxsize=256)  # noqa: B019  (one service per process; the same seed gives the same)
    def _tried(self, rule_id: str, seed: int) -> dict[str, Any]:
        return try_rule(self.catalogue.library[rule_id], seed)

    def judged(self, rule: Mapping[str, Any], corpus: bool = False) -> dict[str, Any]:
        """What is known of a rule that somebody typed, with the library's rules that are most like it.

        Args:
            rule: as JSON data.
            corpus: whether what it would gain on the corpus is looked at, too.

        Raises:
            HttpProblem: 422 where it is no rule; 503 while another one is judged.
        """
        found = self.judge.judged(rule, self.settings.corpus if corpus else None)
        near = self.catalogue.index.search(found["name"])[:5] if "name" in found else ()
        return found | {"nearest": [{"id": i, "name": self.catalogue.index.names[i]} for i in near]}

    async def needs_key(self) -> bool:
        """Whether making work takes a key."""
        known = self.keys.remembered()
        return await run_in_threadpool(self.keys.any) if known is None else known

    async def caller(self, request: Request, offered: str = "") -> ApiCaller:
        """Who asks, for requests that make work.

        Args:
            request: its Authorization or X-API-Key header is looked at.
            offered: a key that came in a form.

        Raises:
            HttpProblem: 401 without a valid key where one is needed.
        """
        if not await self.needs_key():
            return self._welcome(ANYONE)
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        text = text.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", offered)
        found = await run_in_threadpool(self.keys.caller, text) if text else None
        if found is None:
            raise HttpProblem(401, "unauthorised", "send a valid key as Authorization: Bearer KEY",
                          headers={"WWW-Authenticate": "Bearer"})  # fmt: skip
        request.state.key = found.owner
        return self._welcome(found)

    def _welcome(self, caller: ApiCaller) -> ApiCaller:
        """Who was over a quota a moment ago still is; saying so again takes neither disk nor database."""
        until, problem = self._refused.get(caller.owner, (0.0, None))
        if problem is not None and time.monotonic() < until:
            raise problem
        return caller

    async def enqueue(self, what: JobSubmission) -> dict[str, Any]:
        """Put a job into the queue, or find the one that the same client put there before.

        Raises:
            HttpProblem: 409, 422 or 429 (:meth:`JobStore.enqueue`).
        """
        try:
            job, _ = await run_in_threadpool(self.store.enqueue, what)
        except HttpProblem as problem:
            if problem.status == 429:
                self._refused = {o: r for o, r in self._refused.items() if r[0] > time.monotonic()}
                self._refused[what.owner] = (time.monotonic() + 1.0, problem)
            raise
        return job

    def submission(
        self, upload: ReceivedModel, options: Mapping[str, Any], caller: ApiCaller, *, name: str = "",
        job_id: str | None = None, key: str | None = None, webhook: tuple[str, str] | None = None,
    ) -> JobSubmission:  # fmt: skip
        """An upload as a job to enqueue. Equal inputs, options, rules and versions share one cached result."""
        asked = json.dumps([upload.model, upload.weights, dict(options)], sort_keys=True)
        request = hashlib.sha256(asked.encode()).hexdigest()
        cache = hashlib.sha256(f"{asked}\0{self.catalogue.digest}\0{self.version}".encode()).hexdigest()
        return JobSubmission(
            owner=caller.owner, request=request, name=name or upload.filename[:200], options=dict(options),
            media=upload.media, model=upload.model, weights=upload.weights, cache_key=cache, id=job_id,
            idempotency_key=key, per_minute=caller.per_minute, active=caller.active, webhook=webhook,
        )  # fmt: skip

    async def job(self, job_id: str) -> dict[str, Any]:
        """A job.

        Raises:
            HttpProblem: 404.
        """
        found = await run_in_threadpool(self.store.job, job_id) if self.is_job(job_id) else None
        if found is None:
            raise HttpProblem(404, "not-found", "there is no such job, or it is not kept any more")
        return found

    @staticmethod
    def is_job(text: str) -> bool:
        """Whether this is how a job's id is written."""
        return _HEX.fullmatch(text) is not None

    async def own_job(self, job_id: str, caller: ApiCaller) -> dict[str, Any]:
        """A job of the caller's.

        Raises:
            HttpProblem: 404; 403 where it belongs to another.
        """
        found = await self.job(job_id)
        if found["owner"] != caller.owner:
            raise HttpProblem(403, "forbidden", "the job belongs to another key")
        return found


async def _within(limiter: CapacityLimiter, work: Callable[..., T], *arguments: Any) -> T:
    if limiter.borrowed_tokens >= limiter.total_tokens:
        raise HttpProblem(503, "unavailable", "too much of this is being done at once", retry_after=2)
    return await to_thread.run_sync(work, *arguments, limiter=limiter)


def of(request: Request) -> OptimizationService:
    """The service that a request came to."""
    found = request.app.state.service
    assert isinstance(found, OptimizationService)
    return found
