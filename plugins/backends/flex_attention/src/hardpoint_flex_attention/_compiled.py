"""The compiled function of a family. Nothing here falls back to an eager run: what cannot be compiled is a failure."""

from __future__ import annotations

import errno
import threading
import traceback
import warnings
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.errors import EnvironmentFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn.attention.flex_attention import FlexKernelOptions

    from hardpoint_flex_attention._family import Family, Inputs


class Compiled(NamedTuple):
    """What `torch.compile` returned, and the code that it compiled."""

    function: Callable[..., Any]  # Any: torch's compiled functions are untyped
    code: CodeType

    def is_there(self) -> bool:
        """Whether the compilation still is: `torch._dynamo.reset()`, which engines and tests call, forgets all of them.

        torch would compile anew from the step at hand, whose sizes say nothing about what is constant.
        """
        from torch._dynamo.eval_frame import _debug_get_cache_entry_list

        return bool(_debug_get_cache_entry_list(self.code))


class Modes(NamedTuple):
    """What of the process torch compiles in besides: in another it would compile anew, from the step at hand."""

    default_dtype: torch.dtype
    deterministic: bool
    warns_only: bool

    @classmethod
    def now(cls) -> Modes:
        """Those that are set."""
        return cls(
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )


_known: dict[tuple[Family, Modes], Compiled] = {}
_lock = threading.Lock()
_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR})
_REMEDY = (
    "install a C++ compiler (g++), and let torch compile: TORCHINDUCTOR_CACHE_DIR writable, TORCHDYNAMO_DISABLE unset"
)


