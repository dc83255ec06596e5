"""A refusal is worded once: no line of the core appears in two places of csrc, nor in the Python of the operators."""

import ast
import re
from collections import Counter
from ctypes import POINTER, c_int64

import pytest

from fastsample_dist.ops import SampleSpec, library
from fastsample_dist.ops.library import Refusal
from tests.toolchain import CSRC

OPS = CSRC.parent / "fastsample_dist" / "ops"
LITERALS = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*')
VALUE = re.compile(r"%(?:ll)?[a-z]|%\.\d[a-z]")
OPERATION = re.compile(r"^(?:\{\}|\w+): ")
LEAST_WORDS = 3  # no more make no refusal
CLAUSE_WORDS = 6  # so many equal ones in a row are no coincidence


def normal(text):
    """A message without its operation and without what stands for values."""
    return OPERATION.sub("", text).strip(" .")


def messages_of_csrc():
    """Normalised literals of fail() calls and of the table of refusals, by how often they are written."""
    found = Counter()
    for path in sorted(CSRC.rglob("*.[ch]*")):
        if path.suffix not in (".h", ".cpp", ".cu", ".cuh") or "tests" in path.parts:
            continue
        text = re.sub(r"//[^\n]*", "", path.read_text())
        for literal in LITERALS.findall(text):
            joined = "".join(part for part in re.findall(r'"((?:[^"\\\n]|\\.)*)"', literal))
            if OPERATION.match(VALUE.sub("{}", joined)) and len(joined.split()) > LEAST_WORDS:
                found[normal(VALUE.sub("{}", joined))] += 1
    return found


def messages_of_python():
    """Normalised strings and f-strings of the operators."""
    for path in sorted(OPS.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = ("{}" if isinstance(part, ast.FormattedValue) else part.value for part in node.values)
                yield path.name, normal("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path.name, normal(node.value)


def test_the_core_words_each_refusal_once():
    found = messages_of_csrc()
    assert len(found) > 30
    assert [message for message, count in found.items() if count > 1] == []


def test_python_leaves_the_words_of_the_core_to_the_core():
    core = messages_of_csrc()
    repeated = [
        (file, clause)
        for file, message in messages_of_python()
        for clause in re.split(r"; |, which ", message)
        if len(clause.split()) >= CLAUSE_WORDS and any(clause in line for line in core)
    ]
    assert repeated == []


@pytest.mark.parametrize(
    "options",
    [{"fanouts": (3, -2)}, {"fanouts": (-1,), "replace": True}, {"fanouts": (2**31 + 1,), "replace": True}],
    ids=["below -1", "all with replacement", "too many with replacement"],
)  # fmt: skip
def test_a_spec_is_refused_with_the_line_of_the_core(options):
    good = SampleSpec(fanouts=(1,) * len(options["fanouts"]), replace=options.get("replace", False), num_threads=1)
    arguments = good.arguments(0)
    for hop, fanout in enumerate(options["fanouts"]):
        arguments.fanouts[hop] = fanout
    graph, batch = library.Graph(), POINTER(library.MiniBatchMemory)()
    with pytest.raises(ValueError) as by_the_core:
        library.call(library.core().fs_sample_mfg, graph, arguments, None, 0, batch)
    with pytest.raises(ValueError) as by_the_spec:
        SampleSpec(**options)
    assert str(by_the_spec.value).removeprefix("SampleSpec") == str(by_the_core.value).removeprefix("sample_mfg")


@pytest.mark.parametrize("refusal", Refusal, ids=lambda refusal: refusal.name)
def test_every_refusal_shows_its_operation_and_its_values(refusal):
    with pytest.raises(ValueError, match=r"^operation: ") as refused:
        library.refuse(refusal, "operation", 1001, 1002, 1003, 1004)
    shown = [int(number) for number in re.findall(r"\b100[1-4]\b", str(refused.value))]
    assert shown == list(range(1001, 1001 + len(shown))) and shown


def test_an_unknown_refusal_is_refused():
    with pytest.raises(ValueError, match="operation: refusal 12 is unknown; expected one of FsRefusal"):
        library.call(library.core().fs_refuse, len(Refusal), b"operation", (c_int64 * 4)())
