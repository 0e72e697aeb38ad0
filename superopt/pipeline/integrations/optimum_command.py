"""``optimum-cli superopt``: a sub-command of Hugging Face's optimum for folders of exported models.

optimum finds sub-commands by files in its namespace ``optimum.commands.register``. ``python -m
superopt.pipeline.integrations.optimum_command`` writes such a file there, once for an environment.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

from optimum.commands.base import BaseOptimumCLICommand, CommandInfo

from superopt.ir.errors import UsageError, printable
from superopt.pipeline.integrations import EFFORT, TIME_LIMIT

__all__ = ["REGISTER_COMMANDS", "SuperoptCommand", "register"]

_FILE = "register_superopt.py"
_NAMESPACE = "optimum.commands.register"


class SuperoptCommand(BaseOptimumCLICommand):
    """Optimises the ONNX models of a folder; all other files are copied."""

    COMMAND = CommandInfo(name="superopt", help="Faster, equivalent ONNX models, checked.")

    @staticmethod
    def parse_args(parser: Any) -> None:
        """Declare the options, by the names that ``optimum-cli onnxruntime optimize`` has."""
        parser.add_argument("--onnx_model", type=Path, required=True, help="Folder of the ONNX models to optimise.")
        parser.add_argument("-o", "--output", type=Path, required=True, help="Folder of the results.")
        parser.add_argument("--effort", default=EFFORT, help="How much is tried: quick, default or thorough.")
        parser.add_argument("--time_limit", type=float, default=TIME_LIMIT, help="Seconds for a model.")

    def run(self) -> None:
        """Write the results.

        Raises:
            UsageError: there is no such folder, no model in it, or the output is the same folder.
        """
        from superopt.pipeline.integrations.drop_in import slim  # here, because optimum loads all sub-commands

        source, output = self.args.onnx_model, self.args.output
        models = sorted(source.glob("*.onnx"))
        if not models:
            raise UsageError("holds no ONNX model", where=printable(str(source)))
        if output.resolve() == source.resolve():
            raise UsageError("is the folder of the models", where=printable(str(output)), hint="name another one")
        output.mkdir(parents=True, exist_ok=True)
        for path in models:
            slim(path, output / path.name, effort=self.args.effort, time_limit=self.args.time_limit)
            print(f"{path.name}: {path.stat().st_size:,} → {(output / path.name).stat().st_size:,} bytes")
        for path in source.iterdir():
            if path.is_file() and not path.name.startswith(tuple(m.name for m in models)):
                shutil.copy2(path, output / path.name)


REGISTER_COMMANDS = [SuperoptCommand]


def register() -> Path:
    """Write the file by which optimum finds the sub-command.

    Raises:
        UsageError: optimum has no place for it.
    """
    spec = importlib.util.find_spec(_NAMESPACE)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f"there is no {_NAMESPACE}", hint="pip install optimum-onnx")
    path = Path(next(iter(spec.submodule_search_locations))) / _FILE
    path.write_text(f"from {SuperoptCommand.__module__} import REGISTER_COMMANDS  # noqa: F401\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    from superopt.pipeline.integrations import optimum_command

    print(f"wrote {optimum_command.register()}")