def call(family: Family, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Result ``(tiles, kv heads, rows, v_head_size)`` and, where the kernel has it, lse ``(tiles, kv heads, rows)``.

    Compiles at the first call for the family. Errors: `EnvironmentFailure` with code ``compiler`` or ``permission``
    where that cannot be done on this machine.
    """
    found = _known.get((family, Modes.now()))
    # Nor are these the caller's: each would compile anew.
    with torch.inference_mode(mode=False), torch.no_grad(), torch.autocast(family.device_type, enabled=False):
        if found is None or not found.is_there():
            found = _compile(family, inputs.query.device)
        return _guarded(found.function, *inputs)  # type: ignore[no-any-return]  # as `_function` says


def smallest(family: Family, device: torch.device) -> Inputs:
    """`Family.smallest`. Errors: `EnvironmentFailure`: torch's compiler is imported there, and opens its cache."""
    with torch.inference_mode(mode=False):
        inputs: Inputs = _guarded(family.smallest, device)
    return inputs


def _compile(family: Family, device: torch.device) -> Compiled:
    key = family, Modes.now()
    with _lock:
        found = _known.get(key)
        if found is None or not found.is_there():
            with warnings.catch_warnings():
                # The compiler's own deprecations; where warnings are errors, nothing would compile.
                warnings.simplefilter("ignore")
                function = _new_function(family)
                found = Compiled(_guarded(_compiler, function), function.__code__)
                _guarded(found.function, *smallest(family, device))
            _known[key] = found
        return found


def _compiler(function: FunctionType) -> Callable[..., Any]:  # Any: torch's compiled functions are untyped
    compiled: Callable[..., Any] = torch.compile(function, dynamic=True, fullgraph=True)
    return compiled


def _guarded(function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401  # Any: as above
    try:
        return function(*arguments)
    except Exception as error:
        # The compiler's boundary: torch wraps whatever happened there in errors of its own.
        failure = _as_failure(error)
        if failure is None:
            raise
        raise failure from error


def _as_failure(error: Exception) -> EnvironmentFailure | None:
    """What the machine is to blame for, as such; None: anything else."""
    if isinstance(error, EnvironmentFailure):
        return None
    if isinstance(error, (OSError, ImportError)):
        # Before torch's own exceptions are asked for, whose module may be what cannot be imported.
        return _failure(error)
    from torch._dynamo.exc import BackendCompilerFailed, InternalTorchDynamoError
    from torch._inductor.exc import InductorError

    if isinstance(error, (BackendCompilerFailed, InductorError)):
        inner = getattr(error, "inner_exception", None)
        return _failure(inner if isinstance(inner, BaseException) else error)
    if isinstance(error, RuntimeError) and "torch.compile is not supported" in str(error):
        # What torch says on a Python that it does not know yet.
        return EnvironmentFailure(f"torch {torch.__version__}: {error}", code="compiler", remedy=_REMEDY)
    return _failure(error) if isinstance(error, InternalTorchDynamoError) else None


def _failure(error: BaseException) -> EnvironmentFailure:
    closed = isinstance(error, OSError) and error.errno in _NOT_ALLOWED
    # What torch was lowering says nothing to an operator.
    text = str(error).partition("\n  target: ")[0].strip()
    if not text or text.endswith("Error:"):
        text = f"{text or 'it'} raised {_place(error)}"
    if len(lines := text.splitlines()) > 12:
        # A C++ compiler's complaint may be long, and begins with what matters.
        text = "\n".join([*lines[:12], f"… {len(lines) - 12} more lines"])
    return EnvironmentFailure(
        f"flex_attention cannot be compiled here: {type(error).__name__}: {text}",
        code="permission" if closed else "compiler",
        remedy=_REMEDY,
    )


def _place(error: BaseException) -> str:
    """Where an error without words was raised: an assertion's own line is what it has to say."""
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    frames = traceback.extract_tb(error.__traceback__)
    return f"in {frames[-1].filename}, line {frames[-1].lineno}: {frames[-1].line}" if frames else "without a word"


def _new_function(family: Family) -> FunctionType:
    """The function to compile, with a code object of its own: torch counts recompilations by code object."""
    function = _function(family)
    code = function.__code__.replace(co_name=f"flex_attention_{len(_known)}")
    return FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)


def _function(family: Family) -> FunctionType:
    from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

    block, group, rows = family.block, family.group_size, family.rows
    with_lse, capped, alibi = family.with_lse, family.capped, family.alibi
    options: FlexKernelOptions = {}
    if family.device_type != "cpu":
        # The tiles must divide the blocks, and grouped heads are rows already.
        options = {"BACKEND": "TRITON", "BLOCK_M": rows & -rows, "BLOCK_N": min(64, block & -block)}

    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        partial_num: torch.Tensor,
        partial_blocks: torch.Tensor,
        full_num: torch.Tensor,
        full_blocks: torch.Tensor,
        tiles: torch.Tensor,
        base: torch.Tensor,
        slopes: torch.Tensor,
        parameters: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not torch.compiler.is_compiling():
            # Python runs this body only where torch.compile does not compile.
            raise EnvironmentFailure(
                "torch.compile is disabled in this process: flex_attention would run eagerly, over whole matrices",
                code="compiler",
                remedy="unset TORCHDYNAMO_DISABLE and TORCH_COMPILE_DISABLE",
            )

        def position(tile: torch.Tensor, key_index: torch.Tensor) -> torch.Tensor:
            return base[tiles[0, tile] + key_index // block] + key_index % block

        def seen(
            tile: torch.Tensor,
            head: torch.Tensor,  # noqa: ARG001  # torch's signature
            query_index: torch.Tensor,
            key_index: torch.Tensor,
        ) -> torch.Tensor:
            here, there = tiles[1, tile] + query_index // group, position(tile, key_index)
            return (there <= here + tiles[2, tile]) & (there > here - tiles[3, tile]) & (there < tiles[4, tile])

        def score(
            logit: torch.Tensor,
            tile: torch.Tensor,
            head: torch.Tensor,
            query_index: torch.Tensor,
            key_index: torch.Tensor,
        ) -> torch.Tensor:
            logit = logit * parameters[0]
            if capped:
                logit = parameters[1] * torch.tanh(logit / parameters[1])
            if alibi:
                distance = position(tile, key_index) - tiles[1, tile] - query_index // group
                logit = logit + slopes[head * group + query_index % group] * distance
            return logit

        mask = BlockMask.from_kv_blocks(
            partial_num,
            partial_blocks,
            full_num,
            full_blocks,
            (rows, block),
            seen,
            seq_lengths=(rows, key.shape[2]),
            compute_q_blocks=False,
        )
        if with_lse:
            out, aux = flex_attention(
                query,
                key,
                value,
                score_mod=score,
                block_mask=mask,
                scale=1.0,
                kernel_options=options,
                return_aux=AuxRequest(lse=True),
            )
            return out, aux.lse
        return flex_attention(query, key, value, score_mod=score, block_mask=mask, scale=1.0), None

    return attend  # type: ignore[return-value]  # a def is a FunctionType
