"""Every claim, by its id, in the order of the documents."""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Sequence

import torch

from whence.errors import WhenceError
from whence.lab.claim import Claim
from whence.lab.claims import (
    bottleneck,
    copying,
    features,
    heads,
    knowledge,
    projections,
    scaling,
    sentences,
    separation,
    stability,
    trained,
    unchecked,
)

_GROUPS = (
    copying,
    heads,
    sentences,
    knowledge,
    bottleneck,
    separation,
    stability,
    projections,
    scaling,
    features,
    trained,
    unchecked,
)
_FOUND = {claim.id: claim for module in _GROUPS for claim in module.CLAIMS}
# The order of the documents, not that of the modules.
_ORDER = (
    "copy",
    "avg",
    "one",
    "two",
    "kqv",
    "perm",
    "rope",
    "know",
    "lin",
    "big",
    "perf",
    "bigbird",
)
CLAIMS: dict[str, Claim] = {
    id: _FOUND[id] for id in sorted(_FOUND, key=lambda id: (_ORDER.index(id.split("-")[0]), id))
}


def chosen(ids: Sequence[str]) -> list[Claim]:
    """The claims with these ids, or of these kinds ("one" is one-1, one-2, ...); all if none
    given."""
    if not ids:
        return list(CLAIMS.values())
    wanted: dict[str, Claim] = {}
    for id in ids:
        found = [claim for claim in CLAIMS.values() if id in (claim.id, claim.id.rsplit("-", 1)[0])]
        if not found:
            near = difflib.get_close_matches(id, CLAIMS, 1, 0.5)
            guess = f"did you mean {near[0]}?" if near else f"there are {', '.join(CLAIMS)}"
            raise WhenceError(f"there is no claim {id!r}; {guess}")
        wanted |= {claim.id: claim for claim in found}
    return list(wanted.values())


def generator_for(claim: str, seed: int) -> torch.Generator:
    """A generator of its own for each claim: its numbers do not depend on which others were run."""
    return torch.Generator().manual_seed(zlib.crc32(f"{seed}:{claim}".encode()))
