"""Functions that Numba refuses, and why; the tests read the line from the mark."""

import inspect
from pathlib import Path

TABLE = {1: 2}


def helper(x):
    return x + 1


def attribute(s, transits, edges, step, draw, par):
    return s.nothing[0]  # HERE: Unknown attribute 'nothing' of type s


def not_needed(s, transits, edges, step, draw, par):
    if edges.has(3):  # HERE: has is not among the application's needs; add transit.needs(edge_queries=True)
        return 1
    return 0


def plain_helper(s, transits, edges, step, draw, par):
    return helper(edges[0])  # HERE: decorate that function with numba.njit


def unknown_name(s, transits, edges, step, draw, par):
    return undefined  # noqa: F821 HERE: name 'undefined' is not defined


def nothing_returned(s, transits, edges, step, draw, par):  # HERE: it returns int64 or None; expected an integer
    if step > 1:
        return edges[0]


def fraction(s, transits, edges, step, draw, par):  # HERE: it returns float64; expected an integer, a vertex
    return draw.word() / 2


def iterates(s, transits, edges, step, draw, par):
    for u in edges:  # HERE: getiter
        if u > 3:
            return u
    return -1


def too_few(s, edges, step, draw, par):  # HERE: it takes 5 arguments, but is called with 6
    return edges[0]


def dictionary(s, transits, edges, step, draw, par):
    return TABLE[1]  # HERE: Untyped global name 'TABLE'


def adds_words(s, transits, edges, step, draw, par):
    return draw.word64() + 1  # HERE: there is no add(word64, 1)


def parameter(s, transits, edges, step, draw, par):
    return par.nothing  # HERE: there is no parameter 'nothing'; the application has []


def text_index(s, transits, edges, step, draw, par):
    return edges["a"]  # HERE: edges[i] needs an integer


def sets(s, transits, edges, step, draw, par):
    s.x = 3  # HERE: Cannot resolve setattr
    return 1


def cases():
    """(line, function, reason) of each."""
    lines = Path(__file__).read_text().splitlines()
    found = []
    for function in list(globals().values()):
        if not inspect.isfunction(function) or "step" not in inspect.signature(function).parameters:
            continue
        first = function.__code__.co_firstlineno
        at = next(i for i in range(first, len(lines) + 1) if "HERE: " in lines[i - 1])
        found.append((at, function, lines[at - 1].split("HERE: ")[1]))
    return found
