"""What Triton raises where a machine cannot compile or launch, as the environment failures that they are.

Triton finds its assembler, a C compiler for its launcher, its driver and its cache directory at the first launch, and
says what is missing in exceptions of many types.
"""

from __future__ import annotations

import errno
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from triton.compiler.errors import CompilationError  # noqa: TID253  # imported only with a chosen backend
from triton.runtime.errors import OutOfResources, PTXASError  # noqa: TID253  # as above

from hardpoint.errors import EnvironmentFailure, HardpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR})
_NO_DRIVER = "a GPU that Triton has a driver for, or TRITON_INTERPRET=1 to run its interpreter"
_COMPILER = "install a C compiler with Python's headers, or set CC"
_CACHE = "set TRITON_CACHE_DIR to a directory that can be written"


@contextmanager
def as_environment_failures(what: str) -> Iterator[None]:
    """Convert what the body raises; bugs, and errors of ours, pass. `what` was being done: ``compile …``."""
    try:
        yield
    except HardpointError:
        raise
    except (CompilationError, OutOfResources, PTXASError) as error:
        raise EnvironmentFailure(f"Triton cannot {what}: {error}", code="compiler") from error
    except subprocess.CalledProcessError as error:
        raise EnvironmentFailure(
            f"Triton cannot {what}: its launcher does not compile: {error}", code="compiler", remedy=_COMPILER
        ) from error
    except OSError as error:
        raise _of_system(error, what) from error
    except RuntimeError as error:
        if isinstance(error, RecursionError):
            raise
        raise _of_runtime(error, what) from error
    except Exception as error:
        # Triton 3.4 says with no type of its own that AMD's linker is not there; what has a type is a bug.
        if type(error) is not Exception:
            raise
        raise EnvironmentFailure(f"Triton cannot {what}: {error}", code="compiler") from error


def _of_system(error: OSError, what: str) -> EnvironmentFailure:
    if error.errno in _NOT_ALLOWED:
        return EnvironmentFailure(f"Triton cannot {what}: {error}", code="permission", remedy=_CACHE)
    if isinstance(error, FileNotFoundError):
        # It makes its own folders: what is not there is a tool that it was told to use.
        return EnvironmentFailure(f"Triton cannot {what}: {error}", code="compiler", remedy=_COMPILER)
    return EnvironmentFailure(f"Triton cannot {what}: {error}", code="other", remedy=_CACHE)


def _of_runtime(error: RuntimeError, what: str) -> EnvironmentFailure:
    text = str(error)
    message = f"Triton cannot {what}: {text}"
    if "active driver" in text:
        return EnvironmentFailure(message, code="driver", remedy=_NO_DRIVER)
    if "home directory" in text:
        return EnvironmentFailure(message, code="permission", remedy=_CACHE)
    if any(sign in text for sign in ("compiler", "ptxas", "PassManager")):
        return EnvironmentFailure(message, code="compiler", remedy=_COMPILER if "compiler" in text else None)
    # A driver's own words: no kernel image, an error of CUDA or HIP.
    return EnvironmentFailure(message, code="driver")
