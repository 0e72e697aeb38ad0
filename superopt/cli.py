"""The command line: arguments → pipeline → exit code. Data goes to stdout, everything else to stderr.

Exit codes: 0 done · 1 internal · 2 usage · 3 invalid model · 4 unsupported with --strict · 5 not equivalent ·
6 regression · 7 resource limit · 130 interrupted. Heavy imports stay inside the commands, so that --help is instant.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from superopt.ir.errors import Interrupted, ResourceLimit, SuperoptError, UsageError, printable


class _Commands(TyperGroup):
    """Lets Ctrl-C reach :func:`main`, which knows the exit code; the framework would exit with 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; nothing was written") from None


app = typer.Typer(
    name="superopt", cls=_Commands, no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False,
    help="Makes neural networks faster with rewrite rules that were checked, and shows that it changed nothing.",
)  # fmt: skip

Model = Annotated[str, typer.Argument(help="an ONNX model or a superopt JSON graph; - reads standard input")]
Json = Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="write the result as JSON")]
Force = Annotated[bool, typer.Option("-f", "--force", help="overwrite an existing file")]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="N=8", help="the size to cost a symbolic dimension at (it stays symbolic)"),
]
Threads = Annotated[int, typer.Option(min=1, envvar="SUPEROPT_THREADS", help="threads that are measured with")]
Target = Annotated[str, typer.Option(help="cpu, cuda, or profile:NAME", envvar="SUPEROPT_TARGET")]


def out() -> Console:
    """The console for data."""
    return Console(file=sys.stdout, soft_wrap=not sys.stdout.isatty(), highlight=False)


def err() -> Console:
    """The console for everything that is not data."""
    return Console(file=sys.stderr, soft_wrap=not sys.stderr.isatty(), highlight=False)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"superopt {version('superopt')}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print it")] = False,
) -> None:
    context.default_map = settings(Path.cwd())


def settings(folder: Path) -> dict[str, Any]:
    """Defaults for options, from ``superopt.toml`` or ``[tool.superopt]`` in the nearest pyproject.toml.

    A table per command: ``[optimize] time_limit = 30``. Flags and ``SUPEROPT_*`` variables win.

    Raises:
        UsageError: the file cannot be read as TOML.
    """
    for place in (folder, *folder.parents):
        for name in ("superopt.toml", "pyproject.toml"):
            path = place / name
            if not path.is_file():
                continue
            try:
                data = tomllib.loads(path.read_text(encoding="utf-8"))
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise UsageError(f"is not valid TOML ({error})", where=str(path)) from None
            found = data if name == "superopt.toml" else data.get("tool", {}).get("superopt")
            if found is not None:
                return dict(found)
    return {}


@app.command()
def optimize(
    model: Model,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="OUT", help=".onnx or .json; - for stdout")
    ] = None,
    target: Target = "cpu",
    time_limit: Annotated[
        float, typer.Option(metavar="S", min=0, envvar="SUPEROPT_TIME_LIMIT", help="seconds for everything")
    ] = 45.0,
    memory_limit: Annotated[
        str | None, typer.Option(metavar="B", envvar="SUPEROPT_MEMORY_LIMIT", help="bytes, or 512M, 2G")
    ] = None,
    seed: Annotated[int, typer.Option(help="the search and the check are deterministic for a seed")] = 0,
    rules: Annotated[Path | None, typer.Option(metavar="DIR", help="a rule library besides the built-in one")] = None,
    enable: Annotated[list[str] | None, typer.Option(metavar="RULE", help="use only these rules or families")] = None,
    disable: Annotated[list[str] | None, typer.Option(metavar="RULE", help="do without a rule or a family")] = None,
    dim: Dims = None,
    threads: Threads = 1,
    measure: Annotated[bool, typer.Option("--measure", help="time input and result side by side")] = False,
    no_check: Annotated[bool, typer.Option("--no-check", help="skip the check against the reference")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="fail (exit 4) if a node is not understood")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="show where each rule was applied, and near misses")
    ] = False,
    report_json: Json = None,
    report_html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="write the report as a page")
    ] = None,
    force: Force = False,
) -> None:
    """Rewrite MODEL into a faster, equivalent one, and report what changed."""
    from superopt import pipeline
    from superopt.report.terminal import show_explanation, show_report

    for path in (output, report_json, report_html):
        _refuse_existing(path, force)
    options = pipeline.Options(
        target=target, time_limit=time_limit, memory_limit=parse_bytes(memory_limit), seed=seed, rules=rules,
        enable=tuple(enable or ()), disable=tuple(disable or ()), sizes=parse_dims(dim or []), threads=threads,
        measure=measure, check=not no_check, strict=strict,
    )  # fmt: skip
    with _Input(model) as path, _Progress() as progress:
        result = pipeline.optimize(path, options=options, progress=progress)
        if output is not None:
            _save(result.graph, output, force)
    if report_json is not None:
        _write_json(result.report.json(), report_json, force)
    if report_html is not None:
        from superopt.report.html import render

        _write_text(render(model, result.report), str(report_html), force)
    busy = "-" in (output, report_json)
    console = err() if busy else out()
    show_report(console, model, result.report)
    if explain:
        show_explanation(console, result.report)
    if output not in (None, "-"):
        console.print(f"wrote {output}", markup=False)
    if result.report.search.stopped == "interrupted":
        raise typer.Exit(130)


