"""What the attention benchmark has measured so far, part by part; its document is made of it."""

from __future__ import annotations

import json
from typing import Any

import attention_environment

KEPT = attention_environment.environment.FOLDER / "attention.json"


def keep(result: dict[str, Any], layers: list[str]) -> dict[str, Any]:
    """Add what was measured now to what was measured before. `layers`: all, in their order."""
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    # A run of some groups says nothing about the causality of the others, and the compiler takes so
    # long that its lengths are measured in several.
    moved = {**kept.get("moved", {}), **result.get("moved", {})}
    if "compiled" in result:
        rows = {}
        for row in kept.get("compiled", []) + result["compiled"]:
            rows[row["group"], row["layer"], row["backward"], row["length"]] = row
        result = {**result, "compiled": sorted(rows.values(), key=lambda row: place(row, layers))}
    kept.update({**result, "moved": moved})
    KEPT.write_text(json.dumps(kept))
    return kept


def place(row: dict[str, Any], layers: list[str]) -> tuple[bool, int, int]:
    """Forward, then with backward; of each the layers group by group, then lengths."""
    return row["backward"], layers.index(row["layer"]), row["length"]
