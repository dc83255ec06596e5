"""The ways to draw neighbours: the one list that everything in Python consults.

A new method is its kernel (csrc, under a code of FsSampleMethod), its oracle (a module of ops/reference with `draw` and
`law`) and one line of `METHODS` here. Choices of commands, refusals, tests of samplers and the oracle follow.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SampleMethod:
    """What there is to know about a method besides how it draws.

    Attributes:
      name: as `SampleSpec.method`.
      code: of FsSampleMethod.
      weighted: draws by the edges' weights, edges of weight 0 never.
      replaceable: can draw with replacement.
      shares_variates: all destinations of a hop see one variate per source, so that a fanout is the mean number of
        picks, rows are not independent, and hops can share the variates too (`layer_dependency`).
      one_launch: the kernels that sample all hops of a batch in one launch draw this way.
      oracle: module of ops/reference that defines the draw and its law; None: the one of the method's name.
    """

    name: str
    code: int
    weighted: bool = False
    replaceable: bool = True
    shares_variates: bool = False
    one_launch: bool = False
    oracle: str | None = None


METHODS = {
    method.name: method
    for method in (
        SampleMethod(name="uniform", code=0, one_launch=True),
        SampleMethod(name="weighted", code=1, weighted=True),
        SampleMethod(name="labor", code=2, replaceable=False, shares_variates=True),
    )
}
