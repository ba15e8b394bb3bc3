"""Every written answer of the documents, right or wrong, in several spellings."""

from __future__ import annotations

import pytest

from whence.lab.claims import CLAIMS, generator_for
from whence.lab.grader.grade import judge_part
from whence.lab.grader.parts import PARTS, VERSIONS

V = "(u_b @ u_b.T - outer(u_c, u_c)) / beta**2"

RIGHT = [
    ("copy", ["C*k_j"]),
    ("copy", ["2*C*k_j/norm(k_j)"]),
    ("copy", ["100*k_j"]),
    ("copy", ["1e11*k_j"]),
    ("copy", ["1e15*k_j"]),
    ("average", ["1e12*(k_a + k_b)"]),
    ("average", ["log(100*n)*(k_a + k_b)"]),
    ("average", ["log(50*n)*(k_a + k_b)"]),
    ("average", ["3*n*(k_a + k_b)"]),
    ("average", ["0.5*log(C)*(k_a + k_b)"]),
    ("single", ["C*(\u00b5_a + \u00b5_b)"]),
    ("linformer_time", ["T*m*d + T*d**2"]),
    ("vanilla_time", ["L*(l**2*d + l*d**2)"]),
    ("gap", ["log((n-1)/delta)"]),
    ("gap", ["log(n - 1) + log(1/delta)"]),
    ("gap", ["log((n-1)*(1-delta)/delta)"]),
    ("select", ["A @ A.T"]),
    ("select", ["I - B @ B.T"]),
    ("select", ["eye(d) - B @ inv(B.T @ B) @ B.T"]),
    ("select", ["A @ transpose(A)"]),
    ("average", ["C*(k_a + k_b)"]),
    ("average", ["C*k_a + C*k_b"]),
    ("average", ["(k_b + k_a) * C**2 / 2"]),
    ("average", ["log(C) * (k_a + k_b)"]),
    ("average", ["exp(C) * (k_a + k_b)"]),
    ("single", ["C*(mu_a + mu_b)"]),
    ("single", ["(mu_a + mu_b) / alpha**0.25"]),
    ("swing", ["1/(1 + exp((1 - eps)*C))"]),
    ("swing", ["exp(eps*C) / (exp(eps*C) + exp(C))"]),
    ("swing", ["1/(1 + e**((eps_b - eps_a)*C))"]),
    ("swing", ["exp(eps*C) / (exp(eps*C) + exp(C) + n - 2)"]),
    ("swing", ["1/(1+exp((1-ε)*C))"]),
    ("two", ["C*mu_a", "C*mu_b"]),
    ("two", ["C*mu_b", "C*mu_a"]),
    ("two", ["C*(mu_a - mu_b)", "C*(mu_b - mu_a)"]),
    ("itself", ["u_a"]),
    ("added", ["u_a + u_d"]),
    ("kqv", [V, "I", "outer(u_d, u_a) + outer(u_c, u_d)"]),
    ("kqv", [V, "I", "u_d @ u_a.T + u_c @ u_d.T"]),
    (
        "kqv",
        [
            V,
            "outer(u_a, u_b) + outer(u_a, u_d) - outer(u_c, u_c)",
            "outer(u_a, u_a) - outer(u_c, u_b) + outer(u_c, u_a)",
        ],
    ),
    ("kqv", [V, "I", "beta**2 * (outer(u_d, u_a) + outer(u_c, u_d))"]),
    ("permuted_scores", ["P @ S @ P.T"]),
    ("permuted_output", ["P @ Z"]),
    ("distance", ["2 - 2*cos((t - s)*theta)"]),
    ("distance", ["(sin(t*theta)-sin(s*theta))**2 + (cos(t*theta)-cos(s*theta))**2"]),
    ("distance", ["4*sin((t-s)*theta/2)**2"]),
    ("rotation", ["x1*cos(t*theta) - x2*sin(t*theta)"]),
    ("rotation_second", ["x1*sin(t*theta) + x2*cos(t*theta)"]),
    ("relative", ["(q1*k1 + q2*k2)*cos((t-s)*theta) + (q1*k2 - q2*k1)*sin((t-s)*theta)"]),
    ("vanilla_time", ["L*l**2"]),
    ("vanilla_time", ["L*l**2*d"]),
    ("perceiver_time", ["l*m + (L-2)*m**2"]),
    ("perceiver_time", ["2*l*m*d + L*m**2*d"]),
    ("linformer_time", ["T*m"]),
    ("bigbird_time", ["T*(g + w + r)"]),
    ("performer_time", ["T*m*d"]),
]

