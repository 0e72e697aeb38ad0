"""A pass of Olive, Microsoft's toolchain for deployment: ``{"type": "SuperoptSlim"}`` among the passes of a workflow.

Olive reads which passes there are from a package configuration. ``python -m
superopt.pipeline.integrations.olive_pass`` prints Olive's own with this pass added, for ``olive run --config
workflow.json --package-config package.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from olive.hardware.accelerator import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.package_config import OlivePackageConfig
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam

from superopt.pipeline.integrations import EFFORT, TIME_LIMIT
from superopt.pipeline.integrations.drop_in import slim

__all__ = ["SuperoptSlim", "package_config"]

_DECLARATION = {
    "module_path": "superopt.pipeline.integrations.olive_pass.SuperoptSlim",
    "supported_providers": ["CPUExecutionProvider", "CUDAExecutionProvider"],
    "supported_accelerators": ["*"],
    "supported_precisions": ["*"],
    "supported_algorithms": [],
    "supported_quantization_encodings": [],
}


class SuperoptSlim(Pass):
    """:func:`superopt.slim` on the model of a workflow."""

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
        return {
            "time_limit": PassConfigParam(
                type_=float, default_value=TIME_LIMIT, description="Seconds that it may take."
            ),
            "effort": PassConfigParam(
                type_=str, default_value=EFFORT, description="How much is tried: quick, default or thorough."
            ),
            "settings": PassConfigParam(
                type_=dict, default_value={}, description="Further options of superopt.optimize, by name."
            ),
        }

    def _run_for_config(
        self, model: ONNXModelHandler, config: type[BasePassConfig], output_model_path: str
    ) -> ONNXModelHandler:
        options: Any = config
        path = resolve_onnx_path(output_model_path, Path(model.model_path).name)
        slim(model.model_path, path, time_limit=options.time_limit, effort=options.effort, settings=options.settings)
        return ONNXModelHandler(model_path=path)


def package_config() -> dict[str, Any]:
    """Olive's package configuration with :class:`SuperoptSlim` added, as ``olive.workflows.run`` takes it."""
    config: dict[str, Any] = json.loads(Path(OlivePackageConfig.get_default_config_path()).read_text(encoding="utf-8"))
    config["passes"]["SuperoptSlim"] = _DECLARATION
    return config


if __name__ == "__main__":
    json.dump(package_config(), sys.stdout, indent=1)