@app.command()
def explain(model: Model, target: Target = "cpu", time_limit: float = 45.0, dim: Dims = None) -> None:
    """Say what optimize would do to MODEL and why: rules by place and gain, near misses, untouched nodes.

    A model that superopt wrote also tells which rules made each of its nodes.
    """
    from superopt import pipeline
    from superopt.report.terminal import show_explanation, show_report
    from superopt.report.views import show_provenance

    with _Input(model) as path, _Progress() as progress:
        options = pipeline.Options(target=target, time_limit=time_limit, sizes=parse_dims(dim or []))
        result = pipeline.optimize(path, options=options, progress=progress)
    console = out()
    show_provenance(console, result.original)
    show_report(console, model, result.report)
    show_explanation(console, result.report)


@app.command()
def inspect(model: Model, dim: Dims = None, report_json: Json = None) -> None:
    """Show what MODEL is: signature, operators, weights, work, arithmetic intensity, and what is opaque to superopt."""
    from superopt.pipeline import inspect as look
    from superopt.report.views import show_inspection

    with _Input(model) as path:
        facts = look(path, sizes=parse_dims(dim or []))
    if report_json is not None:
        _write_json(facts, report_json, force=True)
    if report_json != "-":
        show_inspection(out(), model, facts)


@app.command()
def convert(
    source: Model, destination: Annotated[str, typer.Argument(help=".onnx or .json")], force: Force = False
) -> None:
    """Convert between ONNX and the JSON graph; nothing is lost either way."""
    from superopt.formats import load

    _refuse_existing(destination, force)
    with _Input(source) as path:
        _save(load(path), destination, force)


@app.command()
def diff(a: Model, b: Model, report_json: Json = None) -> None:
    """Show which nodes of A and B compute something that the other does not. Exit code 0 either way."""
    from superopt.formats import load
    from superopt.ir.diff import compare
    from superopt.report.views import diff_data, show_diff

    with _Input(a) as first, _Input(b) as second:
        found = compare(load(first), load(second))
    if report_json is not None:
        _write_json(diff_data(found), report_json, force=True)
    if report_json != "-":
        show_diff(out(), a, b, found)


@app.command()
def cost(model: Model, target: Target = "cpu", dim: Dims = None, report_json: Json = None, top: int = 20) -> None:
    """Show what each operator of MODEL costs on the target, and whether that was measured or predicted."""
    from superopt.pipeline import cost as cost_of
    from superopt.report.views import show_cost

    with _Input(model) as path, _Progress() as progress:
        facts = cost_of(path, target=target, sizes=parse_dims(dim or []), progress=progress)
    if report_json is not None:
        _write_json(facts, report_json, force=True)
    if report_json != "-":
        show_cost(out(), model, facts, top)


