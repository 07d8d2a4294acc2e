"""Kernel libraries that are not installed here: real distributions on a temporary path, with the recorded signatures.

A library's functions are made from its signature file, so a call that the real one would not take is a `TypeError`
here too. What they compute stands in a module of *kernels* beside the tests, which is copied to the path.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hardpoint
from tests.distributions import add

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

KINDS = {
    "positional_only": inspect.Parameter.POSITIONAL_ONLY,
    "positional_or_keyword": inspect.Parameter.POSITIONAL_OR_KEYWORD,
    "var_positional": inspect.Parameter.VAR_POSITIONAL,
    "keyword_only": inspect.Parameter.KEYWORD_ONLY,
    "var_keyword": inspect.Parameter.VAR_KEYWORD,
}


@dataclass(frozen=True)
class Recorded:
    """A signature file: the distribution and, by ``module:function``, the parameters of its functions."""

    distribution: str
    version: str
    made: str
    functions: Mapping[str, Sequence[Mapping[str, str]]]

    @classmethod
    def read(cls, path: Path) -> Recorded:
        text = json.loads(path.read_text())
        functions = {name: item["parameters"] for name, item in text["functions"].items()}
        return cls(text["distribution"], text["version"], text["made"], functions)

    def signature(self, name: str) -> inspect.Signature:
        """Of one function; defaults are their texts."""
        return inspect.Signature(
            [
                inspect.Parameter(
                    item["name"], KINDS[item["kind"]], default=item.get("default", inspect.Parameter.empty)
                )
                for item in self.functions[name]
            ]
        )


def _parameters(listed: Sequence[Mapping[str, str]]) -> str:
    parts, star = [], False
    for item in listed:
        kind, name = item["kind"], item["name"]
        if kind == "keyword_only" and not star:
            parts.append("*")
            star = True
        if kind == "var_positional":
            star = True
        prefix = {"var_positional": "*", "var_keyword": "**"}.get(kind, "")
        parts.append(prefix + name + (f"={item['default']}" if "default" in item else ""))
    return ", ".join(parts)


def _module(recorded: Recorded, module: str, kernels: str) -> str:
    lines = ["import torch", f"import {kernels} as kernels", ""]
    classes: dict[str, list[str]] = {}
    for name, listed in recorded.functions.items():
        where, _, function = name.partition(":")
        if where != module:
            continue
        body = f"return kernels.call({name!r}, dict(locals()))"
        owner, _, method = function.rpartition(".")
        if owner:
            marker = "    @classmethod\n" if listed[0]["name"] == "cls" else ""
            classes.setdefault(owner, []).append(f"{marker}    def {method}({_parameters(listed)}):\n        {body}")
        else:
            lines.append(f"def {function}({_parameters(listed)}):\n    {body}\n")
    lines += [f"class {owner}:\n" + "\n".join(methods) + "\n" for owner, methods in classes.items()]
    return "\n".join(lines)


class Library:
    """A library on the path. `calls` are the names and arguments of all calls so far."""

    def __init__(self, site: Path, recorded: Recorded, kernels: Path, version: str | None = None) -> None:
        self.site = site
        self.recorded = recorded
        self.version = version or recorded.version
        folder = f"{recorded.distribution.replace('-', '_')}-{self.version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {recorded.distribution}\nVersion: {self.version}\n\n"
        add(site, folder, None, metadata=metadata)
        (site / kernels.name).write_text(kernels.read_text())
        self._kernels = kernels.stem
        modules = sorted({name.partition(":")[0] for name in recorded.functions})
        for module in modules:
            path = site.joinpath(*module.split("."))
            path.mkdir(parents=True, exist_ok=True)
            for parent in (path, *path.parents):
                if parent == site:
                    break
                if not (parent / "__init__.py").exists():
                    (parent / "__init__.py").write_text("")
            (path / "__init__.py").write_text(_module(recorded, module, kernels.stem))

    @property
    def kernels(self) -> Any:
        """The module of kernels, as the library sees it."""
        return importlib.import_module(self._kernels)

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        found: list[tuple[str, dict[str, Any]]] = self.kernels.CALLS
        return found


def check_calls(library: Library) -> None:
    """Every call so far binds to the recorded signature of its function, by the arguments' names alone."""
    for name, arguments in library.calls:
        signature = library.recorded.signature(name)
        given = {item: value for item, value in arguments.items() if item not in ("self", "cls")}
        kinds = {item.name: item.kind for item in signature.parameters.values()}
        owner = (None,) if next(iter(kinds)) in ("self", "cls") else ()
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        signature.bind(*owner, **{item: value for item, value in given.items() if kinds.get(item) not in variable})


@contextmanager
def libraries(site: Path, *added: tuple[Path, Path]) -> Iterator[list[Library]]:
    """Put libraries (signature file, file of kernels) on the path, and take them and their modules off again."""
    sys.path.insert(0, str(site))
    hardpoint.reset()
    try:
        yield [Library(site, Recorded.read(signatures), kernels) for signatures, kernels in added]
    finally:
        sys.path.remove(str(site))
        forget(site)
        hardpoint.reset()


def forget(site: Path) -> None:
    """Drop every module that came from `site`: the next test has another library of that name there."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(site)):
            del sys.modules[name]
    importlib.invalidate_caches()
