"""The program ``ktuned``: finds and runs a command, and turns errors into one line and an exit status.

A command's module is imported only when the command is named.
"""

from __future__ import annotations

import copy
import functools
import importlib
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from keyword import iskeyword
from typing import Any, NamedTuple

import click

from ktuned.cli import output, versions
from ktuned.cli.output import USAGE_CODES, Exit
from ktuned.model import KtunedError, escape_surrogates


class Entry(NamedTuple):
    """A command: the module below ``commands`` that holds it, and its line in ``--help``."""

    module: str
    summary: str


GROUPS: Mapping[str, Mapping[str, Entry]] = {
    "Tune": {
        "tune": Entry("tune", "Tune a kernel file, a directory, or a kernel."),
        "watch": Entry("watch", "Show kernels, and tune each one again when you save its files."),
        "judge": Entry("judge", "Judge candidates that you do not trust, such as an agent's."),
        "run": Entry("run", "Run a program; the daemon tunes its autotuned kernels."),
        "mcp": Entry("mcp", "Serve tools for agents over the Model Context Protocol."),
        "jobs": Entry("jobs", "List, cancel, pause or resume jobs."),
        "add": Entry("kernels", "Watch the project of a kernel file or directory, without tuning it."),
        "remove": Entry("kernels", "Stop watching a directory."),
    },
    "Results": {
        "lookup": Entry("lookup", "Print the best config known for a kernel."),
        "kernels": Entry("kernels", "List kernels, or show one kernel and its winners."),
        "results": Entry("results", "List trials of KERNEL, or show everything about one trial."),
        "report": Entry("report", "Write winners and trials as an HTML file with charts."),
        "check": Entry("check", "Run KERNEL's winners once more and check their outputs."),
        "forget": Entry("upkeep", "Delete a kernel's trials and winners."),
    },
    "Share": {
        "export": Entry("share", "Write winners into a directory, as files for git."),
        "import": Entry("share", "Import winners from files that `ktuned export` wrote."),
        "share": Entry("team_store", "Exchange winners with other daemons through a team's store."),
    },
    "Daemon": {
        "status": Entry("status", "Show the daemon's state."),
        "doctor": Entry("doctor", "Check this installation."),
        "config": Entry("settings", "Show the settings."),
        "logs": Entry("logs", "Show the daemon's log."),
        "start": Entry("start", "Start the daemon."),
        "stop": Entry("start", "Stop the daemon."),
    },
}
"""Every command by its group, in the order of ``--help``, which imports none of the modules."""

COMMANDS: Mapping[str, Entry] = {name: entry for group in GROUPS.values() for name, entry in group.items()}


class _Commands(click.Group):
    """A group that imports a command's module only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"ktuned.cli.commands.{COMMANDS[cmd_name].module}")
        command: click.Command = getattr(module, f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name)
        callback = command.callback
        if callback is not None:
            command = copy.copy(command)
            command.callback = _prepare_callback(cmd_name, callback)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by their groups."""
        width = max(map(len, COMMANDS))
        for group, entries in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), entry.summary) for name, entry in entries.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # During a shell's completion, an unfinished word is not an error.
        if args and not ctx.resilient_parsing and not args[0].startswith("-") and args[0] not in COMMANDS:
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            meant = f", did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"there is no command {args[0]!r}{meant}", ctx)
        return super().resolve_command(ctx, args)


def _prepare_callback(name: str, callback: Callable[..., Any]) -> Callable[..., Any]:
    """Make a command check the daemon's protocol first, and make its usage errors mention its help."""

    @functools.wraps(callback)
    def run(*args: Any, **kwargs: Any) -> Any:
        if name not in versions.ACROSS_VERSIONS:
            versions.check_protocol()
        try:
            return callback(*args, **kwargs)
        except click.UsageError as error:
            error.ctx = error.ctx or click.get_current_context()
            raise

    return run


def _print_version(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked:
        output.emit_line(f"ktuned {versions.read_own_version()}")
        context.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def cli() -> None:
    """Tune kernels in a background daemon, and look up the best known configs."""


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; errors become one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        return _execute_command(arguments)
    except output.ReaderGone:
        _abandon_stdout()
        return Exit.BROKEN_PIPE
    except OSError as error:
        # Without a name it is stdout, such as a file on a full disk.
        if error.filename is None:
            _abandon_stdout()
        output.print_error(f"{error.filename or 'stdout'} cannot be read or written: {error.strerror or error}")
        return Exit.NOT_REACHED


def _execute_command(arguments: Sequence[str] | None) -> int:
    from ktuned.cli.spawn import DaemonNotStarted
    from ktuned_client import DaemonError, DaemonUnavailable
    from ktuned_client.answers import DaemonSilent
    from ktuned_client.wire import Unsendable, describe_undecodable

    words = list(sys.argv[1:] if arguments is None else arguments)
    # Also an error in the command line itself is JSON then. The words after `run` are another program's.
    output.is_json = "--json" in words and words[:1] != ["run"]
    for word in words:
        if escape_surrogates(word) != word:
            output.print_error(describe_undecodable(word), code="usage")
            return Exit.USAGE
    try:
        result: Any = cli.main(args=arguments, prog_name="ktuned", standalone_mode=False)
        return result if isinstance(result, int) else Exit.DONE
    except click.exceptions.NoArgsIsHelpError as error:
        output.print_message(error.format_message())
        return Exit.USAGE
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f"see `{context.command_path} --help`" if context else ""
        output.print_error(error.format_message(), hint, "usage")
        return Exit.USAGE
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except Unsendable as error:
        output.print_error(str(error), code="usage")
        return Exit.USAGE
    except DaemonSilent as error:
        output.print_error(error.message, f"{error.hint}; {_describe_kill()}", "unavailable")
        return Exit.NO_DAEMON
    except (DaemonUnavailable, DaemonNotStarted) as error:
        output.print_error(error.message, error.hint, "unavailable")
        return Exit.NO_DAEMON
    except (DaemonError, KtunedError) as error:
        output.print_error(error.message, error.hint, error.code)
        return Exit.USAGE if error.code in USAGE_CODES else Exit.NOT_REACHED


def _describe_kill() -> str:
    """Return the command that kills a daemon that does not answer; committed results survive."""
    from ktuned.cli.spawn import state_directory
    from ktuned.serve import find_holder

    holder = find_holder(state_directory())
    return f"`kill -9 {'PID' if holder is None else holder.pid}` ends it, and measurements are kept"


def _abandon_stdout() -> None:
    """Redirect stdout to /dev/null, so that the interpreter's last flush does not fail with a broken pipe."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
