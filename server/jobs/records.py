"""What clients submit and what workers hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["JobClaim", "JobSubmission"]


@dataclass(frozen=True)
class JobSubmission:
    """What a client asks for. ``request`` is the digest of all of it, by which repeats are recognised."""

    owner: str
    request: str
    name: str
    options: Mapping[str, Any]
    media: str
    model: str
    weights: str | None
    cache_key: str
    id: str | None = None
    idempotency_key: str | None = None
    per_minute: int | None = None
    active: int | None = None
    webhook: tuple[str, str] | None = None  # where its end is told, and the secret that signs it


@dataclass(frozen=True)
class JobClaim:
    """A job that this worker holds; ``began`` is by the clock of its store."""

    id: str
    owner: str
    attempt: int
    losses: int
    deferrals: int
    options: Mapping[str, Any] = field(hash=False)
    media: str
    model: str
    weights: str | None
    cache_key: str
    waited: float  # seconds from its submission to this attempt, by the database's clock
    began: float
