"""The names of the course's state dicts, and of the copies of it that students made.

Every tensor has one canonical name here, the one of the course's handout; `down_block` and
`up_block` write their attention as `cross_attn`. Other spellings are recognised by their role.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

BLOCK = 128  # positions; the course never changed it
HEADS = 8  # cannot be read off the weights of plain attention; the course never changed it

# A wrapper around the model (DataParallel, torch.compile, a class of one's own) prefixes its name.
WRAPPERS = ("module.", "_orig_mod.", "model.", "gpt.", "transformer.", "net.")
CONTAINERS = ("state_dict", "model_state_dict", "model_state", "model", "net", "params")

_TOP = (
    (r"tok(en)?_?emb(ed(ding)?)?s?(\.weight)?|wte\.weight", "tok_emb.weight"),
    (r"pos(ition)?_?emb(ed(ding)?)?s?(\.weight)?|wpe\.weight", "pos_emb"),
    (r"(?:ln|norm|layer_?norm)_?f(?:inal)?\.(weight|bias)", r"ln_f.\1"),
    (r"final_(?:ln|norm|layer_?norm)\.(weight|bias)", r"ln_f.\1"),
    (r"(lm_)?head\.weight", "head.weight"),
)
_BLOCK = re.compile(r"(?:blocks|layers|h)\.(\d+)\.(.+)|(down|up)\w*\.(.+)")
_ATTENTION = r"(?:\w*att(?:n|ention)\w*|cross)\."
_MLP = r"(?:mlp|ffn?|feed_?forward)\.(?:net\.)?"
_ENDS = r"\.(weight|bias)"
_PARTS = (
    (r"(?:ln|norm|layer_?norm)_?([12])" + _ENDS, r"ln\1.\2"),
    (_ATTENTION + r"(?:\w*mask|tril)", "attn.mask"),
    (_ATTENTION + r"(?:rope|rotary)_(?:cache|table)", "attn.rope_cache"),
    (_ATTENTION + r"w_?2", "attn.w2"),
    (_ATTENTION + r"b_?2", "attn.b2"),
    (_ATTENTION + r"w_?1" + _ENDS, r"attn.w1.\1"),
    (_ATTENTION + r"(?:w_?|to_)?k(?:ey)?(?:_proj)?" + _ENDS, r"attn.key.\1"),
    (_ATTENTION + r"(?:w_?|to_)?q(?:uery)?(?:_proj)?" + _ENDS, r"attn.query.\1"),
    (_ATTENTION + r"(?:w_?|to_)?v(?:alue)?(?:_proj)?" + _ENDS, r"attn.value.\1"),
    (_ATTENTION + r"(?:w_?)?(?:o|out|c|output)?_?proj(?:ection)?" + _ENDS, r"attn.proj.\1"),
    (_ATTENTION + r"(?:out|output|w_?o|to_out)" + _ENDS, r"attn.proj.\1"),
    (_MLP + r"(?:0|fc1|linear1|c_fc|up)" + _ENDS, r"mlp.0.\1"),
    (_MLP + r"(?:2|3|fc2|linear2|c_proj|down)" + _ENDS, r"mlp.2.\1"),
    (r"C|c|latents?|basis", "C"),
)


def canonical_name(name: str) -> str | None:
    """The handout's name for a tensor of somebody's file; None where its role is not plain."""
    while wrapper := next((w for w in WRAPPERS if name.startswith(w)), None):
        name = name.removeprefix(wrapper)
    for pattern, replacement in _TOP:
        if match := re.fullmatch(pattern, name):
            return match.expand(replacement)
    block = _BLOCK.fullmatch(name)
    if block is None:
        return None
    number, part, side, side_part = block.groups()
    prefix = f"blocks.{number}" if number is not None else f"{side}_block"
    for pattern, replacement in _PARTS:
        if match := re.fullmatch(pattern, part or side_part, re.IGNORECASE):
            found = f"{prefix}.{match.expand(replacement)}"
            return found if number is not None else found.replace(".attn.", ".cross_attn.")
    return None


def is_buffer(name: str) -> bool:
    """Masks and rotation tables: part of the file, but made from the shape and not trained."""
    return re.search(r"\.(?:\w*mask|tril|(?:rope|rotary)_(?:cache|table))$", name) is not None


def variant_of(state: Mapping[str, Tensor]) -> tuple[str, str]:
    """Which of the course's models a canonical state dict holds, and by what one sees it."""
    if "down_block.C" in state:
        return "perceiver", "it has a down_block with a basis C"
    if any(name.endswith(".attn.w2") for name in state):
        return "synthesizer", "its attention has w1, w2 and b2"
    if "pos_emb" not in state:
        return "rope", "it has no pos_emb"
    return "vanilla", "it has pos_emb, and keys and queries in every block"
