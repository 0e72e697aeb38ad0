"""The attacker is a package beside the tests, not part of the product; test modules are no package."""

import sys
from pathlib import Path

import pytest

from superopt.cost.device_profile import load_profile, write_profile

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Every tenth record of the recorded profile: read ten times as fast, once a model."""
    recorded = load_profile("cpu-epyc-2core")
    path = tmp_path_factory.mktemp("profile") / "tenth.jsonl.gz"
    write_profile(path, recorded.header, list(recorded.records.values())[::10])
    return f"profile:{path}"