WRONG = [  # part, answers, what it behaves like
    ("copy", ["k_j"], "flat"),
    ("copy", ["-C*k_j"], "away"),
    ("gap", ["n/delta"], "too large"),
    ("gap", ["log(1/delta)"], "too small"),
    ("gap", ["log(n)"], "too small"),
    ("select", ["A.T"], "coordinates"),
    ("select", ["transpose(A)"], "coordinates"),
    ("select", ["inv(A.T @ A) @ A.T"], "coordinates"),
    ("select", ["A.T @ (I - B @ B.T)"], "coordinates"),
    ("select", ["A"], "shape"),
    ("select", ["B @ B.T"], ""),
    ("select", ["I"], ""),
    ("average", ["k_a + k_b"], "flat"),
    ("average", ["(k_a + k_b)/2"], "flat"),
    ("average", ["C*k_a"], "one key"),
    ("average", ["C*(k_a + 2*k_b)"], "one key"),
    ("average", ["-C*(k_a + k_b)"], "away"),
    ("average", ["k_a @ k_b.T"], "shape"),
    ("single", ["mu_a + mu_b"], "flat"),
    ("single", ["(mu_a + mu_b)/sqrt(alpha)"], "swing"),
    ("swing", ["1/exp((eps_a - eps_b)*C)"], "above one"),
    ("swing", ["exp((eps_b - eps_a)*C)"], "above one"),
    ("swing", ["e**(C - C*eps)"], "above one"),
    ("swing", ["1/(1 + exp((eps - 1)*C))"], "weight of b"),
    ("swing", ["1/2"], "no eps"),
    ("two", ["C*(mu_a + mu_b)", "C*(mu_a + mu_b)"], "equal heads"),
    ("two", ["C*mu_a + C*mu_b", "(mu_b + mu_a)*C"], "equal heads"),
    ("two", ["C*(mu_a + mu_b)", "2*C*(mu_a + mu_b)"], "swing"),
    ("two", ["mu_a", "mu_b"], "flat"),
    ("two", ["2*mu_a", "2*mu_b"], "flat"),
    ("two", ["C*mu_a", "C*mu_a"], "equal heads"),
    ("itself", ["u_b"], ""),
    ("added", ["u_b"], "hoped for b"),
    ("added", ["u_a"], ""),
    ("kqv", [V, "I", "I"], "elsewhere"),
    ("kqv", ["I", "I", "outer(u_d, u_a) + outer(u_c, u_d)"], "elsewhere"),
    ("kqv", [V, "I", "(outer(u_d, u_a) + outer(u_c, u_d))/beta**4"], "flat"),
    ("permuted_scores", ["P @ S"], ""),
    ("permuted_output", ["Z"], ""),
    ("distance", ["sqrt(2 - 2*cos((t-s)*theta))"], "other way"),
    ("rotation", ["x1*cos(t*theta) + x2*sin(t*theta)"], "other way"),
    ("rotation_second", ["x2*cos(t*theta) - x1*sin(t*theta)"], "other way"),
    ("relative", ["(q1*k1 + q2*k2)*cos((t+s)*theta)"], ""),
    ("perceiver_time", ["l*m"], "too small"),
    ("perceiver_time", ["m**2*(L-2)"], "too small"),
    ("vanilla_time", ["L*l"], "too small"),
    ("linformer_time", ["T"], "too small"),
    ("bigbird_time", ["T*(g + w)"], "too small"),
    ("performer_time", ["exp(T)"], "no count"),
]

# The written answers behind the claims: the grader and the claim must say the same of them.
WRITTEN = [
    ("copy-2", "copy", ["C*k_j"], "right"),
    ("copy-2", "gap", ["log((n-1)/delta)"], "right"),
    ("avg-1", "select", ["A @ A.T"], "right"),
    ("avg-2", "select", ["A.T"], "wrong"),
    ("avg-3", "average", ["C*(k_a + k_b)"], "right"),
    ("one-1", "single", ["C*(mu_a + mu_b)"], "right"),
    ("one-2", "swing", ["1/(1 + exp((1 - eps)*C))"], "right"),
    ("one-3", "swing", ["1/exp((eps_a - eps_b)*C)"], "wrong"),
    ("two-1", "two", ["C*mu_a", "C*mu_b"], "right"),
    ("two-2", "two", ["C*(mu_a + mu_b)", "C*(mu_a + mu_b)"], "wrong"),
    ("two-3", "two", ["mu_a", "mu_b"], "wrong"),
    ("kqv-1", "itself", ["u_a"], "right"),
    ("kqv-2", "added", ["u_a + u_d"], "right"),
    ("kqv-3", "kqv", [V, "I", "u_d @ u_a.T + u_c @ u_d.T"], "right"),
    (
        "kqv-4",
        "kqv",
        [V, "u_a@u_b.T + u_a@u_d.T - u_c@u_c.T", "u_a@u_a.T - u_c@u_b.T + u_c@u_a.T"],
        "right",
    ),
    ("perm-1", "permuted_output", ["P @ Z"], "right"),
    ("rope-1", "rotation", ["x1*cos(t*theta) - x2*sin(t*theta)"], "right"),
]

