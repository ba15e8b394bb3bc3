"""Prints what `attention.py` found, as Markdown tables that can be pasted into a document."""

from __future__ import annotations

from typing import Any

# A float32 sum taken in another order moves by 1e-6; a leak is larger by orders of magnitude.
ROUNDING = 1e-4


def table(head: list[str], rows: list[list[str]]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|---" + "|---:" * (len(head) - 1) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def label(layer: str, moved: dict[str, float]) -> str:
    return f"{layer} (leaks)" if moved.get(layer, 0.0) > ROUNDING else layer


def lengths_of(rows: list[dict[str, Any]]) -> list[int]:
    return sorted({row["length"] for row in rows})


def print_measured(rows: list[dict[str, Any]], what: str, moved: dict[str, float]) -> None:
    lengths = lengths_of(rows)
    lines: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        lines.setdefault((row["group"], row["layer"]), {})[row["length"]] = row[what]
    for group in dict.fromkeys(group for group, _ in lines):
        body = [
            [label(layer, moved), *(number(line.get(length)) for length in lengths)]
            for (owner, layer), line in lines.items()
            if owner == group
        ]
        table([group, *map(str, lengths)], body)


def print_tables(result: dict[str, Any]) -> None:
    moved = result.get("moved", {})
    print(f"{result['machine']}, {result['threads']} threads, compiled: {result['compiled']}\n")
    if "rows" in result:
        for backward, title in ((False, "Forward"), (True, "Forward + backward")):
            rows = [row for row in result["rows"] if row["backward"] == backward]
            print(f"{title}, milliseconds a call, median of rounds\n")
            print_measured(rows, "milliseconds", moved)
        lengths = lengths_of(result["rows"])
        print("Times faster than the peer; exponent over T >= 2048; crossover with torch sdpa\n")
        body = []
        for row in result["conclusions"]:
            for peer, ratios in row["times_faster_than"].items():
                mode = "fwd+bwd" if row["backward"] else "fwd"
                cells = [number(ratios.get(length)) for length in lengths]
                exponent = "" if row["exponent"] is None else str(row["exponent"])
                tail = [exponent, str(row["crossover"] or "none")]
                body.append([f"{row['layer']} / {label(peer, moved)}, {mode}", *cells, *tail])
        table(["layer / peer", *map(str, lengths), "exponent", "crossover"], body)
    if "memory" in result:
        print("Peak memory of forward + backward in a fresh process, MB\n")
        print_measured(result["memory"], "megabytes", moved)
    if moved:
        print("Causality: outputs before the last position, moved by a tenfold last input\n")
        body = [
            [name, f"{value:.1e}", "leaks" if value > ROUNDING else "causal"]
            for name, value in moved.items()
        ]
        table(["layer", "largest move / largest output", "verdict"], body)
    if "error" in result:
        print("Performer against exact causal attention, 128 features\n")
        names = list(result["error"][0])
        body = [[str(row[name]) for name in names] for row in result["error"]]
        table(names, body)
    if result.get("ratio") is not None:
        print(f"ratio {result['ratio']}")
