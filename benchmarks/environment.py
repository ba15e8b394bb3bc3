"""An environment of its own for the peers of a benchmark: `.bench/`, made on first use.

Torch is the same version as Whence's, so that a difference is the library's and not torch's.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".bench"
PYTHON = FOLDER / "bin" / "python"
TORCH = "torch==2.13.0"
PEERS = ("transformers==5.22.2", "accelerate==1.15.0", "x-transformers==2.31.10")


def prepare() -> Path:
    """Install the peers unless this very list is installed already; returns their Python."""
    stamp = FOLDER / "installed.txt"
    wanted = "\n".join((TORCH, *PEERS)) + "\n"
    if PYTHON.exists() and stamp.exists() and stamp.read_text() == wanted:
        return PYTHON
    print(f"installing {', '.join(PEERS)} into {FOLDER} (once)", file=sys.stderr)
    venv.create(FOLDER, with_pip=True)  # not cleared: results are kept beside it
    install = (str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    pins = FOLDER / "constraints.txt"
    pins.write_text((ROOT / "constraints.txt").read_text())
    for packages in ((TORCH, "numpy"), PEERS):
        # pip's own output goes to stderr: stdout belongs to the benchmark's figures.
        subprocess.run((*install, "--constraint", str(pins), *packages), check=True, stdout=2)
    stamp.write_text(wanted)
    return PYTHON


if __name__ == "__main__":
    print(prepare())
