"""Peak memory of one attention layer, each measurement in a process of its own."""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first call of an operator written in Python loads it: 51 MB
import torch.nn.functional as F

from whence.attention import MECHANISMS, Softmax
from whence.attention.scratch import drop_kept
from whence.lab.footprint import peak as highest
from whence.lab.footprint import resident

LIMIT = 8 << 30  # address space of the child: a mistake must not take the machine down


class WrittenOut(Softmax):
    """Softmax as the papers compared with it: the T x T weights stand in memory."""

    def mix(self, queries: Any, keys: Any, values: Any, padding: Any) -> Any:
        return self.weights(queries, keys, padding) @ values


class Kernel(Softmax):
    """By torch's own kernel on every processor."""

    def mix(self, queries: Any, keys: Any, values: Any, padding: Any) -> Any:
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=self.causal)


KINDS = {**MECHANISMS, "written-out": WrittenOut, "kernel": Kernel}


def peak(mechanism: str, options: dict[str, Any], **sizes: Any) -> float:
    """MiB above what the process holds before the layer runs; infinite if it does not fit."""
    request = json.dumps({"mechanism": mechanism, "options": options, **sizes})
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
        # Freed blocks go back to the system, so that the peak is what was alive at once.
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }
    command = (sys.executable, "-m", "papers.memory", request)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        if "memory" in done.stderr.lower():
            return float("inf")
        raise SystemExit(done.stderr[-2000:])
    return float(done.stdout)


def run(request: dict[str, Any]) -> float:
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    T, width, backward = request["T"], request["width"], request["backward"]
    kind = KINDS[request["mechanism"]]
    layer = kind(width, request["heads"], T, request["causal"], **request["options"])

    def work(length: int) -> None:
        x = torch.randn(1, length, width, requires_grad=backward)
        if backward:
            layer(x).square().sum().backward()
        else:
            with torch.no_grad():
                layer(x)

    work(T)  # libraries make their buffers, and programs for products of this length
    layer.zero_grad()
    drop_kept()  # what a thread keeps from call to call counts
    gc.collect()
    before = resident()
    work(T)
    return (highest() - before) / 2**20


if __name__ == "__main__":
    print(run(json.loads(sys.argv[1])))
