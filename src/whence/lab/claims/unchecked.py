"""Claims of the documents that no run can decide: they are about all programs or all functions."""

from __future__ import annotations

import torch

from whence.lab.claim import Claim, Setting, Verdict

GROUP = "Not checkable by running"


def turing(generator: torch.Generator, setting: Setting) -> Verdict:
    return Verdict(
        None,
        finding="A statement about every program and unbounded precision: no finite run shows it. "
        "The paper proves it; nothing here adds to that.",
    )


def universal(generator: torch.Generator, setting: Setting) -> Verdict:
    return Verdict(
        None,
        finding="A statement about all continuous functions and networks of any size: fitting "
        "one function says nothing about all of them. The paper proves it.",
    )


CLAIMS = [
    Claim(
        "bigbird-turing",
        GROUP,
        "BigBird's sparse attention is Turing complete.",
        "the reading questions",
        turing,
        "unchecked",
    ),
    Claim(
        "bigbird-universal",
        GROUP,
        "BigBird's sparse attention is a universal approximator of sequence functions.",
        "the reading questions",
        universal,
        "unchecked",
    ),
]
