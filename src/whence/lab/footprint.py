"""Peak memory of one layer in a fresh process: `python -m whence.lab.footprint softmax
1024`.

Prints the bytes by which the process grew while it ran forward and backward. A process of its own,
because a peak never goes down again. `explicit` is softmax as it is written on paper, with the T x
T weights in memory.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

WIDTH, HEADS = 256, 8
OPTIONS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "linformer": {"projected": 128},
    "performer": {"features": 128},
    "bigbird": {"block": 64, "window": 3, "random": 3, "leading": 2},
    "perceiver": {"latents": 32},
}


def measure(name: str, length: int) -> int:
    """Peak growth in bytes, measured by a child process."""
    command = [sys.executable, "-m", "whence.lab.footprint", name, str(length)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(json.loads(told))


def main() -> None:
    import torch
    import torch._dynamo  # the first call of an operator written in Python loads it: 51 MB

    from whence.attention import MECHANISMS

    name, length = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    kind = "softmax" if name == "explicit" else name
    layer = MECHANISMS[kind](WIDTH, HEADS, max(length, 128), **OPTIONS[kind])

    def work(positions: int) -> None:
        x = torch.randn(1, positions, WIDTH, generator=generator, requires_grad=True)
        y = layer.project(layer.pattern(x) @ layer.values(x)) if name == "explicit" else layer(x)
        y.square().mean().backward()

    work(128)  # what is allocated once, whatever the length
    before = resident()
    work(length)
    print(json.dumps(peak() - before))


def resident() -> int:
    """Bytes in memory now; the peak counts from here on, where the system can forget the old
    one."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except OSError:
        return peak()


def peak() -> int:
    """The largest number of bytes that were in memory."""
    try:
        return _status("VmHWM")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field}")


if __name__ == "__main__":
    main()
