"""Record what the gallery shows: ``python -m superopt.server.gallery_record [MODELS] --folder server/gallery/results``.

Each model of the corpus is optimized for a recorded profile, one after the other, in a process of its own; kept are its
report and the comparison of both graphs, compressed, under the model's name. ``make gallery`` does all of them.
"""

from __future__ import annotations

import argparse
import gzip
import json
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

__all__ = ["FORMAT", "main", "recorded"]

FORMAT = "superopt.gallery"
_SECONDS = 120.0  # of each optimization


def recorded(path: Path, target: str, seconds: float = _SECONDS) -> dict[str, Any]:
    """One model's entry, as JSON data (``superopt.gallery``).

    Args:
        path: of the model.
        target: ``profile:NAME``, so that it says on which device it is to be fast.
        seconds: limit of the optimization.
    """
    from superopt import cost, pipeline
    from superopt.server.views.report_payload import tell

    options = pipeline.Options(target=target, time_limit=seconds)
    result = pipeline.optimize(path, options=options)
    told = tell(result, options)
    header = cost.load_profile(target.partition(":")[2]).header
    return {
        "format": FORMAT, "version": 1, "model": path.stem, "target": target, "device": header["device"],
        "date": datetime.now(UTC).strftime("%Y-%m-%d"), "report": told.report, "comparison": told.comparison,
    }  # fmt: skip


def main() -> None:
    """Record models, and say what came of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path, help="all of the gallery where none is named")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "gallery" / "results")
    parser.add_argument("--target", default="profile:cpu-epyc-2core")
    parser.add_argument("--missing", action="store_true", help="only those that are not there")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    models = given.models or sorted((Path(__file__).parent / "gallery").glob("*.json"))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as one:
        for path in models:
            place = given.folder / f"{path.stem}.json.gz"
            if given.missing and place.exists():
                continue
            data = one.submit(recorded, path, given.target).result()
            text = json.dumps(data, allow_nan=False, separators=(",", ":"))
            place.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
            cost = data["report"]["cost"]
            print(f"{path.stem}: {data['report']['status']}, modelled {cost['after_us'] / cost['before_us']:.3f}, "
                  f"{data['report']['search']['stopped']}, {place.stat().st_size >> 10} KiB", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
