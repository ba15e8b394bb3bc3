"""Measures attention layers of one environment: a process that answers requests, one a line.

    {"layer": "torch sdpa", "length": 4096, "backward": true, "seconds": 0.1}  -> {"seconds": ...}
    {..., "memory": true}                                                      -> {"bytes": ...}
    {..., "causality": true}                                                   -> {"moved": ...}
    {..., "compiled": true}                             -> {"seconds": ...} or {"failed": "why"}

Memory is measured in a process of its own, forked from this one before anything was computed.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
warnings.simplefilter("ignore")

import torch  # noqa: E402
from attention_layers import LAYERS, inputs_of  # noqa: E402

from contest import say  # noqa: E402

# Packages that a forked process would otherwise load and count as its own memory.
PACKAGES = {
    # The first call of any operator written in Python makes torch load its compiler.
    "whence": ("whence.attention", "torch._dynamo"),
    "peers": (
        "performer_pytorch",
        "linformer",
        "linformer_pytorch.linformer_pytorch",
        "perceiver_pytorch.perceiver_io",
        "perceiver_ar_pytorch.perceiver_ar_pytorch",
        "transformers.models.big_bird.modeling_big_bird",
        "x_transformers.x_transformers",
    ),
}
kept: dict[str, Callable[[], None]] = {}
lasted: dict[str, float] = {}
LONG = 0.4  # seconds
PAUSE, WARM_UP = 0.02, 0.01
PATIENCE = 150  # seconds for the compiler, which unrolls a loop over hundreds of chunks


def prepare(layer: str, length: int, backward: bool, compiled: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    module = LAYERS[layer][1](length).train(backward)
    given = [x.requires_grad_(backward) for x in inputs_of(layer, length)]
    run = torch.compile(module) if compiled else module
    up: torch.Tensor | None = None

    def once() -> None:
        nonlocal up
        if not backward:
            with torch.no_grad():
                run(*given)
            return
        out = run(*given)
        if up is None:
            up = torch.ones_like(out)
        out.backward(up)
        for x in given:
            x.grad = None
        module.zero_grad(set_to_none=True)

    return once


def fails(first: Callable[[], None]) -> str:
    """Why the call that compiles does not come to an end, or nothing."""

    def give_up(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE)
    try:
        first()
    except TimeoutError:
        return f"more than {PATIENCE} s"
    except Exception as error:  # whatever a compiler says of code that is not ours
        return type(error).__name__
    finally:
        signal.alarm(0)
    return ""


def seconds(request: dict[str, Any]) -> dict[str, Any]:
    """The mean of as many calls as fit in the slice of time, at least one.

    Between two slices the other process had the caches, and its threads look out for more work for
    a while, on the cores that are wanted here: a pause and some calls before the clock starts,
    unless calls are so long that it does not matter.
    """
    layer, length, backward = request["layer"], request["length"], request["backward"]
    compiled = request.get("compiled", False)
    key = f"{layer} {length} {backward} {compiled}"
    if key not in kept:
        kept[key] = prepare(layer, length, backward, compiled)
        if compiled and (why := fails(kept[key])):
            return {"failed": why}
        kept[key]()
    run, count = kept[key], 0
    if lasted.get(key, 0.0) < LONG:
        time.sleep(PAUSE)
        start = time.perf_counter()
        run()
        while time.perf_counter() - start < WARM_UP:
            run()
    start = time.perf_counter()
    while True:
        run()
        count += 1
        passed = time.perf_counter() - start
        if passed >= request["seconds"]:
            lasted[key] = passed / count
            return {"seconds": passed / count, "count": count}


def resident(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name} in /proc/self/status")


def peak(request: dict[str, Any]) -> dict[str, int]:
    """What a fresh process needs at most, above what it had before the layer was made."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # Made before, once a process: threads and their buffers, by a short layer of the same kind;
        # programs that a library writes for products of this length, by another layer.
        for length in (256, request["length"]):
            prepare(request["layer"], length, request["backward"], False)()
        if "whence.attention" in sys.modules:
            # What it keeps from call to call counts.
            sys.modules["whence.attention.scratch"].drop_kept()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        before = resident("VmRSS")
        prepare(request["layer"], request["length"], request["backward"], False)()
        os.write(writer, json.dumps({"bytes": resident("VmHWM") - before}).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return json.loads(answer) if answer else {"bytes": -1}


def moved(request: dict[str, Any]) -> dict[str, float]:
    """How far outputs before the last position move when only the last input grows tenfold."""
    torch.manual_seed(0)
    length = request["length"]
    module = LAYERS[request["layer"]][1](length).eval()
    given = inputs_of(request["layer"], length)
    others = [x.clone() for x in given]
    for other in others:
        other[..., -1, :] *= 10
    with torch.no_grad():
        before, after = module(*given)[..., :-1, :], module(*others)[..., :-1, :]
    return {"moved": float((before - after).abs().max() / before.abs().max())}


def main() -> None:
    for package in PACKAGES[sys.argv[1]]:
        __import__(package)
    say({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("forget"):
            kept.clear()
            torch.compiler.reset()  # else it gives up after eight versions of one function
            say({"forgotten": True})
        elif request.get("memory"):
            say(peak(request))
        else:
            say(moved(request) if request.get("causality") else seconds(request))


if __name__ == "__main__":
    main()
