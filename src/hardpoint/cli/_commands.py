"""The commands' names, and how a command line is run. A command's own module is imported when it is needed."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS: Final = {
    "doctor": ("_doctor", "The whole picture, what is wrong and what to do about it."),
    "platforms": ("_doctor", "The platforms: installed ones, and what became of each."),
    "backends": ("_doctor", "The backends: installed ones, and what became of each."),
    "select": ("_select", "The backend for a layer or a model, and why not the others."),
    "matrix": ("_matrix", "Devices by layers: which backend each gets."),
    "snapshot": ("_snapshot", "Record this machine in a file that shows it elsewhere."),
    "settings": ("_settings", "Every variable: its value and where that comes from."),
    "completion": ("_completion", "The script that teaches a shell to complete."),
}
"""Each command's module, and its line in the list: so that ``--help`` imports none of them."""

EPILOG: Final = "Exit codes: 0 fine; 1 something asked for is not available; 2 wrong use; 3 a plugin has a bug."


class _LateGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"hardpoint.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            from hardpoint._names import near_miss

            close = near_miss(args[0], COMMANDS)
            guess = f" Did you mean {close!r}?" if close else f" Known are {', '.join(COMMANDS)}."
            ctx.fail(f"there is no command {args[0]!r}.{guess}")
        return super().resolve_command(ctx, args)


def _show_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: ARG001, FBT001  # click's
    if value and not ctx.resilient_parsing:
        from hardpoint import __version__

        click.echo(f"hardpoint {__version__}")
        ctx.exit()


@click.group(cls=_LateGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="The version.")
def cli() -> None:
    """Which platform, kernels and attention backends a machine gets, and why not the others.

    Every command takes --json and --markdown, and looks at another machine with --simulate or --snapshot.
    """


def run(arguments: Sequence[str], program: str = "hardpoint") -> int:
    """Run a command line and return its exit code."""
    try:
        code: Any = cli.main(args=list(arguments), prog_name=program, standalone_mode=False)
    except click.exceptions.Abort:
        sys.stderr.write("interrupted\n")
        return 130
    except click.ClickException as error:
        if "--json" in arguments:
            from hardpoint.cli._ask import AskError
            from hardpoint.cli._view import show_error

            # Whoever reads JSON gets it whatever the other options are.
            return show_error("json", AskError(error.format_message(), type(error).__name__), 2)
        error.show()
        return 2
    return code if isinstance(code, int) else 0
