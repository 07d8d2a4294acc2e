"""``hardpoint completion``: the script that teaches a shell to complete the commands."""

from __future__ import annotations

import os

import click
from click.shell_completion import get_completion_class

_HOW = {
    "bash": 'eval "$(hardpoint completion bash)"',
    "zsh": 'eval "$(hardpoint completion zsh)"',
    "fish": "hardpoint completion fish | source",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_HOW)), required=False)
def completion(shell: str | None) -> int:
    """Print the completion script of a shell (default: the one that SHELL names).

    In the shell's start-up file:  eval "$(hardpoint completion bash)"
    """
    from hardpoint.cli._commands import cli

    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    found = get_completion_class(name) if name in _HOW else None
    if found is None:
        raise click.UsageError(f"which shell? Known are {', '.join(_HOW)}")
    click.echo(found(cli, {}, "hardpoint", "_HARDPOINT_COMPLETE").source())
    return 0
