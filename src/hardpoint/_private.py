"""What of this computer must not get into a file that is passed on: who works on it, where, and with which secrets.

A part of the machine layer: it reads the environment, and nothing of what it finds is recorded.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Final, NamedTuple

from hardpoint._recording import is_secret_name

if TYPE_CHECKING:
    from collections.abc import Iterator

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/dev", "/proc", "/sys")
"""What every system has says nothing of whose it is."""
_ROOTS: Final = frozenset(
    (*_SYSTEM, "/opt", "/home", "/Users", "/tmp", "/var", "/var/tmp", "/run", "/mnt", "/srv", "/snap")  # noqa: S108  # compared
)
_COMMON: Final = frozenset(
    (
        *("root", "user", "users", "admin", "administrator", "ubuntu", "debian", "centos", "fedora", "ec2-user"),
        *("azureuser", "opc", "cloud-user", "runner", "jenkins", "gitlab-runner", "circleci", "nobody", "daemon"),
        *("default", "docker", "vscode", "jovyan", "app", "python", "test", "guest", "system", "localhost", "host"),
        *("cuda", "cpu", "gpu", "rocm", "neuron", "torch", "nvidia", "amd", "intel", "apple", "hardpoint", "linux"),
        *("node", "machine", "platform", "kernel", "home", "local", "main", "work", "data"),
    )
)
"""Names that say nothing of a person, and are words of other texts."""

_ENVIRONMENTS: Final = ("<venv>", "<python>")
_MIN_SECRET: Final = 6
_HARMLESS_VALUES: Final = frozenset(("default", "disabled", "enabled", "prompt", "always", "unless", "inherit"))


class Private(NamedTuple):
    """`folders`: what stands for each, by path; `temporary`: those whose folders inside are nobody's business either.

    `words`: names, with what stands for each; `secrets`: texts that are in variables whose name says so.
    """

    folders: dict[str, str]
    temporary: tuple[str, ...]
    words: dict[str, str]
    secrets: tuple[str, ...]


def private_facts() -> Private:
    """Look at this process's environment. Never raises for what it holds."""
    folders: dict[str, str] = {}
    for number, (path, placeholder) in enumerate(_folders()):
        for form in (path, os.path.realpath(path)) if path else ():
            inside = any(
                form.startswith(f"{known}{os.sep}") for known, shown in folders.items() if shown in _ENVIRONMENTS
            )
            # What is where in an environment is no secret.
            if _is_worth_hiding(form, placeholder) and not (inside and "{" in placeholder):
                folders.setdefault(form.rstrip("/\\"), placeholder.format(number))
    temporary = tuple(dict.fromkeys(path.rstrip("/\\") for path in _temporary()))
    words = {name: "<user>" for name in _users() if len(name) > 2 and name.lower() not in _COMMON}
    words |= {name: "<host>" for name in _hosts() if len(name) > 2 and name.lower() not in _COMMON}
    return Private(folders, temporary, words, tuple(_secrets()))


def _folders() -> Iterator[tuple[str, str]]:
    for name in ("HOME", "USERPROFILE"):
        yield os.environ.get(name, ""), "<home>"
    yield _home_of_record(), "<home>"
    if sys.prefix != sys.base_prefix:
        yield sys.prefix, "<venv>"
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        yield os.environ.get(name, ""), "<venv>"
    yield sys.base_prefix, "<python>"
    yield os.path.dirname(sys.executable or ""), "<python>"
    with contextlib.suppress(OSError):
        yield os.getcwd(), "<cwd>"
    entries: list[object] = [*sys.path]
    for entry in entries:
        if isinstance(entry, str) and os.path.isabs(entry):
            yield entry, "<path-{}>"
    for entry in os.environ.get("PATH", "").split(os.pathsep):
        if os.path.isabs(entry):
            yield entry, "<bin-{}>"


def _is_worth_hiding(path: str, placeholder: str) -> bool:
    path = os.path.normpath(path) if path else ""
    if not os.path.isabs(path) or path in _ROOTS or not path.strip("/\\"):
        return False
    # Where vendors put their tools is worth knowing.
    system = (*_SYSTEM, "/opt") if placeholder.startswith("<bin") else _SYSTEM
    return not path.startswith(tuple(f"{root}/" for root in system))


def _temporary() -> Iterator[str]:
    for name in ("TMPDIR", "TEMP", "TMP"):
        path = os.environ.get(name, "")
        if os.path.isabs(path) and len(path) > 1:
            yield path
            yield os.path.realpath(path)
    yield tempfile.gettempdir()
    yield from ("/tmp", "/var/tmp", "/private/tmp")  # noqa: S108  # compared, not used


def _home_of_record() -> str:
    entry = _account()
    return "" if entry is None else entry[1]


def _account() -> tuple[str, str] | None:
    try:
        import pwd

        entry = pwd.getpwuid(os.getuid())
    except (ImportError, KeyError, OSError):
        # Windows; a container whose user nobody has listed.
        return None
    return entry.pw_name, entry.pw_dir


def _users() -> Iterator[str]:
    for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER"):
        yield os.environ.get(name, "")
    entry = _account()
    if entry is not None:
        yield entry[0]
    for name in ("HOME", "USERPROFILE"):
        folder, _, user = os.environ.get(name, "").rstrip("/\\").replace("\\", "/").rpartition("/")
        if folder.endswith(("/home", "/Users")):
            yield user


def _hosts() -> Iterator[str]:
    names = [os.environ.get("HOSTNAME", ""), os.environ.get("COMPUTERNAME", "")]
    if hasattr(os, "uname"):
        names.append(os.uname().nodename)
    for name in names:
        yield name
        yield name.partition(".")[0]


def _secrets() -> Iterator[str]:
    for name, value in list(os.environ.items()):
        text = value.strip()
        if not is_secret_name(name) or len(text) < _MIN_SECRET or text.lower() in _HARMLESS_VALUES:
            continue
        # A path or a number is no secret, whatever its variable is called.
        if not text.isdigit() and not os.path.isabs(text):
            yield text
