"""The command line: arguments → pipeline → exit code. Data goes to stdout, everything else to stderr.

Exit codes: 0 done · 1 internal · 2 usage · 3 invalid model · 4 unsupported with --strict · 5 not equivalent ·
6 regression · 7 resource limit · 130 interrupted. Heavy imports stay inside the commands, so that --help is instant.
"""

from __future__ import annotations

from superopt.cli import signal_handling  # first of all: Ctrl-C during the other imports

# isort: split
import atexit
import gc
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from superopt.cli import standard_streams
from superopt.cli.settings import defaults, settings_file
from superopt.fleet import mpi
from superopt.ir.errors import Interrupted, SuperoptError, UsageError, printable, superopt_error

signal_handling.done()

__all__ = ["app", "main"]


_SETTINGS = "superopt.settings"  # under which the framework's context keeps the settings file's name


_NOTHING = ""  # run at the end: Python ends by SIGINT itself where one fell into a string that it ran last


class _Commands(TyperGroup):
    """Lets Ctrl-C reach :func:`main`, which knows the exit code; the framework would exit with 1. An option that is
    given twice is refused, where the framework would take the last one without a word, and so is a number that is NaN,
    which is beyond no bound."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        found = super().resolve_command(ctx, args)
        _refuse_options(ctx, *found)
        return found

    def invoke(self, ctx: Any) -> Any:
        signal_handling.done()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; nothing was written") from None


def _refuse_options(ctx: Any, name: str | None, command: Any, args: list[str]) -> None:
    context = type(ctx)(command, parent=ctx, info_name=name)
    inner = getattr(command, "commands", None)
    if inner is not None:
        if args and args[0] in inner:
            _refuse_options(context, args[0], inner[args[0]], args[1:])
        return
    values, _, given = command.make_parser(context).parse_args(list(args))
    for option in {id(o): o for o in given if given.count(o) > 1}.values():
        if option.param_type_name == "option" and not (option.multiple or option.is_flag or option.count):
            hint = "; put the files into one folder" if option.name == "rules" else ""
            raise UsageError(f"{option.opts[0]} is given {given.count(option)} times{hint}")
    for option in given:
        number = "float" in str(getattr(getattr(option, "type", None), "name", ""))
        if number and str(value := values.get(option.name)).strip("+- ").lower() == "nan":
            raise UsageError(f"{option.opts[-1]}: {value} is no number")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"superopt {version('superopt')}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print it")] = False,
) -> None:
    try:
        file, table = settings_file(Path.cwd())
    except FileNotFoundError:  # the folder that the command runs in is gone, and with it any settings
        return
    if file is not None:
        context.meta[_SETTINGS] = str(file)
        context.default_map = defaults(table, getattr(context.command, "commands", {}), str(file))


def _without_commands() -> typer.Typer:
    made = typer.Typer(
        name="superopt", cls=_Commands, no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Makes neural networks faster with rewrite rules that were checked, and shows that it changed nothing.",
    )  # fmt: skip
    made.callback()(_root)
    return made


@cache
def _all_commands() -> typer.Typer:
    from superopt.cli import (
        algorithms,
        assignment,
        bench,
        corpus,
        discovery,
        gradients,
        models,
        optimize,
        placement,
        rule_library,
        service,
    )

    made = _without_commands()
    for command in (*optimize.COMMANDS, *models.COMMANDS, *service.COMMANDS):
        made.command()(command)
    made.command("bench")(bench.bench)
    made.add_typer(rule_library.app, name="rules")
    made.add_typer(corpus.app, name="corpus")
    made.add_typer(algorithms.app, name="algorithms")
    made.add_typer(gradients.app, name="gradients")
    made.command()(assignment.assign)
    made.command()(placement.place)
    made.command()(discovery.discover)
    made.command()(gradients.train_step)
    return made


def _commands_for(arguments: Sequence[str]) -> typer.Typer:
    """All commands, or the optimisers alone where one of them is called and no settings file speaks of others: to make
    the framework's parameters of every command takes a tenth of a second."""
    from superopt.cli import optimize

    names = {command.__name__ for command in optimize.COMMANDS}
    if not arguments or arguments[0] not in names:
        return _all_commands()
    try:
        file, _ = settings_file(Path.cwd())
    except (FileNotFoundError, SuperoptError):  # the callback says so
        file = None
    if file is not None:
        return _all_commands()
    made = _without_commands()
    for command in optimize.COMMANDS:
        made.command()(command)
    return made


def __getattr__(name: str) -> typer.Typer:
    if name == "app":
        return _all_commands()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main() -> None:
    """Entry point: run a command and exit with its code; an expected failure is one line on stderr."""
    signal_handling.begin()
    standard_streams.prepare()
    atexit.register(gc.freeze)  # the end of the process would look through all that a search made, for seconds
    warnings.showwarning = _warn
    try:
        with mpi.client() as wanted:
            code = _commands_for(sys.argv[1:])(standalone_mode=False) if wanted else 0
            sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # the framework makes a failure of it
            standard_streams.stop_output()
            sys.exit(0)
        raise
    except BrokenPipeError:
        standard_streams.stop_output()
        sys.exit(0)
    except KeyboardInterrupt:
        _fail("interrupted; nothing was written", Interrupted.exit_code)
    except SuperoptError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        _fail(*_file_error(error))
    except Exception as error:
        if callable(said := getattr(error, "format_message", None)):
            _usage(error, said())
        if signal_handling.interrupted():
            _fail("interrupted; nothing was written", Interrupted.exit_code)
        _fail(str(superopt_error(error)), superopt_error(error).exit_code)
    finally:
        signal_handling.done()


def _usage(error: Any, message: str) -> NoReturn:
    """What the framework says of the arguments, as a line; where none were given at all it is the help."""
    context = getattr(error, "ctx", None)
    if "NoArgs" in type(error).__name__:
        print(message, file=sys.stderr)
        sys.exit(UsageError.exit_code)
    where, help_ = "", ""
    if context is not None:
        source = context.get_parameter_source(getattr(getattr(error, "param", None), "name", None) or "")
        where = f"{context.meta.get(_SETTINGS)}: " if source is not None and source.name == "DEFAULT_MAP" else ""
        help_ = f"; see {context.command_path} --help"
    _fail(where + " ".join(message.split()).rstrip(".") + help_, UsageError.exit_code)


def _file_error(error: OSError) -> tuple[str, int]:
    """The line and the exit code for an error of the system that nothing more precise was made of."""
    known_error: SuperoptError | None = standard_streams.output_error(error)
    if known_error is not None:
        standard_streams.stop_output()
    known_error = known_error or superopt_error(error)
    return str(known_error), known_error.exit_code


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as a line, like an error: the place in the code says nothing to who runs a command."""
    _say(f"warning: {message}")


def _fail(message: str, code: int) -> NoReturn:
    if os.environ.get("SUPEROPT_DEBUG"):
        traceback.print_exc()
    signal_handling.quit_at_once(f"superopt: {printable(message, 2000)}\n".encode("utf-8", "backslashreplace"), code)
    _say(message)
    signal_handling.quit_at_once(b"", code)
    try:
        sys.stdout.flush()
    except OSError:
        standard_streams.stop_output()
    with suppress(MemoryError):  # it is read first, for which there may be no room left
        exec(_NOTHING)
    sys.exit(code)


def _say(message: str) -> None:
    lines = message.splitlines() or [""]
    print("superopt: " + "\n  ".join(printable(line, 2000) for line in lines), file=sys.stderr)
