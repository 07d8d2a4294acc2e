"""Agreement of ranks: comparing what several processes decided, and choosing what all of them can run.

Pure functions over data; how the data travels between ranks is the engine's business. Ranks may hold different layer
kinds (a pipeline): only decisions that two ranks both made are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from hardpoint.errors import DisagreementError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from hardpoint._fingerprint import Decision, Fingerprint
    from hardpoint._reasons import Candidate

    Judged: TypeAlias = tuple[list[Candidate], dict[str, Candidate]]


def check_agreement(fingerprints: Mapping[int, Fingerprint] | Sequence[Fingerprint]) -> None:
    """Check that ranks agree on the platform, on versions, and on every layer kind and config that they share.

    Fingerprints by rank, or in rank order. Errors: `DisagreementError`, with one paragraph per difference that lists
    ranks, backends, layouts and each rank's reasons.
    """
    by_rank = dict(fingerprints.items() if isinstance(fingerprints, Mapping) else enumerate(fingerprints))
    problems = []
    for label, member in (
        ("platform", "platform"),
        ("hardpoint version", "hardpoint_version"),
        ("platform plugin version", "platform_version"),
        ("fingerprint schema", "schema"),
    ):
        values = {rank: getattr(fingerprint, member) or "unknown" for rank, fingerprint in sorted(by_rank.items())}
        if len(set(values.values())) > 1:
            problems.append(f"{label}: " + ", ".join(f"rank {rank}: {value}" for rank, value in values.items()))
    shared: dict[tuple[str, str], dict[int, Decision]] = {}
    for rank, fingerprint in sorted(by_rank.items()):
        for decision in fingerprint.decisions:
            shared.setdefault((decision.kind, decision.config), {})[rank] = decision
    for (kind, config), decisions in sorted(shared.items()):
        if len({decision.identity for decision in decisions.values()}) > 1:
            lines = [f"{kind} ({config}):"]
            for rank, decision in decisions.items():
                lines.append(
                    f"  rank {rank}: {decision.backend or 'none'} {decision.version or ''}".rstrip()
                    + (f", layout {decision.layout}" if decision.layout else "")
                )
                lines += [f"    rank {rank}: {reason}" for reason in decision.reasons]
            problems.append("\n".join(lines))
    if problems:
        raise DisagreementError("ranks have decided differently:\n" + "\n".join(problems))


def common_choice(
    valid: Mapping[int, Sequence[str] | Judged] | Sequence[Sequence[str] | Judged],
) -> str:
    """The best backend that is valid on every rank: fewest steps down each rank's own order in sum, then by name.

    `valid` holds, by rank or in rank order, each rank's valid backends, best first: their names, or what
    `Platform.get_valid_backends` returned there, so that the error can tell each rank's reasons. The result does not
    depend on the order of ranks. Errors: `DisagreementError` where there is none.
    """
    items = valid.items() if isinstance(valid, Mapping) else enumerate(valid)
    by_rank = {rank: _read(answer) for rank, answer in sorted(items)}
    if not by_rank:
        raise DisagreementError("no rank told what is valid on it")
    names = {rank: judged.names for rank, judged in by_rank.items()}
    common = set.intersection(*(set(found) for found in names.values()))
    if not common:
        raise DisagreementError(_no_common(by_rank))
    return min(common, key=lambda name: (sum(found.index(name) for found in names.values()), name))


class _Answer(NamedTuple):
    """A rank's valid backends in order, and of the others a sentence each, by name."""

    names: list[str]
    against: dict[str, str]


def _read(answer: Sequence[str] | Judged) -> _Answer:
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Mapping):
        valid, rejected = answer
        return _Answer([item.name for item in valid], {name: item.describe() for name, item in rejected.items()})
    return _Answer([str(name) for name in answer], {})


def _no_common(by_rank: Mapping[int, _Answer]) -> str:
    """Each rank's list; then, for each backend that is valid somewhere, on which ranks it is not, and why."""
    listed = "; ".join(f"rank {rank}: {', '.join(answer.names) or 'none'}" for rank, answer in by_rank.items())
    lines = [f"no backend is valid on every rank: {listed}"]
    for name in dict.fromkeys(name for answer in by_rank.values() for name in answer.names):
        for rank, answer in by_rank.items():
            if name not in answer.names:
                why = answer.against.get(name)
                lines += [] if why is None else [f"  rank {rank}: {why}"]
    return "\n".join(lines)
