"""What `attention.py` found, as Markdown tables, printed or written into the document."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

# A float32 sum taken in another order moves by 1e-6; a leak is larger by orders of magnitude.
ROUNDING = 1e-4
Result = dict[str, Any]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def label(layer: str, moved: dict[str, float]) -> str:
    return f"{layer} (leaks)" if moved.get(layer, 0.0) > ROUNDING else layer


def mode(row: Result) -> str:
    return "fwd+bwd" if row["backward"] else "fwd"


def measured(rows: list[Result], what: str, moved: dict[str, float]) -> str:
    """One table for each group: layers down, lengths across."""
    lengths = sorted({row["length"] for row in rows})
    lines: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        lines.setdefault((row["group"], row["layer"]), {})[row["length"]] = row[what]
    tables = []
    for group in dict.fromkeys(group for group, _ in lines):
        body = [
            [label(layer, moved), *(number(line.get(length)) for length in lengths)]
            for (owner, layer), line in lines.items()
            if owner == group
        ]
        tables.append(table([group, *map(str, lengths)], body))
    return "\n".join(tables)


def forward(result: Result) -> str:
    rows = [row for row in result["rows"] if not row["backward"]]
    return measured(rows, "milliseconds", result["moved"])


def backward(result: Result) -> str:
    rows = [row for row in result["rows"] if row["backward"]]
    return measured(rows, "milliseconds", result["moved"])


def ratios(result: Result) -> str:
    lengths = sorted({row["length"] for row in result["rows"]})
    body = []
    for row in result["conclusions"]:
        for peer, found in row["times_faster_than"].items():
            cells = [number(found.get(str(length))) for length in lengths]
            body.append([f"{row['layer']} / {label(peer, result['moved'])}, {mode(row)}", *cells])
    return table(["layer / peer", *map(str, lengths)], body)


def scaling(result: Result) -> str:
    body = []
    for row in result["conclusions"]:
        if row["layer"] in ("whence softmax", "whence rope"):  # exact themselves
            continue
        body.append([f"{row['layer']}, {mode(row)}", str(row["crossover"] or "none")])
    return table(["layer", "faster than torch sdpa from T ="], body)


def fine(result: Result) -> str:
    body = [
        [f"{row['layer']} / {row['bare']}, {mode(row)}", str(row["length"]), str(row["rounds"])]
        + [f"{value:.3f}" for value in row["times_faster"]]
        for row in result["fine"]
    ]
    return table(["layer / bare", "T", "pairs", "lower quartile", "median", "upper quartile"], body)


def growth(result: Result) -> str:
    body = [
        [f"{row['layer']}, {mode(row)}", str(row["rounds"])]
        + [f"{value:.2f}" for value in row["exponent"]]
        for row in result["growth"]
    ]
    return table(["layer", "rounds", "lower quartile", "median", "upper quartile"], body)


def compiled(result: Result) -> str:
    """Layers down, lengths across: milliseconds compiled (eager); then how far ahead of peers."""
    lengths = sorted({row["length"] for row in result["compiled"]})
    cells: dict[str, dict[int, str]] = {}
    faster: dict[str, dict[int, str]] = {}
    for row in result["compiled"]:
        layer, length = label(row["layer"], result["moved"]), row["length"]
        after = row["failed"] or number(row["compiled"])
        cells.setdefault(f"{layer}, {mode(row)}", {})[length] = f"{after} ({number(row['eager'])})"
        for peer, times in row["times_faster_than"].items():
            name = f"{layer} / {label(peer, result['moved'])}, {mode(row)}"
            faster.setdefault(name, {})[length] = number(times)

    def wide(head: str, lines: dict[str, dict[int, str]]) -> str:
        body = [[name, *(line.get(T, "") for T in lengths)] for name, line in lines.items()]
        return table([head, *map(str, lengths)], body)

    return wide("compiled (eager), ms", cells) + "\n" + wide("times faster, both compiled", faster)


def memory(result: Result) -> str:
    return measured(result["memory"], "megabytes", result["moved"])


def causality(result: Result) -> str:
    body = [
        [name, f"{value:.1e}", "leaks" if value > ROUNDING else "causal"]
        for name, value in result["moved"].items()
    ]
    return table(["layer", "largest move / largest output", "verdict"], body)


def error(result: Result) -> str:
    names = list(result["error"][0])
    return table(names, [[str(row[name]) for name in names] for row in result["error"]])


# marker in the document: (what of the result it needs, title, table)
TABLES: dict[str, tuple[str, str, Callable[[Result], str]]] = {
    "forward": ("rows", "Forward, milliseconds a call, median of rounds", forward),
    "backward": ("rows", "Forward + backward, milliseconds a call, median of rounds", backward),
    "ratios": ("rows", "Times faster than the peer (below one: slower)", ratios),
    "scaling": ("rows", "Crossover with torch's exact attention", scaling),
    "fine": ("fine", "What is close to its target: times faster", fine),
    "growth": ("growth", "Exponents over T = 2048 ... 16384, round by round", growth),
    "compiled": ("compiled", "Compiled beside eager", compiled),
    "memory": ("memory", "Peak memory of forward + backward in a fresh process, MB", memory),
    "causality": ("moved", "Outputs before a tenfold last input: how far they move", causality),
    "error": ("error", "Performer against exact causal attention, 128 features", error),
}


def all_tables(result: Result) -> str:
    parts = [f"{result['machine']}, {result['threads']} threads\n"]
    for needed, title, draw in TABLES.values():
        if needed in result:
            parts.append(f"{title}\n\n{draw(result)}")
    if result.get("ratio") is not None:
        parts.append(f"ratio {result['ratio']}")
    return "\n".join(parts)


def write_document(result: Result, path: Path) -> None:
    """Every table between its markers; the words around them are written by hand."""
    text = path.read_text(encoding="utf-8")
    for name, (needed, _, draw) in TABLES.items():
        if needed in result:
            begin, rest = text.split(f"<!-- {name} -->\n", 1)
            _, after = rest.split("<!-- end -->", 1)
            text = f"{begin}<!-- {name} -->\n{draw(result)}<!-- end -->{after}"
    path.write_text(text, encoding="utf-8")
