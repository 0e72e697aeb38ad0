"""The benchmark's result as text, Markdown and a page with plots: with every loss, crash and wrong result."""

from __future__ import annotations

from superopt.report.benchmark.page import page
from superopt.report.benchmark.runtimes import runtimes_table, show_runtimes
from superopt.report.benchmark.text import document, show

__all__ = ["document", "page", "runtimes_table", "show", "show_runtimes"]
