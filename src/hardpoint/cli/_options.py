"""Options that several commands have, and what follows from them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from hardpoint.cli._complete import complete_platforms, complete_profiles
from hardpoint.cli._question import LIVE, Source

if TYPE_CHECKING:
    from collections.abc import Callable

_Command = Any  # what click's decorators take and return


_NAME: Final = re.compile(r"(?i)[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
"""What a distribution may be called, by PEP 508."""


class Look(NamedTuple):
    """How to look, and at what: the options that every command has."""

    view: str
    source: Source
    platform: str | None
    depth: str

    @property
    def no_views(self) -> dict[str, str] | None:
        """For `show`: a snapshot's report is shown, of which no such view was made."""
        return None if self.source.recorded is None else {}


def common_options(*, depth: bool = True) -> Callable[[_Command], _Command]:
    """The view, the machine, the platform and (`depth`) how deep to look. The command gets them as `Look`."""

    def decorate(function: _Command) -> _Command:
        from functools import wraps

        @wraps(function)
        def command(**given: Any) -> int:  # noqa: ANN401  # as click hands them over
            given_depth: str | None = given.pop("depth", None)
            look = Look(
                view=_view(given.pop("as_json"), given.pop("as_markdown")),
                source=_source(
                    given.pop("snapshot"), given.pop("recompute"), given.pop("simulate"), given.pop("packages")
                ),
                platform=given.pop("platform"),
                depth=given_depth or "loaded",
            )
            if look.source.recorded is not None and (look.platform or given_depth or given.get("backend")):
                raise click.UsageError("--platform, --backend and --depth decide anew: add --recompute to --snapshot")
            result: int = function(look, **given)
            return result

        options = [
            click.option("--json", "as_json", is_flag=True, help="JSON, as its published schema describes it."),
            click.option(
                "--markdown", "as_markdown", is_flag=True, help="Markdown for a bug report, without anything private."
            ),
            click.option(
                "--simulate",
                metavar="PROFILES",
                help="A simulated machine: h100, h100:8, h100:8,a100.",
                shell_complete=complete_profiles,
            ),
            click.option(
                "--with",
                "packages",
                multiple=True,
                metavar="NAME==VERSION",
                help="With --simulate: a package that is installed there. Repeatable.",
            ),
            click.option(
                "--snapshot",
                metavar="FILE",
                type=click.Path(dir_okay=False),
                help="A machine recorded by hardpoint snapshot, as recorded.",
            ),
            click.option(
                "--recompute",
                is_flag=True,
                help="With --snapshot: decide anew, with the plugins installed here, and list what changes.",
            ),
            click.option(
                "--platform",
                metavar="NAMES",
                help="The platform to take, or several in order of preference.",
                shell_complete=complete_platforms,
            ),
        ]
        if depth:
            options.append(
                click.option(
                    "--depth",
                    type=click.Choice(["static", "loaded", "ready"]),
                    help="How deep to look (default: loaded).",
                )
            )
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _view(as_json: bool, as_markdown: bool) -> str:  # noqa: FBT001  # two flags
    if as_json and as_markdown:
        raise click.UsageError("--json and --markdown: one of them")
    return "json" if as_json else "markdown" if as_markdown else "text"


def _source(snapshot: str | None, recompute: bool, simulate: str | None, packages: tuple[str, ...]) -> Source:  # noqa: FBT001  # as click hands it over
    if snapshot is not None and simulate is not None:
        raise click.UsageError("--snapshot and --simulate: one of them")
    if packages and simulate is None:
        raise click.UsageError("--with says what is installed on a simulated machine: add --simulate")
    if recompute and snapshot is None:
        raise click.UsageError("--recompute decides anew about a recorded machine: add --snapshot")
    if simulate is not None:
        distributions = dict(_package(text) for text in packages)
        added = f" with {', '.join(packages)}" if packages else ""
        machine = {"kind": "simulated", "profiles": simulate, "distributions": distributions}
        return Source("simulated", f"Simulated machine: {simulate}{added}", machine)
    if snapshot is not None:
        from hardpoint.cli._recorded import snapshot_source

        return snapshot_source(snapshot, recompute=recompute)
    return LIVE


def _package(text: str) -> tuple[str, str | None]:
    name, separator, version = (part.strip() for part in text.partition("=="))
    is_left_out = not separator and name.endswith("-")
    name = name[:-1].strip() if is_left_out else name
    if not _NAME.fullmatch(name):
        raise click.BadParameter(
            f"{text!r}: expected NAME==VERSION, or NAME- for one that is not installed", param_hint="--with"
        )
    if is_left_out:
        return name, None
    if not version:
        raise click.BadParameter(f"{text!r}: a version is needed, such as {name}==1.0", param_hint="--with")
    from packaging.version import InvalidVersion, Version

    try:
        Version(version)
    except InvalidVersion:
        raise click.BadParameter(f"{text!r}: {version!r} is no version", param_hint="--with") from None
    return name, version
