"""``hardpoint select``: which backend an engine would get for a layer or a model, and why not the others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click

from hardpoint._settings import KINDS
from hardpoint.attention import AttentionConfig, AttentionType
from hardpoint.attention._config import FIELD_NAMES
from hardpoint.cli import _show
from hardpoint.cli._ask import AskError
from hardpoint.cli._complete import complete_backends
from hardpoint.cli._document import Hint, Paragraph
from hardpoint.cli._options import Look, common_options
from hardpoint.cli._question import NOT_AVAILABLE, SELECTING, envelope, examine, exit_code_of
from hardpoint.cli._view import show
from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hardpoint.cli._document import Block
    from hardpoint.cli._question import Source

    Json = Any  # what JSON can hold

_MAX_MODEL_BYTES: Final = 16 << 20
_CHOICES: Final = {"kind": list(KINDS), "attention_type": list(map(str, AttentionType))}
_TYPES: Final = {"str": str, "int": int, "bool": bool, "float": float}
_HELP: Final = {
    "kind": "Of the operation.",
    "head_size": "Elements per head of query and key.",
    "v_head_size": "Elements per head of the value (default: the head size).",
    "num_heads": "Query heads of this rank.",
    "num_kv_heads": "Key and value heads (default: as many as query heads).",
    "dtype": "Of query, key, value and result (default: what the platform prefers).",
    "kv_cache_dtype": "Storage of the cache; auto: the dtype.",
    "block_size": "Tokens per cache block (default: the backend chooses).",
    "attention_type": "Who attends to whom.",
    "causal": "A token sees itself and what is before it (default: exactly for decoders).",
    "sliding_window": "Positions that a token sees, itself included.",
    "sinks": "One extra logit per head in the softmax's denominator.",
    "alibi": "Linear position bias.",
    "soft_cap": "Of the logits, by tanh.",
    "kv_sharing": "The layer reads another layer's cache.",
    "batch_invariant": "A result may not depend on what else is in the batch.",
    "max_model_len": "Longest sequence, in tokens.",
    "kv_lora_rank": "Latent form: elements of the latent.",
    "qk_rope_head_dim": "Latent form: elements of its rotary part.",
    "qk_nope_head_dim": "Latent form: of a head's part without rotary embedding.",
}


def config_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """An option for every field of `AttentionConfig`, made from the dataclass: a field that joins has one too."""
    for name in reversed(FIELD_NAMES):
        stated = str(AttentionConfig.__annotations__[name]).partition(" ")[0]
        flag = f"--{name.replace('_', '-')}"
        help_text = _HELP.get(name)
        if stated == "bool":
            option = click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=help_text)
        else:
            kind = click.Choice(_CHOICES[name]) if name in _CHOICES else _TYPES.get(stated, str)
            option = click.option(flag, name, type=kind, default=None, help=help_text)
        function = option(function)
    return function


def layer_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`config_options`, and a model's configuration."""
    function = config_options(function)
    function = click.option(
        "--tensor-parallel", type=click.IntRange(min=1), default=1, help="With --model: ranks that share the heads."
    )(function)
    return click.option(
        "--model",
        type=click.Path(exists=True, dir_okay=False),
        metavar="CONFIG.JSON",
        help="A Hugging Face model configuration: every kind of layer in it. Options of fields override it.",
    )(function)


@click.command()
@common_options()
@layer_options
@click.option(
    "--backend",
    metavar="NAMES",
    shell_complete=complete_backends,
    help="The backend to take, or several in order of preference; a last 'auto' opens the automatic order.",
)
def select(look: Look, *, model: str | None, tensor_parallel: int, backend: str | None, **fields: Any) -> int:  # noqa: ANN401  # a config's fields
    """Which backend an engine would get, and every candidate with every reason.

    The layer is described by options, one per field of an AttentionConfig, or by a model's config.json.
    """
    configs, notes = read_configs(model, tensor_parallel, fields)
    return show(
        look.view,
        "Hardpoint select",
        lambda: select_data(look, configs, notes, backend),
        select_blocks,
        recorded=look.no_views,
    )


def read_configs(
    model: str | None, tensor_parallel: int, fields: Mapping[str, Json]
) -> tuple[list[dict[str, Json]], list[str]]:
    """The configs that the options ask for, with labels, and a model's notes. Errors: click's, for wrong use."""
    given = {name: value for name, value in fields.items() if value is not None}
    configs: list[dict[str, Json]] = [{"label": "The layer", "fields": given}]
    notes: list[str] = []
    try:
        if model is not None:
            from hardpoint.cli._model import read_model

            # Of the layers that have a cache.
            block_size = given.pop("block_size", None)
            found = read_model(_read_json(model), tensor_parallel=tensor_parallel, block_size=block_size)
            configs = [{"label": label, "fields": {**own, **given}} for label, own in found.layers]
            notes += found.notes
        elif missing := [name for name in ("head_size", "num_heads") if name not in given]:
            named = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
            raise click.UsageError(f"a layer needs {named}; or give --model CONFIG.JSON")
        for config in configs:
            asked = {name: value for name, value in config["fields"].items() if value is not None}
            # Checked here, where a mistake is one of use; the dtype may be left to the platform.
            AttentionConfig(**{"dtype": "float32", **asked})
    except ConfigError as error:
        raise click.UsageError(
            f"{model}: {error}" if model is not None and error.field not in given else str(error)
        ) from None
    return configs, notes


