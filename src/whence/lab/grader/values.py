"""What an expression is worth, for many instances at once.

A value is a float64 array (N, rows, columns) or (1, rows, columns): a number is 1 x 1, a vector a
column. Sums need equal shapes and products must fit, as on paper: nothing is stretched silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whence.lab.grader.grammar import CONSTANTS, Call, Expression, Name, Node, Number

Array = NDArray[np.float64]
WIDEST = 64  # the largest identity that can be asked for


class Misfit(Exception):
    """Sizes that do not fit, such as a number added to a vector; `position` as in `Refused`."""

    def __init__(self, reason: str, position: int):
        super().__init__(f"{reason} (at character {position})")
        self.reason, self.position = reason, position


def evaluate(expression: Expression, names: Mapping[str, Array]) -> Array:
    """The value of the expression for each instance; not finite where it overflows or divides by
    0."""
    with np.errstate(all="ignore"):
        return _value(expression.root, names)


def number(value: float) -> Array:
    return np.full((1, 1, 1), float(value))


def shape(value: Array) -> tuple[int, int]:
    return value.shape[1], value.shape[2]


def told(value: Array) -> str:
    """A shape in words."""
    rows, columns = shape(value)
    if rows == columns == 1:
        return "a number"
    if columns == 1:
        return f"a column of {rows}"
    if rows == 1:
        return f"a row of {columns}"
    return f"a {rows} x {columns} matrix"


def _value(node: Node, names: Mapping[str, Array]) -> Array:
    if isinstance(node, Number):
        return number(node.value)
    if isinstance(node, Name):
        return names[node.id] if node.id in names else number(CONSTANTS[node.id])
    arguments = [_value(argument, names) for argument in node.arguments]
    if len(arguments) == 1:
        return _one(node, arguments[0])
    return _two(node, *arguments)


_SCALAR: dict[str, Any] = {
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "abs": np.abs,
}


def _one(node: Call, x: Array) -> Array:
    if node.operation == "negative":
        return -x
    if node.operation == "transpose":
        return x.transpose(0, 2, 1)
    if node.operation in _SCALAR:
        if shape(x) != (1, 1):
            raise Misfit(f"{node.operation} takes a number, not {told(x)}", node.position)
        result: Array = _SCALAR[node.operation](x)
        return result
    if node.operation == "norm":
        if 1 not in shape(x):
            raise Misfit(f"norm takes a vector, not {told(x)}", node.position)
        length: Array = np.sqrt((x * x).sum(axis=(1, 2), keepdims=True))
        return length
    if node.operation == "eye":
        return _identity(node, x)
    return _inverse(node, x)


def _identity(node: Call, x: Array) -> Array:
    size = float(x.flat[0])
    if shape(x) != (1, 1) or not bool((x == size).all()):
        raise Misfit("eye takes one size", node.position)
    if size != size or not 1 <= size <= WIDEST or size != int(size):
        raise Misfit(f"eye takes a whole number from 1 to {WIDEST}", node.position)
    return np.eye(int(size))[None]


def _inverse(node: Call, x: Array) -> Array:
    rows, columns = shape(x)
    if rows != columns:
        raise Misfit(f"inv takes a square matrix, not {told(x)}", node.position)
    try:
        return np.asarray(np.linalg.inv(x), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.full_like(x, np.nan)


def _two(node: Call, left: Array, right: Array) -> Array:
    operation = node.operation
    if operation in ("+", "-"):
        if shape(left) != shape(right):
            raise Misfit(f"{told(left)} {operation} {told(right)} has no meaning", node.position)
        return left + right if operation == "+" else left - right
    if operation == "*":
        if (1, 1) not in (shape(left), shape(right)):
            reason = f"* multiplies with a number; {told(left)} and {told(right)} take @"
            raise Misfit(reason, node.position)
        return left * right
    if operation == "/":
        if shape(right) != (1, 1):
            raise Misfit(f"cannot divide by {told(right)}", node.position)
        return left / right
    if operation == "**":
        if shape(left) != (1, 1) or shape(right) != (1, 1):
            raise Misfit("only a number has powers here, and only to a number", node.position)
        return np.power(left, right)
    if operation == "outer":
        return _flat(node, left) @ _flat(node, right).transpose(0, 2, 1)
    if operation == "dot":
        left, right = _flat(node, left), _flat(node, right)
        if shape(left) != shape(right):
            raise Misfit(f"dot of {told(left)} and {told(right)} has no meaning", node.position)
        product: Array = (left * right).sum(axis=(1, 2), keepdims=True)
        return product
    if shape(left)[1] != shape(right)[0]:
        raise Misfit(f"{told(left)} @ {told(right)} does not fit", node.position)
    return left @ right


def _flat(node: Call, x: Array) -> Array:
    """A vector as a column, whichever way it lies."""
    if 1 not in shape(x):
        raise Misfit(f"{node.operation} takes vectors, not {told(x)}", node.position)
    return x if shape(x)[1] == 1 else x.transpose(0, 2, 1)
