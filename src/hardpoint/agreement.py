"""Agreement of ranks: comparing what several processes decided, and choosing what all of them can run.

Pure functions over data; how the data travels between ranks is the engine's business. Ranks may hold different layer
kinds (a pipeline): only decisions that two ranks both made are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hardpoint.errors import DisagreementError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint._fingerprint import Decision, Fingerprint


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


def common_choice(valid: Mapping[int, Sequence[str]] | Sequence[Sequence[str]]) -> str:
    """The best backend that is valid on every rank: fewest steps down each rank's own order in sum, then by name.

    `valid` holds each rank's valid backends, best first, by rank or in rank order. The result does not depend on the
    order of ranks. Errors: `DisagreementError` where there is none, with each rank's list.
    """
    items = valid.items() if isinstance(valid, Mapping) else enumerate(valid)
    by_rank: dict[int, list[str]] = {rank: list(names) for rank, names in items}
    if not by_rank:
        raise DisagreementError("no rank told what is valid on it")
    common = set.intersection(*(set(names) for names in by_rank.values()))
    if not common:
        listed = "; ".join(f"rank {rank}: {', '.join(names) or 'none'}" for rank, names in sorted(by_rank.items()))
        raise DisagreementError(f"no backend is valid on every rank: {listed}")
    return min(common, key=lambda name: (sum(names.index(name) for names in by_rank.values()), name))
