"""Every claim, by its id, in the order of the documents."""

from __future__ import annotations

from whence.lab.claim import Claim
from whence.lab.claims import copying, heads, sentences

CLAIMS: dict[str, Claim] = {
    claim.id: claim for module in (copying, heads, sentences) for claim in module.CLAIMS
}
