"""The commands, their options and their exit codes. What a command does is imported when it runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Json = Any  # what JSON can hold

EPILOG = (
    "Exit codes: 0 fine; 1 something asked for is not available; 2 wrong use; 3 a plugin has a bug. "
    "Plugins are looked at in a child process: one that crashes, hangs or exits is survived and named."
)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    try:
        code = main.main(args=list(arguments), prog_name="hardpoint", standalone_mode=False)
    except click.exceptions.Abort:
        sys.stderr.write("interrupted\n")
        return 130
    except click.ClickException as error:
        error.show()
        return 2
    return code if isinstance(code, int) else 0


def _view_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option("--json", "view", flag_value="json", help="JSON, by the published schema.")(command)
    command = click.option(
        "--markdown", "view", flag_value="markdown", help="Markdown for a bug report; nothing private in it."
    )(command)
    return click.option("--text", "view", flag_value="text", default="text", hidden=True)(command)


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hardpoint", prog_name="hardpoint")
def main() -> None:
    """Which platform, kernels and attention backends this machine gets from Hardpoint, and why not the others."""


@main.command()
@_view_options
@click.option("-v", "--verbose", is_flag=True, help="Show long values whole.")
def doctor(view: str, *, verbose: bool) -> int:
    """The whole picture: what is wrong and what to do, then machine, platforms, kernels, backends, plugins."""
    from hardpoint.cli._doctor import doctor

    return doctor(view, verbose=verbose)
