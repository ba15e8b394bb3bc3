"""Throws expressions at the grader and watches: no crash, no hang, nothing executed, no memory
eaten.

    python tests/lab/fuzz_grader.py 100000 [seed]

Three kinds: formulas of our own grammar over a part's names, hostile Python, and noise. An audit
hook stops the run if judging ever executes code, imports, opens a file or starts a process.
"""

from __future__ import annotations

import random
import resource
import sys
import time
import unicodedata  # noqa: F401 - Python's own tokenizer loads it for names such as μ
import warnings
from collections import Counter

from whence.lab.grader.finding import Wrong
from whence.lab.grader.grade import judge_part
from whence.lab.grader.grammar import FUNCTIONS
from whence.lab.grader.parts import PARTS, Part

HOSTILE = [
    "__import__('os').system('touch /tmp/owned')",
    "().__class__.__bases__[0].__subclasses__()",
    "[x for x in range(10**9)]",
    "(lambda: 1)()",
    "(lambda f: f(f))(lambda f: f(f))",
    "9**9**9**9",
    "9**9**9**9**9**9*C",
    "10**64**64",
    "exp(exp(exp(exp(C))))",
    "eye(10**9)",
    "eye(1e15)",
    "eye(-1)",
    "eye(eye(3))",
    "exit()",
    "open('/etc/passwd').read()",
    "eval('1')",
    "exec('1')",
    "C.__class__",
    "C.T.__class__",
    "A.T.T.T.T.real",
    "print(C)",
    "f'{C}'",
    "(x:=5)",
    "C if C else C",
    "C and C",
    "not C",
    "~C",
    "C<C",
    "*C",
    "C[0]",
    "{C}",
    "yield C",
    "await C",
    "True",
    "None",
    "...",
    "1j",
    "'a'*10**9",
    "b''",
    "1_000",
    "0x7f",
    "0" * 300,
    "1" * 399,
    "1e308*1e308",
    "1/0",
    "0/0",
    "0**-1",
    "(-1)**0.5",
    "log(0)",
    "log(-1)",
    "sqrt(-1)",
    "inv(I-I)",
    "inv(inv(inv(inv(I))))",
    "inv(inv(inv(inv(inv(I)))))",
    "inv(A@A.T)",
    "(" * 200 + "C" + ")" * 199,
    "(" * 190 + "C" + ")" * 190,
    "-" * 399 + "C",
    "C" + ".T" * 190,
    "+".join(["C"] * 200),
    "@".join(["I"] * 140),
    "sqrt(" * 60 + "C" + ")" * 60,
    "import os",
    "C;C",
    "C\nC",
    "C\x00C",
    "ｅｙｅ(3)",
    "\u202eC",
    "C #",
    "C\\\n",
    "",
    "   ",
    "\t",
    "C*" * 190,
    "outer(outer(C,C),C)",
    "dot(C)",
    "dot(C,C,C)",
    "sqrt(x=C)",
    "sqrt(*C)",
    "norm(**C)",
    "μ_a",
    "ε" * 100,
]
NOISE = "abcdkmnquvxCPQKVIMAB_0123456789+-*/@.(), ^=[]{}'\"\\:;<>!?#%&|~`$\n\t\x00éμε∑·🙂"
WATCHED = ("exec", "import", "open", "os.", "subprocess.", "socket.", "shutil.", "ctypes.")


class Watch:
    """An audit hook cannot be removed, so it is switched."""

    def __init__(self) -> None:
        self.on, self.seen = False, ""
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.on and event.startswith(WATCHED):
            self.seen = f"{event} {arguments!r}"[:200]


def formula(chance: random.Random, part: Part, depth: int) -> str:
    """A random expression of our grammar; most do not make sense, some do."""
    kind = chance.random()
    if depth == 0 or kind < 0.25:
        if chance.random() < 0.75:
            return chance.choice(part.names)
        return chance.choice(["0", "1", "2", "0.5", "64", "1e15", "pi", "e", "1e-300", "3.5"])
    if kind < 0.7:
        operator = chance.choice(["+", "-", "*", "*", "/", "**", "@", "@"])
        left, right = formula(chance, part, depth - 1), formula(chance, part, depth - 1)
        return f"({left} {operator} {right})"
    if kind < 0.8:
        return f"{formula(chance, part, depth - 1)}.T"
    if kind < 0.87:
        return f"-{formula(chance, part, depth - 1)}"
    name = chance.choice(list(FUNCTIONS))
    return f"{name}({', '.join(formula(chance, part, depth - 1) for _ in range(FUNCTIONS[name]))})"


def mutated(chance: random.Random, text: str) -> str:
    letters = list(text)
    for _ in range(chance.randint(1, 4)):
        place = chance.randint(0, len(letters))
        action = chance.random()
        if action < 0.4:
            letters.insert(place, chance.choice(NOISE))
        elif letters and action < 0.8:
            letters[place % len(letters)] = chance.choice(NOISE)
        elif letters:
            del letters[place % len(letters)]
    return "".join(letters)


def expression(chance: random.Random, part: Part) -> str:
    kind = chance.random()
    if kind < 0.5:
        return formula(chance, part, chance.randint(0, 4))
    if kind < 0.65:
        return mutated(chance, formula(chance, part, chance.randint(0, 4)))
    if kind < 0.75:
        return chance.choice(HOSTILE)
    if kind < 0.9:
        return mutated(chance, chance.choice(HOSTILE))
    return "".join(chance.choice(NOISE) for _ in range(chance.randint(0, 60)))


def run(count: int, seed: int = 0, progress: bool = False) -> dict[str, object]:
    """Judges `count` expressions; raises at the first that crashes, executes or takes too long."""
    chance, watch = random.Random(seed), Watch()
    outcomes: Counter[str] = Counter()
    for name in PARTS:  # the instances are drawn once; that is not what is measured
        judge_part(name, {key: "1" for key in PARTS[name].answers})
    warnings.simplefilter("error")  # a warning on a student's terminal is a fault as well
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slowest, slowest_text, start, done = 0.0, "", time.perf_counter(), 0
    while done < count:
        part = chance.choice(list(PARTS.values()))
        answers = {key: expression(chance, part) for key in part.answers}
        watch.on = True
        began = time.perf_counter()
        try:
            finding = judge_part(part.id, answers)
        except Wrong:  # pragma: no cover - judge_part catches it
            raise AssertionError(f"{part.id}: {answers!r} escaped") from None
        except BaseException as error:
            raise AssertionError(f"{part.id}: {answers!r} crashed: {error!r}") from error
        took = time.perf_counter() - began
        watch.on = False
        if watch.seen:
            raise AssertionError(f"{part.id}: {answers!r} caused {watch.seen}")
        if took > slowest:
            slowest, slowest_text = took, f"{part.id}: {answers!r}"
        if took > 5:
            raise AssertionError(f"{part.id}: {answers!r} took {took:.1f} s")
        outcomes[finding.outcome] += 1
        done += len(answers)
        if progress and done // 10000 != (done - len(answers)) // 10000:
            print(f"{done} {dict(outcomes)}", file=sys.stderr)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "expressions": done,
        "seconds": round(time.perf_counter() - start, 1),
        "outcomes": dict(outcomes),
        "slowest": round(slowest, 3),
        "slowest_text": slowest_text[:300],
        "memory_grown_megabytes": round((after - before) / 1024, 1),
    }


if __name__ == "__main__":
    print(run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, progress=True))
