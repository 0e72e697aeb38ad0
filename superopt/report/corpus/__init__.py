"""What a corpus run found: its data (``model``), and as text, Markdown, JUnit XML and SARIF."""

from __future__ import annotations

from superopt.report.corpus.model import Comparison, CorpusRun, Culprit, Finding, Row
from superopt.report.corpus.text import markdown, show

__all__ = ["Comparison", "CorpusRun", "Culprit", "Finding", "Row", "markdown", "show"]
