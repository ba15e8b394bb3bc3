"""The parts of the written assignment, in our own words, and which year asks which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from whence.lab.grader import formulas, matrices, pointing
from whence.lab.grader.finding import Answers, Finding
from whence.lab.grader.formulas import Condition, Formula, Mistake
from whence.lab.grader.growth import Growth
from whence.lab.grader.pointing import Pointing
from whence.lab.grader.values import Array

Judge = Callable[[Answers], Finding]


@dataclass(frozen=True, slots=True)
class Part:
    """One question: the keys of its answer, the names that may stand in it, and its judge."""

    id: str
    question: str
    answers: tuple[str, ...]
    names: tuple[str, ...]
    judge: Judge


_AVERAGE = (0.5, 0.5)
_OTHER_WAY = Mistake(
    "other way",
    formulas.is_other,
    "Try t = 1 and a small angle: which way does yours turn, or what is squared in the question?",
)
_TURN = "Multiply (x1 + i x2) by cos + i sin and collect what has an i and what has none."
_SWAPS = Condition("P is its own inverse, such as a swap of two words", formulas.own_inverse)


def _perceiver(sizes: dict[str, Array]) -> Array:
    return sizes["l"] * sizes["m"] + (sizes["L"] - 2) * sizes["m"] ** 2


def _vanilla(sizes: dict[str, Array]) -> Array:
    return sizes["L"] * sizes["l"] ** 2


def _latents_are_fewer(levels: dict[str, Array]) -> None:
    levels["l"][:] = np.maximum(levels["l"], levels["m"])


def _anything(levels: dict[str, Array]) -> None:
    return None


def _shorter(*names: str) -> Callable[[dict[str, Array]], None]:
    """T is at least as large as each of these."""

    def limits(levels: dict[str, Array]) -> None:
        for name in names:
            levels["T"][:] = np.maximum(levels["T"], levels[name])

    return limits


_ALL = [
    Part(
        "copy",
        "n orthonormal keys; k_j is one of them. Give a query q for which the output c is nearly "
        "v_j. C is a number that you may make as large as you like.",
        ("q",),
        ("k_j", "C", "n", "d"),
        Pointing(("q",), pointing.exact_keys, (1.0,)),
    ),
    Part(
        "gap",
        "How far must k_j.q be ahead of every other k_i.q so that the n - 1 other keys together "
        "keep at most delta of the weight, however they stand? Give that distance.",
        ("gap",),
        ("n", "delta"),
        formulas.gap,
    ),
    Part(
        "select",
        "v_a lies in the span of the m orthonormal columns of A, v_b in that of the p orthonormal "
        "columns of B, all in d dimensions, and the two spans are orthogonal. Give a matrix M "
        "that takes v_a + v_b to v_a.",
        ("M",),
        ("A", "B", "I", "d", "m", "p"),
        matrices.select,
    ),
    Part(
        "average",
        "n orthonormal keys. Give a query q for which the output c is nearly (v_a + v_b)/2. C is "
        "a number that you may make as large as you like.",
        ("q",),
        ("k_a", "k_b", "C", "n", "d"),
        Pointing(("q",), pointing.exact_keys, _AVERAGE),
    ),
    Part(
        "single",
        "Now the keys are random: k_i is normal around mu_i with covariance alpha I, alpha "
        "vanishingly small, the mu_i orthonormal and known. Give a query q for which c is nearly "
        "(v_a + v_b)/2.",
        ("q",),
        ("mu_a", "mu_b", "C", "alpha", "n", "d"),
        Pointing(("q",), pointing.noisy_keys, _AVERAGE),
    ),
    Part(
        "swing",
        "Now k_a keeps its direction but its length eps varies from draw to draw (k_a is nearly "
        "eps mu_a; the others stay). With q = C(mu_a + mu_b) and C large, what is the weight a_a? "
        "You may call the lengths of k_a and k_b eps_a and eps_b; eps_b is 1.",
        ("a_a",),
        ("eps", "eps_a", "eps_b", "C", "n"),
        Formula(
            "a_a",
            formulas.lengths,
            ("eps", "C"),
            "Write down the two scores that matter, then the softmax over them.",
            (
                Mistake("above one", formulas.above_one, "Can a weight be more than one?"),
                Mistake(
                    "weight of b",
                    formulas.weight_of_b,
                    "When k_a gets longer, should its weight rise or fall? See what yours does.",
                ),
                Mistake(
                    "no eps",
                    formulas.without_eps,
                    "Yours does not depend on the length of k_a; which score does?",
                ),
            ),
        ),
    ),
    Part(
        "two",
        "Two heads with queries q1 and q2 look at the same keys; the output is (c_1 + c_2)/2. "
        "Give q1 and q2 for which it is nearly (v_a + v_b)/2, and stays so when the length of k_a "
        "varies as in the part before.",
        ("q1", "q2"),
        ("mu_a", "mu_b", "C", "alpha", "n", "d"),
        Pointing(("q1", "q2"), pointing.stretched_keys, _AVERAGE),
    ),
    Part(
        "itself",
        "u_a, u_b, u_c, u_d are orthogonal and of length beta, beta large. Self-attention with "
        "K = Q = V = I over x_1 = u_d + u_b, x_2 = u_a, x_3 = u_c + u_b: what is c_2, nearly?",
        ("c_2",),
        ("u_a", "u_b", "u_c", "u_d", "beta", "d"),
        Formula(
            "c_2",
            formulas.words,
            ("beta",),
            "Work out the three scores of x_2: which word wins?",
        ),
    ),
    Part(
        "added",
        "The same, but u_d is added to the second word: x_2 = u_a + u_d. What is c_2 now, nearly?",
        ("c_2",),
        ("u_a", "u_b", "u_c", "u_d", "beta", "d"),
        Formula(
            "c_2",
            formulas.words_added,
            ("beta",),
            "Work out the three scores of the new x_2: which word wins?",
            (
                Mistake(
                    "hoped for b",
                    formulas.hoped_for_b,
                    "c_2 is a mixture of x_1, x_2 and x_3. In which of them does u_b stand alone?",
                ),
            ),
        ),
    ),
    Part(
        "kqv",
        "The same three words, x_2 = u_a again. Give d x d matrices V, K and Q for which c_2 is "
        "nearly u_b and c_1 is nearly u_b - u_c. I is the identity; outer(u, v) is u v^T.",
        ("V", "K", "Q"),
        ("u_a", "u_b", "u_c", "u_d", "beta", "I", "d"),
        matrices.key_query_value,
    ),
    Part(
        "permuted_scores",
        "The rows of X are T words and P is a permutation matrix. S is the T x T matrix of scores "
        "of self-attention (without positions) over X. What is the matrix of scores over P X?",
        ("scores",),
        ("P", "S", "X", "Z", "T", "d"),
        Formula(
            "scores",
            formulas.permuted_scores,
            (),
            "Swap two words: which rows change places, and which columns?",
            conditions=(_SWAPS,),
        ),
    ),
    Part(
        "permuted_output",
        "Z is the output of that layer for X. What is its output for P X?",
        ("output",),
        ("P", "S", "X", "Z", "T", "d"),
        Formula(
            "output",
            formulas.permuted_outputs,
            (),
            "Swap two words: what happens to the two rows of the output?",
            conditions=(_SWAPS,),
        ),
    ),
    Part(
        "distance",
        "A pair of a sinusoidal position embedding is (sin t theta, cos t theta). What is the "
        "squared distance between the pairs of positions t and s?",
        ("squared",),
        ("t", "s", "theta"),
        Formula(
            "squared",
            lambda: formulas.rotations("distance"),
            ("t", "s", "theta"),
            "Both pairs lie on a circle; what is the angle between them?",
            (_OTHER_WAY,),
        ),
    ),
    Part(
        "rotation",
        "Rotary positions turn the pair (x1, x2) at position t by the angle t theta. What is the "
        "first number of the turned pair?",
        ("first",),
        ("x1", "x2", "t", "theta"),
        Formula(
            "first",
            lambda: formulas.rotations("first"),
            ("x1", "x2", "t", "theta"),
            _TURN,
            (_OTHER_WAY,),
        ),
    ),
    Part(
        "rotation_second",
        "And the second number?",
        ("second",),
        ("x1", "x2", "t", "theta"),
        Formula(
            "second",
            lambda: formulas.rotations("second"),
            ("x1", "x2", "t", "theta"),
            _TURN,
            (_OTHER_WAY,),
        ),
    ),
    Part(
        "relative",
        "The pair (q1, q2) stands at position t and (k1, k2) at position s; both are turned. What "
        "is their dot product? (It should show that only t - s matters.)",
        ("score",),
        ("q1", "q2", "k1", "k2", "t", "s", "theta"),
        Formula(
            "score",
            lambda: formulas.rotations("score"),
            ("q1", "q2", "k1", "k2", "t", "s", "theta"),
            "A rotation can be moved to the other side of a dot product. In which direction?",
            (_OTHER_WAY,),
        ),
    ),
    Part(
        "vanilla_time",
        "A model of L layers reads l positions; count only what attention multiplies, the width d "
        "being a constant. What is the order of its time? (Constant factors do not matter.)",
        ("time",),
        ("l", "m", "L", "d"),
        Growth("time", ("l", "L", "m"), _vanilla, _latents_are_fewer, ("d",)),
    ),
    Part(
        "perceiver_time",
        "The first layer now lets m learned vectors query the l positions, the last lets the l "
        "positions query the m vectors, and the L - 2 layers between work on m positions. The "
        "order of its time?",
        ("time",),
        ("l", "m", "L", "d"),
        Growth("time", ("l", "m", "L"), _perceiver, _latents_are_fewer, ("d",)),
    ),
    Part(
        "linformer_time",
        "Linformer projects the T keys and values of a layer to m of them. The order of a layer's "
        "time?",
        ("time",),
        ("T", "m", "d"),
        Growth("time", ("T", "m"), lambda z: z["T"] * z["m"], _shorter("m"), ("d",)),
    ),
    Part(
        "bigbird_time",
        "In BigBird each of T positions sees g global, w neighbouring and r random positions. The "
        "order of a layer's time?",
        ("time",),
        ("T", "g", "w", "r", "d"),
        Growth(
            "time",
            ("T", "g", "w", "r"),
            lambda z: z["T"] * (z["g"] + z["w"] + z["r"]),
            _shorter("g", "w", "r"),
            ("d",),
        ),
    ),
    Part(
        "performer_time",
        "The Performer replaces the softmax by m random features of queries and keys of width d. "
        "The order of a layer's time, d included?",
        ("time",),
        ("T", "m", "d"),
        Growth("time", ("T", "m", "d"), lambda z: z["T"] * z["m"] * z["d"], _anything),
    ),
]

PARTS: dict[str, Part] = {part.id: part for part in _ALL}

_CORE = ("copy", "average", "single", "swing", "two")
_SEPARATE = ("copy", "gap", "select", "average", "single", "swing", "two")
_POSITIONS = ("permuted_scores", "permuted_output", "distance")
_ROTARY = ("rotation", "rotation_second", "relative")
_PERCEIVER = ("vanilla_time", "perceiver_time")

VERSIONS: dict[str, tuple[str, ...]] = {
    "2021": (*_CORE, "itself", "added", "kqv"),
    "2022": _SEPARATE,
    "2023": (*_SEPARATE, *_PERCEIVER),
    "2024": (*_SEPARATE, *_POSITIONS, *_ROTARY, *_PERCEIVER),
    "2025": (*_SEPARATE, *_POSITIONS, *_ROTARY),
    "2026": (*_SEPARATE, *_POSITIONS, *_ROTARY),
    "reading": ("vanilla_time", "linformer_time", "bigbird_time", "performer_time"),
}
NEWEST = "2026"
