"""The command line: arguments → pipeline → exit code. Data goes to stdout, everything else to stderr.

Exit codes: 0 done · 1 internal · 2 usage · 3 invalid model · 4 unsupported with --strict · 5 not equivalent ·
6 regression · 7 resource limit · 130 interrupted. Heavy imports stay inside the commands, so that --help is instant.
"""

from __future__ import annotations

from superopt.cli import early  # first of all: Ctrl-C during the other imports

# isort: split
import errno
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from superopt.cli import bench, corpus, library, models, service
from superopt.cli.settings import defaults, settings_file
from superopt.ir.errors import Interrupted, ResourceLimit, SuperoptError, printable

early.done()

__all__ = ["app", "main"]


class _Commands(TyperGroup):
    """Lets Ctrl-C reach :func:`main`, which knows the exit code; the framework would exit with 1."""

    def invoke(self, ctx: Any) -> Any:
        early.done()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; nothing was written") from None


app = typer.Typer(
    name="superopt", cls=_Commands, no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False,
    help="Makes neural networks faster with rewrite rules that were checked, and shows that it changed nothing.",
)  # fmt: skip


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
    file, table = settings_file(Path.cwd())
    if file is not None:
        context.default_map = defaults(table, getattr(context.command, "commands", {}), str(file))


for _command in (*models.COMMANDS, *service.COMMANDS):
    app.command()(_command)
app.command("bench")(bench.bench)
app.add_typer(library.app, name="rules")
app.add_typer(corpus.app, name="corpus")
app.command()(library.discover)


def main() -> None:
    """Entry point: run a command and exit with its code; an expected failure is one line on stderr."""
    early.begin()
    warnings.showwarning = _warn
    try:
        app(standalone_mode=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        _fail("interrupted; nothing was written", Interrupted.exit_code)
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
    finally:
        early.done()


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as a line, like an error: the place in the code says nothing to who runs a command."""
    _say(f"warning: {message}")


def _fail(message: str, code: int) -> None:
    _say(message)
    sys.exit(code)


def _say(message: str) -> None:
    lines = message.splitlines() or [""]
    print("superopt: " + "\n  ".join(printable(line, 2000) for line in lines), file=sys.stderr)
