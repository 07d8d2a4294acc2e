"""Tests of a kernel library's fake: as far as signatures go it is the real package, and what layers call binds to them.

A plugin's test file subclasses `Signatures` as ``class TestSignatures(Signatures)``.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, ClassVar

import pytest

from tests.kernel_library import Recorded, check_calls, libraries

if TYPE_CHECKING:
    from pathlib import Path


class Signatures:
    """`folder` is the plugin's folder of tests, `fake` the file of kernels in it."""

    folder: ClassVar[Path]
    fake: ClassVar[str]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test per recorded file."""
        if "file" in metafunc.fixturenames:
            files = sorted((self.folder / "signatures").glob("*.json"))
            assert files
            metafunc.parametrize("file", files, ids=lambda file: file.stem)

    def test_a_file_says_of_which_version_it_is_and_how_it_was_made(self, file: Path) -> None:
        """Without these a signature cannot be checked again."""
        recorded = Recorded.read(file)
        assert recorded.version
        assert "tools/signatures.py" in recorded.made
        assert all(recorded.functions.values())

    @pytest.mark.torch
    def test_the_fake_functions_have_the_recorded_signatures(self, tmp_path: Path, file: Path) -> None:
        """Names, kinds and defaults of every parameter; so a call that the real package refuses fails here too."""
        with libraries(tmp_path, (file, self.folder / self.fake)) as (library,):
            for name, listed in library.recorded.functions.items():
                module, _, path = name.partition(":")
                found: object = importlib.import_module(module)
                for part in path.split("."):
                    found = inspect.getattr_static(found, part)
                found = found.__func__ if isinstance(found, classmethod) else found
                assert callable(found)
                parameters = inspect.signature(found).parameters.values()
                assert [item.name for item in parameters] == [item["name"] for item in listed]
                assert [item.kind.name.lower() for item in parameters] == [item["kind"] for item in listed]
                assert [item.default is not item.empty for item in parameters] == ["default" in item for item in listed]

    @pytest.mark.torch
    def test_a_call_that_does_not_bind_is_noticed(self, tmp_path: Path, file: Path) -> None:
        """The check itself: an argument that no version has."""
        with libraries(tmp_path, (file, self.folder / self.fake)) as (library,):
            name = next(iter(library.recorded.functions))
            library.calls.append((name, {"no_such_argument": 1}))
            with pytest.raises(TypeError, match=r"no_such_argument|missing"):
                check_calls(library)
