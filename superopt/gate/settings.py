"""What a corpus run is asked to do: flags over ``[tool.superopt.corpus]`` in pyproject.toml or superopt.toml."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from superopt import TIME_LIMIT
from superopt.ir.errors import UsageError, printable
from superopt.pipeline.options import Options

__all__ = ["DEFAULT_TARGET", "CorpusSettings", "beside_models", "models_of"]

DEFAULT_TARGET = "profile:cpu-epyc-2core"  # where neither a target nor a baseline is named: the same costs everywhere
BASELINE = "baseline.json"
_SUFFIXES = (".onnx", ".json")


@dataclass(frozen=True)
class CorpusSettings:
    """Settings of a corpus run; paths are below ``root``, the folder of the settings file.

    Attributes:
        models: files, folders (their models, not those of folders within) or glob patterns.
        partial: single models were asked for: what else the baseline has is neither missing nor dropped.
        target: "profile:NAME" is deterministic, and what a gate should use; ``None``: what the baseline used.
        baseline: the recorded baseline.
        threshold: growth of a model's modelled cost that is a regression (0.02: 2 %).
        thresholds: the same for models whose name matches a pattern; the last that matches counts.
        total_threshold: growth of the geometric mean over all models that is one.
        time_limit: seconds for one model. A run that reaches it is not deterministic, and says so.
        bisect_limit: seconds for finding culprits.
        workers: processes; 0 takes one a core, 1 works in this process.
        cluster: address of a Dask scheduler whose workers are used instead.
        sizes: what symbolic dimensions are costed at.
        measure: also time each result against its input; advisory.
        check: check each result against the float64 reference.
        resume: folder of the models that are done, so that a run that was cut short goes on; ``None`` keeps none.
        total_limit: seconds after which a run begins no further model.
        rules, disable: a library besides the built-in one; rules or families that are not used.
    """

    root: Path = field(default_factory=Path.cwd)
    models: tuple[str, ...] = ()
    partial: bool = False
    target: str | None = None
    baseline: Path | None = None
    threshold: float = 0.02
    thresholds: Mapping[str, float] = field(default_factory=dict)
    total_threshold: float = 0.01
    time_limit: float = TIME_LIMIT
    bisect_limit: float = TIME_LIMIT
    workers: int = 0
    cluster: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    measure: bool = False
    check: bool = True
    rules: Path | None = None
    disable: tuple[str, ...] = ()
    resume: Path | None = None
    total_limit: float = float("inf")

    def options(self, target: str) -> Options:
        """How every model of the run is optimised."""
        return Options(
            target=target, time_limit=self.time_limit, seed=self.seed, sizes=self.sizes, measure=self.measure,
            check=self.check, rules=self.rules, disable=self.disable,
        )  # fmt: skip

    def allowed(self, model: str) -> float:
        """Growth of this model's cost that is let pass."""
        found = self.threshold
        for pattern, value in self.thresholds.items():
            if fnmatch(model, pattern) or fnmatch(Path(model).stem, pattern):
                found = value
        return found

    @staticmethod
    def read(table: Mapping[str, Any], root: Path) -> CorpusSettings:
        """Settings from a table of a settings file.

        Raises:
            UsageError: a key is unknown or its value has the wrong type.
        """
        known = {f.name for f in fields(CorpusSettings)} - {"root", "partial", "resume", "total_limit"}
        made: dict[str, Any] = {}
        for key, value in table.items():
            name = {"profile": "target", "dims": "sizes"}.get(key, key)
            if name not in known:
                names = ", ".join(sorted((known - {"sizes"}) | {"dims", "profile"}))
                raise UsageError(f"[corpus] has no setting {printable(key)!r}", hint=f"settings: {names}")
            made[name] = _value(key, name, value, root)
        return replace(CorpusSettings(root=root), **made)


def _value(key: str, name: str, value: object, root: Path) -> Any:
    """A setting's value, or an error that says what it should be."""
    if name in ("models", "disable"):
        items = [value] if isinstance(value, str) else value
        if isinstance(items, list) and all(isinstance(i, str) for i in items):
            return tuple(items)
        raise _not(key, "a list of strings")
    if name in ("threshold", "total_threshold", "time_limit", "bisect_limit"):
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9:
            return float(value)
        raise _not(key, "a number")
    if name in ("thresholds", "sizes"):
        numeric = (int, float) if name == "thresholds" else int
        if isinstance(value, dict) and all(isinstance(v, numeric) and v >= 0 for v in value.values()):
            return dict(value)
        raise _not(key, "a table of numbers")
    if name in ("workers", "seed"):
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        raise _not(key, "a whole number")
    if name in ("measure", "check"):
        if isinstance(value, bool):
            return value
        raise _not(key, "true or false")
    if not isinstance(value, str):
        raise _not(key, "a string")
    if key == "profile" and not value.startswith("profile:"):
        value = f"profile:{value}"
    return root / value if name in ("baseline", "rules") else value


def _not(key: str, kind: str) -> UsageError:
    return UsageError(f"[corpus] {key} is not {kind}")


def beside_models(settings: CorpusSettings) -> Path:
    """Where the baseline is where none is named: ``baseline.json`` in the folder that holds all the models.

    Raises:
        UsageError: no model was named, or a name finds none.
    """
    folders = {path.absolute().parent for path in models_of(settings).values()}
    return Path(os.path.relpath(os.path.commonpath(folders))) / BASELINE


def models_of(settings: CorpusSettings) -> dict[str, Path]:
    """The models of a run, by name: their path below the root, or as it is elsewhere.

    Raises:
        UsageError: no model was named, or a name finds none.
    """
    wanted = settings.models or (("corpus",) if (settings.root / "corpus" / "manifest.toml").is_file() else ())
    if not wanted:
        raise UsageError(
            "no model was named", hint="name models or folders, or set models in [tool.superopt.corpus]"
        )  # fmt: skip
    found: dict[str, Path] = {}
    for text in wanted:
        paths = _expanded(text, settings)
        if not paths and Path(text).name != BASELINE:
            raise UsageError("no model is there", where=printable(text))
        found.update((_name(p, settings.root), p) for p in paths)
    return dict(sorted(found.items()))


def _expanded(text: str, settings: CorpusSettings) -> Sequence[Path]:
    path = Path(text) if Path(text).is_absolute() or Path(text).exists() else settings.root / text
    if path.is_dir():
        inside: Sequence[Path] = sorted(p for p in path.iterdir() if p.is_file())
    elif path.exists():
        inside = [path]
        if path.name != BASELINE:
            return inside
    else:
        inside = sorted(p for p in settings.root.glob(text) if p.is_file()) if not Path(text).is_absolute() else []
    own = None if settings.baseline is None else settings.baseline.resolve()
    return [p for p in inside if p.suffix in _SUFFIXES and p.resolve() != own and not p.name.endswith(BASELINE)]


def _name(path: Path, root: Path) -> str:
    try:
        return path.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return path.as_posix()
