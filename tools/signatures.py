"""Records the signatures of a kernel library's functions from its unpacked source, without importing it.

    python tools/signatures.py plugins/backends/flash_attn/tests/signatures/flash_attn.json FOLDER VERSION

The file says which functions, and where they stand; FOLDER is the unpacked sdist or wheel. Only names, kinds and
defaults of parameters are kept.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any


def read_signature(source: str, name: str) -> list[dict[str, str]]:
    """The parameters of a function or method (``Class.method``), with the text of each default.

    Of several definitions the last one counts: those before it are overloads.
    """
    body: list[ast.stmt] = ast.parse(source).body
    *classes, function = name.split(".")
    for part in classes:
        found = [item for item in body if isinstance(item, ast.ClassDef) and item.name == part]
        if not found:
            raise LookupError(f"there is no class {part}")
        body = found[-1].body
    functions = [item for item in body if isinstance(item, ast.FunctionDef) and item.name == function]
    if not functions:
        raise LookupError(f"there is no function {name}")
    return _parameters(functions[-1].args)


def _parameters(arguments: ast.arguments) -> list[dict[str, str]]:
    positional = [(item, "positional_only") for item in arguments.posonlyargs]
    positional += [(item, "positional_or_keyword") for item in arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults += arguments.defaults
    listed = [_parameter(item.arg, kind, default) for (item, kind), default in zip(positional, defaults, strict=True)]
    if arguments.vararg is not None:
        listed.append(_parameter(arguments.vararg.arg, "var_positional", None))
    for item, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        listed.append(_parameter(item.arg, "keyword_only", default))
    if arguments.kwarg is not None:
        listed.append(_parameter(arguments.kwarg.arg, "var_keyword", None))
    return listed


def _parameter(name: str, kind: str, default: ast.expr | None) -> dict[str, str]:
    return {"name": name, "kind": kind} | ({} if default is None else {"default": ast.unparse(default)})


def record(target: Path, folder: Path, version: str) -> None:
    """Read every function that `target` names from `folder`, and write them back with the version."""
    known: dict[str, Any] = json.loads(target.read_text())
    known["version"] = version
    for function in known["functions"].values():
        function["parameters"] = read_signature((folder / function["file"]).read_text(), function["object"])
    lines = [
        f'    {json.dumps(name)}: {{"file": {json.dumps(item["file"])}, "object": {json.dumps(item["object"])}, '
        '"parameters": [\n'
        + ",\n".join(f"      {json.dumps(parameter)}" for parameter in item["parameters"])
        + "\n    ]}"
        for name, item in sorted(known["functions"].items())
    ]
    head = "".join(f"  {json.dumps(key)}: {json.dumps(known[key])},\n" for key in known if key != "functions")
    target.write_text(f'{{\n{head}  "functions": {{\n' + ",\n".join(lines) + "\n  }\n}\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
