"""What an optimisation has to say in words: the notes of its report."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ReportNotes"]


@dataclass
class ReportNotes:
    """Notes in the order of the report: first those on sizes and memory, then those on what was tried."""

    _limits: list[str] = field(default_factory=list)
    _attempts: list[str] = field(default_factory=list)

    def limit(self, *notes: str) -> None:
        """Add notes on sizes and memory."""
        self._limits += notes

    def note(self, *notes: str) -> None:
        """Add notes on what was tried, and why it was not used."""
        self._attempts += notes

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self._limits, *self._attempts)
