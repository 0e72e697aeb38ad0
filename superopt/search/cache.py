"""Results of regions, kept across runs: a model that was searched before, or shares layers with one, is done at once.

An entry is a file named by a digest of everything the result depends on: the region's signature (which knows nothing
of weight values), the rules, the costs, the settings, and superopt's own code. Files appear whole or not at all, so
processes may share the folder; a damaged one is ignored with a warning. Old entries go when the folder grows too big.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import get_ident

from superopt.cost.model import CostModel
from superopt.cost.profile import cache_directory
from superopt.ir.kept import code_digest
from superopt.ops.record import Operator
from superopt.rules.rule import Rule
from superopt.search.lower import Region
from superopt.search.optimise import Found
from superopt.search.result import SearchOptions
from superopt.search.stored import BadDataError, found_as_data, found_from_data, problem_with

__all__ = ["RegionCache"]

FORMAT = "superopt.region/1"
_MOST_BYTES = 128 << 20
_KEPT_SHARE = 0.75  # of the most, after old entries were removed
_PACKAGES = ("search", "cost", "rules", "ops", "ir")  # whose code results depend on
_LARGEST = 16 << 20  # bytes of one entry that is read


@lru_cache(maxsize=8)
def _rules_digest(rules: tuple[Rule, ...]) -> str:
    digest = hashlib.sha256()
    for rule in rules:
        digest.update(rule.fingerprint.encode())
    return digest.hexdigest()


@dataclass
class RegionCache:
    """The folder of entries, as one search sees it.

    Attributes:
        folder: where entries are.
        context: everything but the region and the costs that results depend on.
        costs: the cost model.
        operators: records by name, by which what is read is checked.
        hits, misses: how often an entry was there.
    """

    folder: Path
    context: str
    costs: CostModel
    operators: Mapping[str, Operator]
    hits: int = 0
    misses: int = 0
    _written: list[Path] = field(default_factory=list)
    _usable: bool = True

    @staticmethod
    def of(
        rules: Sequence[Rule], costs: CostModel, opset: Mapping[str, int], options: SearchOptions,
        operators: Mapping[str, Operator], folder: Path | None = None,
    ) -> RegionCache | None:  # fmt: skip
        """The cache for a search, or ``None`` if the options or the cost model do not want one."""
        if not options.cache or costs.digest is None:
            return None
        settings = (
            FORMAT, code_digest(*_PACKAGES), _rules_digest(tuple(rules)), sorted(opset.items()),
            sorted(options.sizes.items()), options.node_limit, options.seed, options.least_gain,
            "" if options.floats is None else options.floats.digest,
        )  # fmt: skip
        context = hashlib.sha256(repr(settings).encode()).hexdigest()
        return RegionCache(folder or cache_directory() / "regions", context, costs, operators)

    def found(self, key: Hashable, region: Region, search: Callable[[], Found], *, keep: Callable[[], bool]) -> Found:
        """The result that is kept for a region, else that of ``search``, which is kept for the next time.

        Args:
            key: the region's signature and what is done with it; its ``repr`` must say it all.
            region: where the result is to be used.
            search: finds the result.
            keep: asked after searching: whether the result is what it always would be, not cut short by the clock.
        """
        known = self._read(self._path(key), region)
        if known is not None:
            self.hits += 1
            return known
        self.misses += 1
        result = search()
        if result.stopped != "time" and keep():
            self._write(self._path(key), result)
        return result

    def _path(self, key: Hashable) -> Path:
        # the costs are asked each time: a profile that was empty before the search has a first record afterwards
        name = hashlib.sha256(f"{self.context}\n{self.costs.digest}\n{key!r}".encode()).hexdigest()
        return self.folder / name[:2] / f"{name}.json"

    def _read(self, path: Path, region: Region) -> Found | None:
        try:
            if path.stat().st_size > _LARGEST:
                raise BadDataError("too large")
            head, _, payload = path.read_text(encoding="utf-8").partition("\n")
            if head != f"{FORMAT} {hashlib.sha256(payload.encode()).hexdigest()}":
                raise BadDataError("it is damaged")
            found = found_from_data(json.loads(payload))
            why = problem_with(region, found, self.operators)
            if why:
                raise BadDataError(why)
            os.utime(path)  # used: not among the first to go
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            warnings.warn(f"{path}: {error}; the region is searched again", stacklevel=2)
            return None
        return found

    def _write(self, path: Path, found: Found) -> None:
        if not self._usable:
            return
        payload = json.dumps(found_as_data(found), separators=(",", ":"))
        text = f"{FORMAT} {hashlib.sha256(payload.encode()).hexdigest()}\n{payload}"
        partial = path.with_name(f".{path.name}.{os.getpid()}.{get_ident()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
            self._written.append(path)
        except OSError as error:
            self._usable = False
            warnings.warn(f"{self.folder}: {error.strerror}; results are not kept for the next run", stacklevel=2)

    def close(self, most: int = _MOST_BYTES) -> None:
        """Remove the entries that were not used for longest, if something was added and the folder is too big."""
        if not self._written:
            return
        self._written.clear()
        entries: list[tuple[int, int, Path]] = []
        for path in self.folder.glob("*/*.json*"):
            try:
                facts = path.stat()
            except OSError:
                continue  # another process has removed it
            entries.append((facts.st_mtime_ns, facts.st_size, path))
        total = sum(size for _, size, _ in entries)
        if total <= most:
            return
        for _, size, path in sorted(entries):
            if total <= most * _KEPT_SHARE:
                return
            path.unlink(missing_ok=True)
            total -= size
