"""``hardpoint matrix``: devices by kinds of layers, and the backend of each; a table, JSON, or a page."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import click

from hardpoint.cli import _show
from hardpoint.cli._ask import AskError
from hardpoint.cli._complete import complete_backends
from hardpoint.cli._document import Cell, Heading, Paragraph, Table
from hardpoint.cli._options import Look, common_options
from hardpoint.cli._question import (
    FINE,
    LIVE,
    NOT_AVAILABLE,
    PLUGIN_BUG,
    SELECTING,
    envelope,
    is_without_backend,
    put_question,
    with_observed,
)
from hardpoint.cli._select import layer_options, read_configs
from hardpoint.cli._view import show

Json = Any  # what JSON can hold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hardpoint.cli._document import Block

_GQA: Final[dict[str, Json]] = {"head_size": 128, "num_heads": 32, "num_kv_heads": 8}
_LATENT: Final[dict[str, Json]] = {
    "kind": "mla_attention",
    "head_size": 576,
    "num_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
_DEVICES_ABREAST: Final = 3
TYPICAL: Final[tuple[tuple[str, dict[str, Json]], ...]] = (
    ("Decoder", _GQA),
    ("Decoder, float16", {**_GQA, "dtype": "float16"}),
    ("Decoder, FP8 cache", {**_GQA, "kv_cache_dtype": "float8_e4m3fn"}),
    ("Small heads", {"head_size": 64, "num_heads": 16, "num_kv_heads": 4}),
    ("Window and sinks", {**_GQA, "head_size": 64, "num_heads": 64, "sliding_window": 128, "sinks": True}),
    ("Soft cap", {"head_size": 256, "num_heads": 8, "num_kv_heads": 4, "soft_cap": 50.0}),
    ("Latent (MLA)", _LATENT),
    ("MLA prefill", {"head_size": 192, "v_head_size": 128, "num_heads": 128}),
    ("Encoder", {"head_size": 64, "num_heads": 12, "attention_type": "encoder_only"}),
    ("Vision tower", {"head_size": 72, "num_heads": 16, "attention_type": "encoder_only"}),
)
"""The kinds of layers that today's models have: Llama, GPT-OSS, Gemma 2, DeepSeek, BERT, SigLIP."""


@click.command()
@common_options()
@layer_options
@click.option(
    "--backend",
    metavar="NAMES",
    help="The backend to take, or several in order of preference.",
    shell_complete=complete_backends,
)
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True, allow_dash=True),
    help="Write a self-contained page; - for standard output, and nothing else there.",
)
def matrix(  # click's help is the documentation
    look: Look,
    *,
    model: str | None,
    tensor_parallel: int,
    backend: str | None,
    html: str | None,
    **fields: Any,  # noqa: ANN401  # a config's fields
) -> int:
    """Devices by kinds of layers, and the backend that each gets.

    With --simulate each profile is a machine of its own; 'all' takes every profile of the installed plugins. Layers
    are those of --model, or the one that the options describe, or a set that today's models have.
    """
    described = {name: value for name, value in fields.items() if value is not None}
    if model is None and "head_size" not in described and "num_heads" not in described:
        configs: list[dict[str, Json]] = [{"label": label, "fields": {**own, **described}} for label, own in TYPICAL]
        notes: list[str] = []
    else:
        configs, notes = read_configs(model, tensor_parallel, fields)
    for item in configs:
        # The same for all devices: to each its own dtype would compare what is not the same.
        item["fields"]["dtype"] = item["fields"].get("dtype") or "bfloat16"

    if html == "-":
        return _show_page(look, lambda: matrix_data(look, configs, notes, backend))

    def make() -> dict[str, Json]:
        data = matrix_data(look, configs, notes, backend)
        if html is not None:
            # First, for what is shown says that it is there.
            _write_page(html, data)
        return data

    return show(look.view, "Hardpoint matrix", make, lambda data: matrix_blocks(data, html))


def _show_page(look: Look, make: Callable[[], dict[str, Json]]) -> int:
    """Write the page to standard output, and nothing else; in UTF-8 whatever the locale, as it says of itself."""
    import io
    import sys

    from hardpoint.cli._view import show_error, write

    try:
        data = make()
    except AskError as error:
        return show_error(look.view, error)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        write(_page(data))
    except OSError as error:
        write(f"hardpoint: the output cannot be written: {error}\n", sys.stderr)
        return NOT_AVAILABLE
    code: int = data["exit_code"]
    return code


def _page(data: dict[str, Json]) -> str:
    from hardpoint.cli._html import render
    from hardpoint.cli._private import without_private

    return render(without_private(data))


def _write_page(path: str, data: dict[str, Json]) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(_page(data))
    except OSError as error:
        raise click.FileError(os.path.basename(path), str(error)) from None