@app.command()
def bench(
    models: Annotated[list[Path], typer.Argument(help="models to optimise and time against the input")],
    rounds: Annotated[int, typer.Option(min=3, help="interleaved rounds a model")] = 25,
    report_json: Json = None,
) -> None:
    """Optimise each model, then time input and result side by side under ONNX Runtime with its own optimisations."""
    from superopt.pipeline import bench as run_bench
    from superopt.report.views import show_bench

    rows = []
    console = out()
    for path in models:
        with _Progress() as progress:
            rows.append(run_bench(path, rounds=rounds, progress=progress))
        if report_json != "-":
            show_bench(console, rows[-1:], header=len(rows) == 1)
    if report_json is not None:
        _write_json({"format": "superopt.bench", "version": 1, "rows": rows}, report_json, force=True)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the JSON graph."""
    from superopt.formats import schema as graph_schema

    typer.echo(json.dumps(graph_schema(), indent=2))


def parse_dims(items: list[str]) -> dict[str, int]:
    """``["N=8"]`` → ``{"N": 8}``.

    Raises:
        UsageError: an item is not NAME=SIZE with a positive integer.
    """
    sizes: dict[str, int] = {}
    for item in items:
        name, _, text = item.partition("=")
        if not name or not text.isdecimal() or int(text) < 1:
            raise UsageError(f"--dim {printable(item)!r} is not NAME=SIZE", hint="write for example --dim N=8")
        sizes[name] = int(text)
    return sizes


def parse_bytes(text: str | None) -> int | None:
    """``"512M"`` → 536870912; a plain number is bytes.

    Raises:
        UsageError: it is not a size.
    """
    if text is None:
        return None
    scale = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}.get(text[-1:].lower(), 1)
    digits = text[:-1] if scale > 1 else text
    try:
        value = float(digits) * scale
    except ValueError:
        value = -1.0
    if not 0 < value < 2**60:
        raise UsageError(f"{printable(text)!r} is not a size in bytes", hint="write for example 2G or 512M")
    return int(value)


class _Input:
    """The path of a model argument; standard input is kept in a private file for as long as it is needed."""

    def __init__(self, argument: str) -> None:
        self.argument = argument
        self.folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Path:
        if self.argument != "-":
            return Path(self.argument)
        self.folder = tempfile.TemporaryDirectory(prefix="superopt-")
        path = Path(self.folder.name) / "stdin"
        path.write_bytes(sys.stdin.buffer.read())
        return path

    def __exit__(self, *_: object) -> None:
        if self.folder is not None:
            self.folder.cleanup()


class _Progress:
    """A callback ``(done, total, what)``: a bar on a terminal, nothing where standard error is not one."""

    def __enter__(self) -> Any:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, console=err(), transient=True, disable=not sys.stderr.isatty())
        self.task = self.bar.add_task("starting", total=None)
        self.bar.start()
        return self.update

    def update(self, done: int, total: int | None, what: str) -> None:
        self.bar.update(self.task, completed=done, total=total, description=printable(what, 60))

    def __exit__(self, *_: object) -> None:
        self.bar.stop()


def _refuse_existing(path: str | Path | None, force: bool) -> None:
    if path is not None and str(path) != "-" and not force and Path(path).exists():
        raise UsageError("already exists", where=str(path), hint="use -f to overwrite it")


def _save(graph: Any, destination: str, force: bool) -> None:
    from superopt.formats import save, to_onnx_bytes

    if destination == "-":
        sys.stdout.buffer.write(to_onnx_bytes(graph))
        sys.stdout.buffer.flush()
    else:
        save(graph, Path(destination), force=force)


def _write_json(data: Any, destination: str, force: bool) -> None:
    _write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", destination, force)


def _write_text(text: str, destination: str, force: bool) -> None:
    if destination == "-":
        sys.stdout.write(text)
        return
    from superopt.formats.files import replace_file

    replace_file(Path(destination), text.encode(), force=force)


def main() -> None:
    """Entry point: run a command and exit with its code; an expected failure is one line on stderr."""
    try:
        app(standalone_mode=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except SuperoptError as error:
        _fail(str(error), error.exit_code)
    except MemoryError:
        _fail("out of memory; try --memory-limit, or a machine with more", ResourceLimit.exit_code)
    except OSError as error:
        code = ResourceLimit.exit_code if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE) else 2
        _fail(f"{error.filename or 'file'}: {error.strerror or error}", code)
    except Exception as error:
        if os.environ.get("SUPEROPT_DEBUG"):
            raise
        _fail(f"internal error: {type(error).__name__}: {error}; please report it (SUPEROPT_DEBUG=1 shows where)", 1)


def _fail(message: str, code: int) -> None:
    lines = message.splitlines() or [""]
    print("superopt: " + "\n  ".join(printable(line, 2000) for line in lines), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
