"""The grammar of an answer: what may stand in an expression, and nothing else.

    expression = number | name | expression.T | function(expression, ...)
               | -expression | expression (+ - * / ** @) expression | (expression)

Python's parser turns the text into a syntax tree; `_translate` copies the few allowed kinds of node
into our own frozen tree and refuses every other with its position. Nothing is ever compiled or
evaluated as Python. Length, depth, number of nodes, size of numbers and of exponents are bounded
before anything is computed, so that a hostile answer costs no more than an honest one.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
import warnings
from collections.abc import Collection
from dataclasses import dataclass

LONGEST = 400  # characters
DEEPEST = 40  # nested nodes
MOST = 150  # nodes
LARGEST = 1e15  # a number
STEEPEST = 64.0  # a written exponent
INVERSES = 4  # calls of inv, the one function that costs

FUNCTIONS = {  # name -> number of arguments
    "sqrt": 1,
    "exp": 1,
    "log": 1,
    "sin": 1,
    "cos": 1,
    "abs": 1,
    "norm": 1,
    "transpose": 1,
    "inv": 1,
    "eye": 1,
    "outer": 2,
    "dot": 2,
}
CONSTANTS = {"pi": math.pi, "e": math.e}
GREEK = {"α": "alpha", "β": "beta", "δ": "delta", "ε": "eps", "θ": "theta", "μ": "mu", "π": "pi"}
# What keyboards and documents have for two of them.
ALIKE = str.maketrans({"\u00b5": "μ", "\u03f5": "ε"})
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
    ast.MatMult: "@",
}
_ALLOWED = re.compile(r"[A-Za-z0-9_+\-*/@.(), αβδεθμπ]*")
# Two factors side by side, as on paper: "C k_a", "2 (k_a + k_b)", "2k_a", ")(".
_SIDE_BY_SIDE = re.compile(r"[\w).]\s+(?=[\w(])|(?<![\w.])\d+(?=[A-Za-z_])|\)(?=[\w(])")
_ADVICE = {
    "^": "write ** for a power, .T for the transpose",
    "·": "write * between numbers and @ between vectors and matrices",
    "×": "write * between numbers and @ between vectors and matrices",
    "−": "this is a typographical minus: write -",
    "=": "write only the right-hand side",
    "'": "write .T for the transpose",
    "ᵀ": "write .T for the transpose",
    "[": "an answer is one formula, without lists or indices",
    "{": "an answer is one formula, in plain text",
    "\\": "an answer is plain text, not LaTeX",
}


class Refused(Exception):
    """The expression is not of our grammar; `position` counts characters from 1."""

    def __init__(self, reason: str, position: int):
        super().__init__(f"{reason} (at character {position})")
        self.reason, self.position = reason, position


@dataclass(frozen=True, slots=True)
class Number:
    value: float
    position: int


@dataclass(frozen=True, slots=True)
class Name:
    id: str
    position: int


@dataclass(frozen=True, slots=True)
class Call:
    """A function or operator of our own on already translated nodes."""

    operation: str
    arguments: tuple[Node, ...]
    position: int


Node = Number | Name | Call


@dataclass(frozen=True, slots=True)
class Expression:
    text: str
    root: Node
    names: frozenset[str]


def parse(text: str, known: Collection[str]) -> Expression:
    """The expression in `text` over the names `known`; raises `Refused`."""
    if len(text) > LONGEST:
        raise Refused(f"an answer has at most {LONGEST} characters", LONGEST + 1)
    if not text.strip():
        raise Refused("there is no expression", 1)
    text = text.translate(ALIKE)
    end = _ALLOWED.match(text)
    if end is not None and end.end() < len(text):
        character = text[end.end()]
        advice = _ADVICE.get(character)
        reason = f"{character!r} may not stand in an answer"
        raise Refused(f"{reason}: {advice}" if advice else reason, end.end() + 1)
    start = len(text) - len(text.lstrip())
    body = text.strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(body, mode="eval")
    except SyntaxError as error:
        # An unfinished formula is reported at place 0 of a line that is not there.
        column = min(error.offset or len(body), len(body))
        beside = _SIDE_BY_SIDE.search(body)
        if beside is not None:
            reason = "there is no sign between two factors: write * (or @) for a product"
            raise Refused(reason, start + beside.end() + 1) from None
        raise Refused("this is not a formula", start + column) from None
    except (ValueError, MemoryError, RecursionError):
        raise Refused("this is not a formula", start + 1) from None
    translator = _Translator(body, start, known)
    root = translator.translate(tree.body, 1)
    return Expression(text, root, frozenset(translator.names))


class _Translator:
    def __init__(self, text: str, start: int, known: Collection[str]):
        self.bytes, self.start, self.known = text.encode(), start, known
        self.nodes, self.inverses = 0, 0
        self.names: set[str] = set()

    def position(self, node: ast.expr) -> int:
        # ast counts bytes of UTF-8, a reader counts characters.
        return self.start + len(self.bytes[: node.col_offset].decode(errors="ignore")) + 1

    def translate(self, node: ast.expr, depth: int) -> Node:
        position = self.position(node)
        self.nodes += 1
        if self.nodes > MOST:
            raise Refused(f"an answer has at most {MOST} operations and names", position)
        if depth > DEEPEST:
            raise Refused(f"an answer is nested at most {DEEPEST} deep", position)
        if isinstance(node, ast.Constant):
            return self._number(node, position)
        if isinstance(node, ast.Name):
            return self._name(node.id, position)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            operand = self.translate(node.operand, depth + 1)
            return (
                Call("negative", (operand,), position) if isinstance(node.op, ast.USub) else operand
            )
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            left = self.translate(node.left, depth + 1)
            right = self.translate(node.right, depth + 1)
            if isinstance(node.op, ast.Pow):
                self._exponent(right)
            return Call(OPERATORS[type(node.op)], (left, right), position)
        if isinstance(node, ast.Attribute):
            if node.attr != "T":
                raise Refused(f".{node.attr} may not stand in an answer, only .T", position)
            return Call("transpose", (self.translate(node.value, depth + 1),), position)
        if isinstance(node, ast.Call):
            return self._call(node, position, depth)
        raise Refused("only numbers, names, + - * / ** @ .T and functions are allowed", position)

    def _number(self, node: ast.Constant, position: int) -> Number:
        if not isinstance(node.value, int | float) or isinstance(node.value, bool):
            raise Refused("only plain numbers are allowed", position)
        try:
            value = float(node.value)
        except OverflowError:
            value = math.inf
        if not value <= LARGEST:
            raise Refused(f"numbers go up to {LARGEST:g}", position)
        return Number(value, position)

    def _name(self, name: str, position: int) -> Name:
        plain = "".join(GREEK.get(letter, letter) for letter in name)
        if plain not in self.known and plain not in CONSTANTS:
            if plain in FUNCTIONS:
                raise Refused(f"{plain} is a function: write {plain}(...)", position)
            near = difflib.get_close_matches(plain, [*self.known, *CONSTANTS], 1, 0.5)
            guess = f"did you mean {near[0]}?" if near else f"known here: {', '.join(self.known)}"
            raise Refused(f"{plain} is not known here; {guess}", position)
        self.names.add(plain)
        return Name(plain, position)

    def _exponent(self, node: Node) -> None:
        while isinstance(node, Call) and node.operation == "negative":
            node = node.arguments[0]
        if isinstance(node, Number) and node.value > STEEPEST:
            raise Refused(f"exponents go up to {STEEPEST:g}", node.position)

    def _call(self, node: ast.Call, position: int, depth: int) -> Call:
        if not isinstance(node.func, ast.Name):
            reason = "only the known functions can be called: write * (or @) for a product"
            raise Refused(reason, position)
        name = node.func.id
        if name not in FUNCTIONS:
            if name in self.known:
                raise Refused(f"{name} is not a function: write * for a product", position)
            near = difflib.get_close_matches(name, FUNCTIONS, 1, 0.5)
            guess = f"did you mean {near[0]}?" if near else f"known: {', '.join(FUNCTIONS)}"
            raise Refused(f"there is no function {name}; {guess}", position)
        if node.keywords or len(node.args) != FUNCTIONS[name]:
            count = FUNCTIONS[name]
            raise Refused(f"{name} takes {count} argument{'s' * (count > 1)}", position)
        if name == "inv":
            self.inverses += 1
            if self.inverses > INVERSES:
                raise Refused(f"inv may stand in an answer {INVERSES} times at most", position)
        return Call(name, tuple(self.translate(each, depth + 1) for each in node.args), position)
