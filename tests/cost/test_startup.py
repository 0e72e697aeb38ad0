"""What starting superopt loads: neither a GPU's libraries nor anything else that takes long."""

import json
import subprocess
import sys

import pytest

from superopt.cost import load_profile, profile_names
from superopt.ir.errors import UsageError

_HELP = """
import json, resource, sys
from superopt.cli import app
try:
    app(["--help"])
except SystemExit:
    pass
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"modules": sorted(sys.modules), "seconds": used.ru_utime + used.ru_stime}))
"""


def test_help_loads_nothing_heavy():
    run = subprocess.run([sys.executable, "-c", _HELP], capture_output=True, text=True, check=True, timeout=60)
    found = json.loads(run.stdout.strip().splitlines()[-1])
    heavy = {"cupy", "onnxruntime", "numpy", "z3", "onnx", "torch", "fastapi", "highspy"} & set(found["modules"])
    assert heavy == set()


def test_optimising_loads_no_gpu_library_no_prover_and_no_library_of_graphs():
    code = "import superopt.cost, superopt.pipeline.optimization, json, sys; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(json.loads(run.stdout))
    assert "superopt.pipeline.optimization" in loaded
    assert (
        not {
            "cupy",
            "z3",
            "networkx",
            "superopt.verifier.prover.prover",
            "superopt.verifier.equivalence.graphs",
            "superopt.discovery",
            "superopt.assignment.solver",
            "superopt.formats.opset_conversion",
            "highspy",
        }
        & loaded
    )


def test_every_shipped_profile_can_be_read_and_a_near_name_is_suggested():
    assert profile_names()
    for name in profile_names():
        profile = load_profile(name)
        assert len(profile.records) == profile.header["records"] > 100
        assert {"device", "runtime", "threads", "clock", "backend", "cache_bytes", "peaks", "date"} <= set(
            profile.header
        )
    with pytest.raises(UsageError, match=f"did you mean profile:{profile_names()[0]}"):
        load_profile(profile_names()[0][:-1])
