"""``superopt corpus run|compare|update``: models as a gate in continuous integration."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from superopt.cli.command_utilities import (
    LARGEST,
    MOST_WORKERS,
    Cluster,
    Dims,
    Json,
    ProgressReporter,
    Rules,
    err,
    going_on,
    out,
    parse_dims,
    write_json,
    write_text,
)
from superopt.cli.output_paths import claim
from superopt.cli.settings import settings_file
from superopt.ir.errors import UsageError

if TYPE_CHECKING:
    from superopt.gate import CorpusSettings
    from superopt.report.corpus import BaselineComparison, CorpusRun

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    help="A gate in CI: optimize a folder of models, and compare costs and checks with a recorded baseline.",
)

Models = Annotated[
    list[str] | None,
    typer.Argument(help="models, folders or glob patterns; by default those of the settings file, or corpus/"),
]
Target = Annotated[
    str | None,
    typer.Option(
        help="profile:NAME is deterministic; by default the baseline's, else profile:cpu-epyc-2core",
        envvar="SUPEROPT_TARGET",
    ),
]
Baseline = Annotated[
    Path | None, typer.Option(metavar="FILE", help="the recorded baseline; by default baseline.json beside the models")
]
TimeLimit = Annotated[float | None, typer.Option(metavar="S", min=0, help="seconds for one model")]
Workers = Annotated[
    int | None,
    typer.Option(min=0, max=MOST_WORKERS, help="how many models run at once; 0: one a core, as far as memory allows"),
]
Disable = Annotated[list[str] | None, typer.Option(metavar="RULE", help="leave out a rule or a family")]
Measure = Annotated[
    bool, typer.Option("--measure", help="also time input and result side by side; times decide nothing here")
]
NoCheck = Annotated[bool, typer.Option("--no-check", help="do not compare results with the inputs")]
Seed = Annotated[
    int | None, typer.Option(min=0, max=LARGEST, help="of the inputs that models are run on, and of ties in the search")
]
Markdown = Annotated[str | None, typer.Option(metavar="FILE|-", help="write a Markdown summary")]
JUnit = Annotated[str | None, typer.Option("--junit", metavar="FILE|-", help="write JUnit XML")]
Sarif = Annotated[str | None, typer.Option("--sarif", metavar="FILE|-", help="write a SARIF 2.1.0 log")]
Threshold = Annotated[
    float | None, typer.Option(min=0, help="growth of a model's cost that is a regression; 0.02 is 2 %")
]
Total = Annotated[
    float | None, typer.Option(min=0, help="growth of the geometric mean over all models that is a regression")
]
BisectLimit = Annotated[
    float | None,
    typer.Option(metavar="S", min=0, help="seconds for finding the commits or rules that made a model slower"),
]
Resume = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="keep each model's row there, and continue from them")
]
TotalLimit = Annotated[
    float | None, typer.Option(metavar="S", min=0, help="seconds after which no further model is begun")
]
Recorded = Annotated[
    Path | None, typer.Option("--run", metavar="FILE", help="use the run that `corpus run --json` wrote")
]


@app.command("run")
def run_command(
    models: Models = None,
    target: Target = None,
    baseline: Baseline = None,
    time_limit: TimeLimit = None,
    workers: Workers = None,
    cluster: Cluster = None,
    resume: Resume = None,
    total_limit: TotalLimit = None,
    dim: Dims = None,
    seed: Seed = None,
    rules: Rules = None,
    disable: Disable = None,
    measure: Measure = False,
    no_check: NoCheck = False,
    report_json: Json = None,
    markdown: Markdown = None,
    junit: JUnit = None,
    sarif: Sarif = None,
) -> None:
    """Optimize and check every model, and show estimated costs beside the baseline's. It takes minutes.

    Exit code 5 if a result was wrong. `compare` also fails where a model costs more than the baseline allows.
    """
    from superopt.gate import judge, run_corpus
    from superopt.report.corpus import BaselineComparison

    _claim(report_json, markdown, junit, sarif, [*(models or ()), *([baseline] if baseline else ())])
    settings = _settings(
        models=models, target=target, baseline=baseline, time_limit=time_limit, workers=workers, cluster=cluster,
        resume=resume, total_limit=total_limit, sizes=dim, seed=seed,
        rules=rules, disable=disable, measure=measure, no_check=no_check,
    )  # fmt: skip
    with going_on(settings.resume), ProgressReporter() as progress:
        run = run_corpus(settings, progress=progress)
        judged = judge(run, settings, None)
    known_corpus_run = _baseline(settings, needed=False)
    comparison = BaselineComparison(judged.run, judged.findings, known_corpus_run, judged.notes)
    _write(comparison, report_json, markdown, junit, sarif)
    failed = next((r.exit_code for r in run.rows if r.status == "failed"), 0)
    raise typer.Exit(5 if judged.exit_code == 5 else failed)


@app.command()
def compare(
    models: Models = None,
    target: Target = None,
    baseline: Baseline = None,
    recorded: Recorded = None,
    threshold: Threshold = None,
    total_threshold: Total = None,
    time_limit: TimeLimit = None,
    bisect_limit: BisectLimit = None,
    workers: Workers = None,
    cluster: Cluster = None,
    resume: Resume = None,
    total_limit: TotalLimit = None,
    dim: Dims = None,
    seed: Seed = None,
    rules: Rules = None,
    disable: Disable = None,
    measure: Measure = False,
    no_check: NoCheck = False,
    report_json: Json = None,
    markdown: Markdown = None,
    junit: JUnit = None,
    sarif: Sarif = None,
) -> None:
    """Run the corpus, or read a run with --run, and compare it with the baseline. It takes minutes.

    A regression names the rule or the commit that caused it, where that is found.

    The baseline is --baseline, that of the settings, or baseline.json beside the models, which `corpus update` records.
    Where there is none yet, only wrong results and models that fail are judged.
    Exit code 6 if a model costs more than its threshold allows or can no longer be optimized, 5 if a result was wrong.
    """
    from superopt.gate import judge, read_run, run_corpus

    _claim(report_json, markdown, junit, sarif, [*(models or ()), *(f for f in (baseline, recorded) if f)])
    settings = _settings(
        models=models, target=target, baseline=baseline, time_limit=time_limit, workers=workers, cluster=cluster,
        resume=resume, total_limit=total_limit, sizes=dim, seed=seed,
        rules=rules, disable=disable, measure=measure, no_check=no_check, threshold=threshold,
        total_threshold=total_threshold, bisect_limit=bisect_limit,
    )  # fmt: skip
    known_corpus_run = _baseline(settings, needed=True)
    with going_on(settings.resume), ProgressReporter() as progress:
        run = read_run(recorded) if recorded is not None else run_corpus(settings, progress=progress)
        comparison = judge(run, settings, known_corpus_run, progress=progress)
    if known_corpus_run is None:
        comparison = replace(comparison, notes=(*comparison.notes, _no_baseline(models)))
    _write(comparison, report_json, markdown, junit, sarif)
    raise typer.Exit(comparison.exit_code)


@app.command()
def update(
    models: Models = None,
    target: Target = None,
    baseline: Baseline = None,
    recorded: Recorded = None,
    time_limit: TimeLimit = None,
    workers: Workers = None,
    cluster: Cluster = None,
    resume: Resume = None,
    total_limit: TotalLimit = None,
    dim: Dims = None,
    seed: Seed = None,
    rules: Rules = None,
    disable: Disable = None,
    no_check: NoCheck = False,
) -> None:
    """Run the corpus, or read a run with --run, and record it as the baseline. It takes minutes.

    Nothing is recorded if a result was wrong (exit code 5).
    """
    from superopt.gate import beside_models, judge, read_run, run_corpus, updated, write_run

    settings = _settings(
        models=models, target=target, baseline=baseline, time_limit=time_limit, workers=workers, cluster=cluster,
        resume=resume, total_limit=total_limit, sizes=dim, seed=seed,
        rules=rules, disable=disable, no_check=no_check,
    )  # fmt: skip
    written = settings.baseline or (beside_models(settings) if settings.models else None)
    if written is None:
        raise UsageError("no baseline file", hint="--baseline FILE, or baseline in [tool.superopt.corpus]")
    read = [model for model in models or () if Path(model).name != written.name]
    claim({"--baseline": written}, [*read, *([recorded] if recorded else ())], force=True)
    old = _baseline(settings, needed=False)
    with going_on(settings.resume), ProgressReporter() as progress:
        run = read_run(recorded) if recorded is not None else run_corpus(settings, progress=progress)
        comparison = judge(run, settings, None)
    _show(comparison)
    if comparison.exit_code == 5:
        raise typer.Exit(5)
    write_run(written, updated(run, old, partial=settings.partial))
    err().print(f"wrote {written}", markup=False)


def _settings(
    *, models: list[str] | None, sizes: list[str] | None, disable: list[str] | None, no_check: bool, **flags: Any
) -> CorpusSettings:
    """Flags over the settings file's ``corpus`` table."""
    from superopt.gate import CorpusSettings, beside_models

    file, table = settings_file(Path.cwd())
    root = file.parent if file is not None else Path.cwd()
    own = table.get("corpus", {})
    if not isinstance(own, dict):
        raise UsageError("[corpus] is not a table", where=str(file))
    settings = CorpusSettings.read(own, root)
    given = {k: v for k, v in flags.items() if v is not None and v is not False}
    if models:
        given |= {"models": tuple(models), "partial": all(Path(m).is_file() for m in models)}
    if sizes:
        given["sizes"] = {**settings.sizes, **parse_dims(sizes)}
    if disable:
        given["disable"] = tuple(disable)
    if no_check:
        given["check"] = False
    settings = replace(settings, **given)
    if settings.baseline is None and settings.models and (default := beside_models(settings)).is_file():
        return replace(settings, baseline=default)
    return settings


