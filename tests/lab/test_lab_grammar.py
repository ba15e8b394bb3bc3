"""The grammar refuses what it does not know, with the place, and never executes anything."""

from __future__ import annotations

import ast

import numpy as np
import pytest
from fuzz_grader import HOSTILE, run
from hypothesis import given
from hypothesis import strategies as st

from whence.lab.grader.grammar import DEEPEST, LONGEST, MOST, Refused, parse
from whence.lab.grader.values import evaluate

NAMES = ["C", "k_a", "A", "n", "mu_a", "I"]


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("C + __import__", 5, "not known"),
        ("C + k_a.shape", 5, ".shape"),
        ("C ^ 2", 3, "write **"),
        ("q = C", 3, "right-hand side"),
        ("C * k_b", 5, "did you mean k_a"),
        ("sqrtt(C)", 1, "did you mean sqrt"),
        ("sqrt(C, C)", 1, "1 argument"),
        ("outer(C)", 1, "2 arguments"),
        ("C(2)", 1, "not a function"),
        ("sqrt + 1", 1, "is a function"),
        ("C if n else A", 1, "only numbers"),
        ("C**100", 4, "exponents"),
        ("C**-100", 5, "exponents"),
        ("1e16", 1, "numbers go up"),
        ("2j", 1, "plain numbers"),
        ("True", 1, "plain numbers"),
        ("C +", 3, "not a formula"),
        ("C n", 3, "no sign between two factors"),
        ("2C + n", 2, "no sign between two factors"),
        ("(C + n)(C - n)", 1, "write * (or @) for a product"),
        ("A^T", 2, ".T for the transpose"),
        ("  C + B", 7, "not known"),
        ("", 1, "no expression"),
        ("μ_a + ß", 7, "may not stand"),
        ("μ_a + C[0]", 8, "without lists"),
        ("C, n", 1, "only numbers"),
        ("A.T()", 1, "known functions"),
        ("A.T.real", 1, ".real"),
        ("C < n", 3, "may not stand"),
    ],
)
def test_refusals_say_what_and_where(text, position, reason):
    with pytest.raises(Refused) as caught:
        parse(text, NAMES)
    assert caught.value.position == position, caught.value
    assert reason in caught.value.reason


def test_bounds():
    with pytest.raises(Refused, match="characters"):
        parse("C+" * LONGEST + "C", NAMES)
    with pytest.raises(Refused, match=r"nested|operations"):
        parse("-" * (DEEPEST + 5) + "C", NAMES)
    with pytest.raises(Refused, match="operations"):
        parse("+".join(["(C+C+C+C+C+C+C+C)"] * (MOST // 8)), NAMES)
    with pytest.raises(Refused, match="inv may stand"):
        parse("+".join(["inv(A)"] * 5), NAMES)


def test_hostile_text_is_refused_or_harmless():
    for text in HOSTILE:
        try:
            expression = parse(text, NAMES)
        except Refused:
            continue
        assert expression.names <= {*NAMES, "pi", "e"}


@given(st.text(max_size=80))
def test_any_text_is_parsed_or_refused(text):
    try:
        parse(text, NAMES)
    except Refused as refused:
        assert 1 <= refused.position <= len(text) + 1


NUMBERS = st.floats(0.5, 3).map(lambda value: f"{value:.3f}")
FORMULAS = st.recursive(
    st.one_of(NUMBERS, st.sampled_from(["C", "n"])),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda text: f"-{text}"),
        inner.map(lambda text: f"exp({text})"),
    ),
    max_leaves=8,
)


@given(FORMULAS)
def test_values_agree_with_python_arithmetic(text):
    """Our walk over the tree against Python's own arithmetic on the same tree."""
    values = {"C": 2.0, "n": 3.0}

    def walk(node):
        if isinstance(node, ast.Constant):
            return np.float64(node.value)
        if isinstance(node, ast.Name):
            return np.float64(values[node.id])
        if isinstance(node, ast.UnaryOp):
            return -walk(node.operand)
        if isinstance(node, ast.Call):
            return np.exp(walk(node.args[0]))
        left, right = walk(node.left), walk(node.right)
        kind = type(node.op)
        if kind is ast.Add:
            return left + right
        if kind is ast.Sub:
            return left - right
        return left * right if kind is ast.Mult else left / right

    with np.errstate(all="ignore"):
        expected = walk(ast.parse(text, mode="eval").body)
    names = {name: np.full((1, 1, 1), value) for name, value in values.items()}
    np.testing.assert_array_equal(evaluate(parse(text, ["C", "n"]), names)[0, 0, 0], expected)


def test_fuzz_briefly():
    told = run(3000, seed=7)
    assert told["expressions"] >= 3000
    assert told["memory_grown_megabytes"] < 200


@pytest.mark.slow
def test_fuzz_a_hundred_thousand():
    told = run(100_000, seed=11)
    assert told["slowest"] < 2
    assert told["memory_grown_megabytes"] < 300
