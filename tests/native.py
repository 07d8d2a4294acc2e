"""Real kernel modules on a temporary path, some of them compiled, and a platform that imports them."""

from __future__ import annotations

import itertools
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardpoint import LiveMachine
from hardpoint._reasons import Provenance
from hardpoint._settings import Settings
from hardpoint.platforms import Platform

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from hardpoint._kernels import KernelModule, KernelOutcome, KernelReport
    from hardpoint._machine import Machine

REGISTRY = "hardpoint_test_registry"
MISSING_DEPENDENCY = "hardpoint_test_missing_dependency"
EXTENSION_SUFFIX: str = sysconfig.get_config_var("EXT_SUFFIX")
NO_INIT = "does not define module export function"
"""What CPython says of a library that exports no init function."""

_PRELUDE = """
#include <Python.h>
static PyObject *twice(PyObject *module, PyObject *number) {
    long value = PyLong_AsLong(number);
    return value == -1 && PyErr_Occurred() ? NULL : PyLong_FromLong(2 * value);
}
static PyMethodDef methods[] = {{"twice", twice, METH_O, NULL}, {NULL, NULL, 0, NULL}};
"""
_MODULE = """
static PyModuleDef_Slot slots[] = {{Py_mod_exec, start}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_ext", NULL, 0, methods, slots, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__ext(void) { return PyModuleDef_Init(&definition); }
"""


def _raising(error: str, text: str) -> str:
    start = f'static int start(PyObject *module) {{ PyErr_SetString({error}, "{text}"); return -1; }}'
    return _PRELUDE + start + _MODULE


SOURCES = {
    "working": _PRELUDE + "static int start(PyObject *module) { return 0; }" + _MODULE,
    "missing_symbol": _PRELUDE
    + "extern int hardpoint_test_no_such_symbol(void);"
    + "static int start(PyObject *module) { return hardpoint_test_no_such_symbol(); }"
    + _MODULE,
    "missing_dependency": _PRELUDE
    + f'static int start(PyObject *module) {{ return PyImport_ImportModule("{MISSING_DEPENDENCY}") ? 0 : -1; }}'
    + _MODULE,
    # Exports no init function: loading it is all there is to do.
    "registering": _PRELUDE
    + f"""
    __attribute__((constructor)) static void enter(void) {{
        PyGILState_STATE state = PyGILState_Ensure();
        PyObject *registry = PyImport_ImportModule("{REGISTRY}");
        PyObject *function = PyCFunction_New(&methods[0], NULL);
        if (!registry || !function || PyObject_SetAttrString(registry, "twice", function)) PyErr_Clear();
        Py_XDECREF(function);
        Py_XDECREF(registry);
        PyGILState_Release(state);
    }}
    """,
    "import_error": _raising("PyExc_ImportError", "built for another torch"),
    "os_error": _raising("PyExc_OSError", "the driver does not answer"),
    "zero_division": _raising("PyExc_ZeroDivisionError", "tiles per core"),
    "interrupted": _raising("PyExc_KeyboardInterrupt", ""),
}


@cache
def binary(kind: str) -> bytes:
    """The compiled module of that kind, as a file's content."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "ext.c"), Path(folder, "ext.so")
        source.write_text(SOURCES[kind], encoding="utf-8")
        compiler = str(sysconfig.get_config_var("CC") or "cc").split()
        lazy = ["-undefined", "dynamic_lookup"] if sysconfig.get_platform().startswith("macosx") else []
        include = sysconfig.get_path("include")
        command = [*compiler, "-shared", "-fPIC", "-O0", f"-I{include}", *lazy, str(source), "-o", str(target)]
        subprocess.run(command, check=True, capture_output=True)
        return target.read_bytes()


class Site:
    """A folder on the import path. Each package in it has a name of its own: no test meets another's modules."""

    _numbers = itertools.count()

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.syspath_prepend(str(folder))

    def package(self, init: str = "") -> Path:
        """A new package's folder."""
        package = self.folder / f"kernels_{next(self._numbers)}"
        package.mkdir()
        (package / "__init__.py").write_text(init, encoding="utf-8")
        return package

    def extension(self, content: bytes) -> tuple[str, Path]:
        """A native module with this content: its import name and file."""
        package = self.package()
        file = package / f"_ext{EXTENSION_SUFFIX}"
        file.write_bytes(content)
        return f"{package.name}._ext", file

    def module(self, source: str) -> str:
        """A module written in Python; its import name."""
        package = self.package()
        (package / "_ext.py").write_text(source, encoding="utf-8")
        return f"{package.name}._ext"


class KernelPlatform(Platform):
    """A platform of the machine that the tests run on, with the kernel modules it is given."""

    supported_dtypes = ("float32",)
    name = "testing"
    vendor = "Test"
    device_type = "cpu"
    dispatch_key = "CPU"

    def __init__(self, *modules: Any, strict: bool = False, machine: Machine | None = None) -> None:
        super().__init__(machine if machine is not None else LiveMachine(), ())
        self._modules = modules
        self._settings = Settings(strict=strict)
        self._provenance = Provenance(plugin="platform/testing", distribution="hardpoint-testing", version="1.2")

    def kernel_modules(self) -> Sequence[KernelModule]:
        return self._modules

    def backend_priorities(self, device_capability: object, config: object) -> Sequence[Any]:
        return ()

    def inspect(self) -> KernelReport:
        """Import while inspecting, as reports do."""
        return self._kernel_state.run(self, inspecting=True)


def outcomes(platform: KernelPlatform) -> list[KernelOutcome]:
    """What became of each module."""
    return [record.outcome for record in platform.import_kernels().modules]
