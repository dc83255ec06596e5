"""The order inside partition/: a room imports only those before it, and no file is imported by what it imports."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.test_layering import find_imports

PARTITION = Path(__file__).resolve().parents[2] / "partition"
PACKAGE = "fastsample_dist.partition"
ORDER = (
    "progress",
    "cli_edges",
    "methods",
    "cli_streaming",
    "external",
    "report",
    "plan",
    "write",
    "api",
    "cli_tasks",
    "cli",
)
FILES = sorted(PARTITION.rglob("*.py"))


def module_of(path: Path) -> str:
    """Dotted name below the package: write.build, or "" for its __init__."""
    return ".".join(path.relative_to(PARTITION).with_suffix("").parts).removesuffix("__init__").rstrip(".")


MODULES = {module_of(path): path for path in FILES}


def imported(module: str, path: Path) -> set[str]:
    """Modules of the package that a file imports, inside functions too."""
    dotted = f"{PACKAGE}.{module}".rstrip(".")
    found = set()
    for each in find_imports(ast.parse(path.read_text()), dotted, path.name == "__init__.py"):
        if each.target.startswith(f"{PACKAGE}."):
            target = each.target.removeprefix(f"{PACKAGE}.")
            while target not in MODULES:
                target = target.rpartition(".")[0]
            found.add(target)
    return found - {""}


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_a_room_imports_only_those_before_it(path):
    module = module_of(path)
    if not module:
        assert imported(module, path) == set()
        return
    room = module.split(".")[0]
    assert {other.split(".")[0] for other in imported(module, path)} <= set(ORDER[: ORDER.index(room) + 1])


def test_no_file_is_in_a_circle():
    order = list(TopologicalSorter({module: imported(module, path) for module, path in MODULES.items()}).static_order())
    assert order.index("write.build") > order.index("methods.request")
