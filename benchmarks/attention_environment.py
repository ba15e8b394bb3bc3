"""The peers of the attention benchmark, next to the others in `.bench/`, made on first use.

They are installed without their dependencies, whose pins on torch and CUDA packages would change
the torch that all rows share; the few pure Python packages that they import are named here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import environment

PEERS = (
    "performer-pytorch==1.1.4",
    "linformer==0.2.3",
    "linformer-pytorch==0.19.3",
    "perceiver-pytorch==0.11.0",
    "perceiver-ar-pytorch==0.0.10",
    # What these import.
    "local-attention==1.11.2",
    "axial-positional-embedding==0.3.12",
    "hyper-connections==0.4.11",
    "torch-einops-utils==0.2.0",
)
# linformer-pytorch imports matplotlib; the tests in `peers/` are run by pytest.
WITH_THEIR_OWN = ("matplotlib", "pytest==9.2.0")


def prepare() -> Path:
    """Install the peers unless this very list is installed already; returns their Python."""
    python = environment.prepare()
    stamp = environment.FOLDER / "attention.txt"
    wanted = "\n".join((*PEERS, *WITH_THEIR_OWN)) + "\n"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing {', '.join(PEERS)} into {environment.FOLDER} (once)", file=sys.stderr)
    install = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    pins = str(environment.FOLDER / "constraints.txt")
    # pip's own output goes to stderr: stdout belongs to the benchmark's figures.
    subprocess.run((*install, "--no-deps", *PEERS), check=True, stdout=2)
    subprocess.run((*install, "--constraint", pins, *WITH_THEIR_OWN), check=True, stdout=2)
    stamp.write_text(wanted)
    return python


if __name__ == "__main__":
    print(prepare())
