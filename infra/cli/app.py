"""The tree of commands, each loaded only when it is called, so that `--help` stays light.

Exit codes: 0 done, 1 tried and failed, 2 wrong use or settings, 3 the bus could not be reached.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence

import click

from infra.run.naming import HOW
from infra.version import VERSION
from schemas.errors import BusUnreachableError, SettingsError, SluiceError

EXIT_FAILED = 1
EXIT_WRONG_USE = 2
EXIT_NO_BUS = 3

# name -> (module:attribute, one line for `sluice --help`); the module is imported when the command
# is called.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("infra.cli.platform:up", "Start Kafka and the schema registry on this machine."),
    "down": ("infra.cli.platform:down", "Stop them; what they hold stays."),
    "status": ("infra.cli.platform:status", "Show the services of the local platform."),
    "doctor": ("infra.cli.platform:doctor", "Check this machine and say what is missing."),
    "run": ("infra.cli.run:run", "Train: start every role, show progress, audit at the end."),
    "worker": ("infra.cli.run:worker", "Run one role of a run in this process."),
    "audit": (
        "infra.cli.proof:audit",
        "Prove from the topics that nothing was lost or counted twice.",
    ),
    "replay": ("infra.cli.proof:replay", "Tell the whole story of one episode."),
    "report": ("infra.cli.run:report", "Write summary and report of a run again."),
    "topics": ("infra.cli.topics:topics", "List, describe, create topics; write the contract."),
    "tail": ("infra.cli.tail:tail", "Decode a topic live."),
    "dead-letters": (
        "infra.cli.dead_letters:dead_letters",
        "Show what no consumer could take, and produce it again.",
    ),
    "policies": ("infra.cli.proof:policies", "List and show policy versions."),
    "sql": ("infra.cli.sql:sql", "Ask the ClickHouse tables of a run."),
    "dashboard": ("infra.cli.dashboard:dashboard", "Show the live page of a run."),
    "top": ("infra.cli.top:top", "Show a run live at the terminal."),
    "chaos": ("infra.cli.chaos:chaos", "Kill a run's processes at random, then audit it."),
    "bench": ("infra.cli.bench:bench", "Measure, as ratios paired in one run."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; name the nearest one when there is none."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            told = f" Did you mean {near[0]}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{told}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"To begin: `sluice up`, then `sluice run examples/tiny.toml`. A run is named by {HOW}. "
    "Exit codes: 0 done, 1 tried and failed, 2 wrong use or settings, 3 the bus could not be "
    "reached. docs/command-line.md has the JSON of each command.",
)
@click.version_option(package_name=None, version=VERSION, prog_name="sluice")
def sluice() -> None:
    """Sluice trains language-model agents with reinforcement learning over Apache Kafka.

    The log is the truth: any process may be killed at any moment, and the topics alone prove that
    nothing was lost, invented or counted twice.
    """


def exit_code(error: SluiceError) -> int:
    """Return the documented exit code of an error."""
    match error:
        case SettingsError():
            return EXIT_WRONG_USE
        case BusUnreachableError():
            return EXIT_NO_BUS
        case _:
            return EXIT_FAILED


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; errors of ours become one message and a documented exit code."""
    try:
        sluice.main(args=arguments, prog_name="sluice", standalone_mode=True)
    except SluiceError as error:
        click.echo(f"sluice: {error}", err=True)
        sys.exit(exit_code(error))