CONDITIONAL = [
    ("average", ["10*(k_a + k_b)"], "n is at most about 44"),
    ("average", ["n*(k_a + k_b)"], "n is at least 8"),
    ("two", ["20*mu_a", "20*mu_b"], "n is at most about"),
    ("average", ["(10 + 1/C)*(k_a + k_b)"], "n is at most about 44"),
    ("average", ["10*(k_a + k_b) + 0*C*k_a"], "n is at most about 44"),
    ("single", ["10*(mu_a + mu_b)*(1 + alpha)"], "n is at most about 44"),
    ("average", ["1000/n*(k_a + k_b)"], "does not grow with n as it has to"),
    ("average", ["(60 - n)*(k_a + k_b)"], "does not grow with n as it has to"),
    ("select", ["A @ A.T / m"], "m = 1"),
    ("select", ["A @ A.T @ A @ A.T / m**3"], "m = 1"),
    ("permuted_scores", ["P.T @ S @ P"], "P is its own inverse"),
    ("permuted_output", ["P.T @ Z"], "P is its own inverse"),
    ("perceiver_time", ["L*l*m"], "read as an upper bound"),
    ("linformer_time", ["T**2"], "read as an upper bound"),
    ("gap", ["2*log((n-1)/delta)"], "any gap that suffices"),
]


def judged(part, texts):
    return judge_part(part, dict(zip(PARTS[part].answers, texts, strict=True)))


@pytest.mark.parametrize(("part", "texts"), RIGHT)
def test_right_answers(part, texts):
    finding = judged(part, texts)
    assert finding.outcome == "right", finding
    assert finding.instances >= 1000


@pytest.mark.parametrize(("part", "texts", "pattern"), WRONG)
def test_wrong_answers_come_with_a_counter_example(part, texts, pattern):
    finding = judged(part, texts)
    assert finding.outcome == "wrong", finding
    assert finding.pattern == pattern, finding
    assert finding.shown and finding.hint
    assert finding.example
    assert finding.instances >= 1000


@pytest.mark.parametrize(("part", "texts", "condition"), CONDITIONAL)
def test_answers_that_are_right_under_a_condition(part, texts, condition):
    finding = judged(part, texts)
    assert finding.outcome == "right if", finding
    assert condition in finding.condition


@pytest.mark.parametrize(("claim", "part", "texts", "outcome"), WRITTEN)
def test_grader_and_claims_agree_about_the_written_answers(claim, part, texts, outcome):
    finding = judged(part, texts)
    assert finding.outcome == outcome and finding.instances >= 1000
    assert outcome == "right" or finding.example
    verdict = CLAIMS[claim].check(generator_for(claim, 0))
    assert verdict.holds == (outcome == "right") and verdict.samples >= 100


def test_a_hint_does_not_give_the_answer_away():
    for part, texts, _ in WRONG:
        hint = judged(part, texts).hint.replace(" ", "")
        for other, right in RIGHT:
            if other == part:
                for text in right:
                    assert len(text) < 4 or text.replace(" ", "") not in hint


def test_counter_examples_are_small():
    assert judged("two", ["mu_a", "mu_b"]).example == "n = 3, d = 3"
    assert judged("select", ["A.T"]).example == "d = 2, m = 1, p = 1"
    assert judged("average", ["C*k_a"]).example == "n = 3, d = 3, C = 12"
    assert "k_a of length 2" in judged("two", ["C*(mu_a+mu_b)", "C*(mu_a+mu_b)"]).example


def test_sizes_that_do_not_fit_are_told_with_their_place():
    finding = judged("average", ["k_a + 1"])
    assert finding.outcome == "wrong"
    assert "at character 1" in finding.shown


def test_every_version_asks_known_parts_and_every_part_is_asked():
    asked = {part for parts in VERSIONS.values() for part in parts}
    assert asked == set(PARTS)