def _no_baseline(models: list[str] | None) -> str:
    """What a comparison without a baseline is, and what makes it one."""
    again = " ".join(shlex.quote(m) for m in models or ())
    return (
        "there is no baseline, so only wrong results and failures count; what stands now becomes the baseline with "
        f"superopt corpus update {again}".rstrip()
    )


def _baseline(settings: CorpusSettings, *, needed: bool) -> CorpusRun | None:
    from superopt.gate import read_run

    if settings.baseline is None:
        return None
    return read_run(settings.baseline) if needed or settings.baseline.is_file() else None


def _show(comparison: BaselineComparison, *, busy: bool = False) -> None:
    from superopt.report.corpus import show

    show(err() if busy else out(), comparison)


def _claim(
    report_json: str | None, markdown: str | None, junit: str | None, sarif: str | None, inputs: list[str | Path]
) -> None:
    """Reports of a gate are written anew each time it runs, but over nothing that it reads."""
    outputs = {"--json": report_json, "--markdown": markdown, "--junit": junit, "--sarif": sarif}
    claim(outputs, inputs, force=True)


def _write(
    comparison: BaselineComparison, report_json: str | None, markdown: str | None, junit: str | None, sarif: str | None
) -> None:
    """The table, and the files that were asked for."""
    from superopt.gate import run_data
    from superopt.report.corpus import junit as as_junit
    from superopt.report.corpus import markdown as as_markdown
    from superopt.report.corpus import sarif as as_sarif

    _show(comparison, busy="-" in (report_json, markdown, junit, sarif))
    if report_json is not None:
        verdict = {
            "exit_code": comparison.exit_code, "ratio": comparison.ratio, "notes": list(comparison.notes),
            "findings": [
                {"kind": f.kind, "level": f.level, "model": f.model, "message": f.message, "before_us": f.before_us,
                 "after_us": f.after_us, "culprit": None if f.culprit is None else vars(f.culprit)}
                for f in comparison.findings
            ],
        }  # fmt: skip
        write_json({**run_data(comparison.run), "verdict": verdict}, report_json, force=True)
    if markdown is not None:
        write_text(as_markdown(comparison), markdown, force=True)
    if junit is not None:
        write_text(as_junit(comparison), junit, force=True)
    if sarif is not None:
        write_text(json.dumps(as_sarif(comparison), indent=2) + "\n", sarif, force=True)
