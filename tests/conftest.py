"""What holds for all tests: nothing that a slow machine decides. Hypothesis asks the clock otherwise."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

sys.path.append(str(Path(__file__).parent))  # for graphs.py, roofline.py and the like, which several folders share

import superopt.runtime  # noqa: F401  # before a test imports ONNX Runtime itself, which would tell its maker of it

# Hypothesis would draw numbers that superopt's modules contain too: it parses all of them, for ten seconds in each
# process, and after a change of any it draws others.
providers.is_local_module_file = lambda _path: False

settings.register_profile("superopt", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("superopt")


_SIGNALS = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Next to nothing is garbage while the tests are collected: looking for some took a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.unfreeze()  # all of it counts as old
        gc.enable()


# Folders whose files take longest come first, and those of many short tests last: processes take files in this order,
# and a long file that begins last leaves the other processes idle.
FIRST = (
    "discovery", "attack", "server", "gate", "lab", "benchmark", "fleet", "pipeline", "robust", "verifier",
    "passes", "cli",
)  # fmt: skip
LAST = ("docs", "corpus", "ir", "ops")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent

    def turn(item: pytest.Item) -> int:
        folder = item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""
        return FIRST.index(folder) - len(FIRST) if folder in FIRST else LAST.index(folder) + 1 if folder in LAST else 0

    items.sort(key=turn)


@pytest.fixture(autouse=True)
def _searches_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that ran in this process has let searches run in copies of it, where no test sees what they do."""
    forked = sys.modules.get("superopt.pipeline.child_process_search")
    if forked is not None:
        monkeypatch.setattr(forked, "_allowed", False)


@pytest.fixture(autouse=True)
def _signals_end_processes() -> None:
    """The command line takes signals over when it is imported. A process that a test forks inherits that, and then
    ``Pool.terminate`` waits for it for ever."""
    for number, handler in _SIGNALS.items():
        signal.signal(number, handler)