def _read_json(path: str) -> Json:
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_MODEL_BYTES + 1)
    except OSError as error:
        raise click.UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(content) > _MAX_MODEL_BYTES:
        raise click.UsageError(f"{path} is longer than {_MAX_MODEL_BYTES >> 20} MiB, which no model's configuration is")
    if not content.strip():
        raise click.UsageError(f"{path} is empty; expected a model's config.json")
    try:
        # Of bytes it finds out the encoding, and takes a byte order mark.
        return json.loads(content)
    except RecursionError:
        raise click.UsageError(f"{path} cannot be read as JSON: it is nested too deeply") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"{path} is no text; expected a model's config.json, not its weights") from None
    except json.JSONDecodeError as error:
        is_cut = not error.doc[error.pos :].strip() or error.msg.startswith("Unterminated string")
        what = "it ends too early, as a file that was copied in part" if is_cut else str(error)
        raise click.UsageError(f"{path} cannot be read as JSON: {what}") from None


def select_data(look: Look, configs: list[dict[str, Json]], notes: list[str], backend: str | None) -> dict[str, Json]:
    """A selection for each config, in order."""
    if look.source.recorded is not None:
        look = look._replace(source=only_recorded(look.source, configs))
    found = examine(
        look.source, parts=SELECTING, configs=configs, depth=look.depth, platform=look.platform, backend=backend
    )
    report = found.report
    code = exit_code_of(report)
    strict = report["settings"].get("strict") is True
    lost = [item for item in report["selections"] if item["is_fallback"]]
    if code == 0 and strict and lost:
        code = NOT_AVAILABLE
    return envelope(
        "select",
        2,
        look.source,
        code,
        changes=found.changes,
        uncompared=found.uncompared,
        strict=strict,
        hints=report["hints"],
        bugs=report["bugs"],
        machine=report["machine"],
        resolution=report["resolution"],
        platform=report["platform"],
        kernels=report["kernels"],
        notes=notes,
        labels=found.labels,
        selections=report["selections"],
    )


def only_recorded(source: Source, configs: list[dict[str, Json]]) -> Source:
    """The source with the selections of these configs alone. Errors: `AskError` where one was not recorded."""
    report = source.recorded or {}
    found = []
    for item in configs:
        fields = {name: value for name, value in item["fields"].items() if value is not None}
        asked = {**AttentionConfig(**{"dtype": "float32", **fields}).as_dict(), "dtype": fields.get("dtype")}
        match = [
            selection
            for selection in report["selections"]
            if all(selection["config"].get(name) == value for name, value in asked.items() if value or name != "dtype")
        ]
        if not match:
            text = f"the snapshot has no decision about this layer ({item['label']}): add --recompute to decide it here"
            raise AskError(text, "SnapshotError")
        found.append(match[0])
    return source._replace(recorded={**report, "selections": found})


def select_blocks(data: Mapping[str, Json]) -> Iterator[Block]:
    """What is shown of the selections."""
    names = {item["name"] for selection in data["selections"] for item in selection["candidates"]}
    for hint in data["hints"]:
        if hint["severity"] in ("bug", "error", "warning") or hint["subject"] in names:
            yield Hint(hint["severity"], hint["message"], hint["remedy"])
    for note in data["notes"]:
        yield Hint("advice", f"the model: {note}", None)
    platform = data["platform"]
    where = "no platform" if platform is None else f"on {platform['name']}, {_devices(platform)}"
    source = "" if data["source"]["kind"] == "live" else f"{data['source']['text']}: "
    yield Paragraph(f"{source}{where}")
    yield from _show.change_blocks(data)
    if data["strict"] and any(item["is_fallback"] for item in data["selections"]):
        yield Paragraph("Strict mode (HARDPOINT_STRICT): an engine would stop at the first lost candidate.", "bad")
    for label, selection in zip(data["labels"], data["selections"], strict=False):
        yield from _show.selection_blocks(selection, label)


def _devices(platform: Mapping[str, Json]) -> str:
    names = [item["name"] for item in platform["devices"]]
    return ", ".join(
        f"{names.count(name)} × {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
    )