def matrix_data(look: Look, configs: list[dict[str, Json]], notes: list[str], backend: str | None) -> dict[str, Json]:
    """The devices, the layers, and a selection for each pair."""
    if look.source.recorded is not None:
        raise AskError("a snapshot holds no matrix: add --recompute to decide it here", "SnapshotError")
    question = {
        "what": "matrix",
        "machines": _machines(look),
        "configs": configs,
        "depth": look.depth,
        "platform": look.platform,
        "backend": backend,
        "parts": list(SELECTING),
    }
    value, observations = put_question(question)
    reports = [{**item, "report": with_observed(item["report"], observations)} for item in value["reports"]]
    cells = [{**item, "config": _place(item["config"], configs)} for item in value["cells"]]
    bugs = [bug for item in reports for bug in item["report"]["bugs"]]
    bugs += [
        {
            "plugin": (candidate["provenance"] or {}).get("plugin", candidate["name"]),
            "phase": candidate["phase"],
            **reason,
        }
        for cell in cells
        for candidate in cell["selection"]["candidates"]
        if candidate["outcome"] == "bug"
        for reason in candidate["reasons"]
    ]
    lacking = any(item["report"]["platform"] is None for item in reports)
    code = PLUGIN_BUG if bugs else NOT_AVAILABLE if lacking else FINE
    return envelope(
        "matrix",
        2,
        look.source,
        code,
        changes=value["changes"],
        uncompared=value["uncompared"],
        depth=cells[0]["selection"]["depth"] if cells else look.depth,
        bugs=[bug for place, bug in enumerate(bugs) if bug not in bugs[:place]],
        hints=_hints(reports),
        notes=notes,
        devices=[_device(item) for item in value["devices"]],
        configs=[_config(place, item, cells) for place, item in enumerate(configs)],
        cells=cells,
    )


def _machines(look: Look) -> list[Json]:
    """A machine per profile, so that devices which nobody has in one machine can stand side by side."""
    machine = dict(look.source.machine)
    if machine["kind"] != "simulated":
        return [{"label": look.source.text if look.source is LIVE else "recorded machine", "machine": machine}]
    names = [item.strip() for item in machine["profiles"].split(",") if item.strip()]
    if names == ["all"]:
        from hardpoint import list_profiles

        names = [profile.name for profile in list_profiles()]
    return [{"label": name, "machine": {**machine, "profiles": name}} for name in names]


def _place(label: str, configs: list[dict[str, Json]]) -> int:
    return next(place for place, item in enumerate(configs) if item["label"] == label)


def _device(item: Mapping[str, Json]) -> dict[str, Json]:
    capability = item["capability"]
    count = len(item["indices"])
    arch = "capability unknown" if capability is None else capability["arch"]
    name = f"{count} × {item['name']}" if count > 1 else item["name"]
    short = item["name"] if item["machine"] in (LIVE.text, "recorded machine") else item["machine"]
    return {**item, "label": name, "short": short, "words": f"{item['platform']} {arch}"}


def _config(place: int, item: Mapping[str, Json], cells: list[dict[str, Json]]) -> dict[str, Json]:
    asked = next((cell["selection"]["config"] for cell in cells if cell["config"] == place), None)
    fields = item["fields"]
    kind = fields.get("kind", "attention")
    dtype = fields.get("dtype") or (asked or {}).get("dtype")
    heads = fields["num_heads"]
    kv_heads = fields.get("num_kv_heads")
    shape = f"{fields['head_size']} × {heads}" + (f"/{kv_heads}" if kv_heads and kv_heads != heads else "")
    return {
        "label": item["label"],
        "kind": kind,
        "dtype": dtype,
        "words": f"{shape}, {dtype or 'own dtype'}",
        "fields": fields,
    }


def _hints(reports: list[dict[str, Json]]) -> list[Json]:
    """What is wrong on the machines, each once: on a simulated one what is missing here is no news."""
    found: list[Json] = []
    for item in reports:
        for hint in item["report"]["hints"]:
            if hint["severity"] in ("bug", "error", "warning") and hint not in found:
                found.append(hint)
    return found


def matrix_blocks(data: Mapping[str, Json], html: str | None = None) -> Iterator[Block]:
    """Tables of layers by devices, as many devices in each as fit into 80 columns."""
    yield from _show.hints(data["hints"])
    if data["source"]["kind"] != "live":
        yield Paragraph(data["source"]["text"])
    yield from _show.change_blocks(data)
    for note in data["notes"]:
        yield Paragraph(f"the model: {note}", "warn")
    selections = {(cell["device"], cell["config"]): cell["selection"] for cell in data["cells"]}
    for start in range(0, len(data["devices"]), _DEVICES_ABREAST):
        part = range(start, min(start + _DEVICES_ABREAST, len(data["devices"])))
        yield Heading(" | ".join(_title(data["devices"][number]) for number in part))
        rows = [
            (
                Cell(f"{config['label']}\n{config['words']}", ""),
                *(_backend_cell(selections[number, place]) for number in part),
            )
            for place, config in enumerate(data["configs"])
        ]
        heads = (data["devices"][number]["short"] for number in part)
        yield Table(tuple(rows), ("layer", *heads))
    if any(_lost(selection) for selection in selections.values()):
        yield Paragraph("* a better backend is lost here to a failure: hardpoint select tells why", "warn")
    if html is not None:
        yield Heading(f"The page: {html}")


def _title(device: Mapping[str, Json]) -> str:
    return f"{device['label']} ({device['words']})"


def _backend_cell(selection: Mapping[str, Json]) -> Cell:
    if selection["backend"] is None:
        return Cell("none" if is_without_backend(selection) else "-", "warn")
    return Cell(f"{selection['backend']}{'*' if _lost(selection) else ''}", "good")


def _lost(selection: Mapping[str, Json]) -> bool:
    return any(item["outcome"] in ("failed", "contract", "bug") for item in _before(selection))


def _before(selection: Mapping[str, Json]) -> list[Json]:
    names = [item["name"] for item in selection["candidates"]]
    end = names.index(selection["backend"]) if selection["backend"] in names else len(names)
    return list(selection["candidates"][:end])
