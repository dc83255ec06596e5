"""README, docs/ and CONTRIBUTING.md say what is: links, options and names exist, the README's loop runs, and the API
reference has every public name with its documented arguments."""

import ast
import contextlib
import functools
import html
import importlib
import importlib.util
import inspect
import io
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import fastsample_dist as fsd
from fastsample_dist.entry import MODULES
from fastsample_dist.graph.generators import planted_communities

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
README_LINES = 150
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
PYTHON_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
SHELL_LINE = re.compile(r"^ {4}(.*(?:\\\n.*)*)$", re.MULTILINE)
# Options of other programs that the pages mention.
FOREIGN = {"--no-build-isolation", "--nnodes", "--nproc-per-node", "--node-rank", "--master-addr"}
FOREIGN |= {"--hostfile", "--nodes", "--ntasks-per-node", "--allow-run-as-root"}
GENERATORS = "fastsample_dist.graph.generators"
BENCHMARKS = ("epoch", "features", "roles")  # of fastsample-bench, whose options the pages mention


def ids(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


@functools.cache
def help_of(program: str, *arguments: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        importlib.import_module(MODULES.get(program, program)).main([*arguments, "--help"])
    return printed.getvalue()


def options_of(program: str) -> set[str]:
    texts = [help_of(program)]
    assert "--help" in texts[0]
    if program == "fastsample-bench":
        texts += [help_of(program, name) for name in BENCHMARKS]
    return set(OPTION.findall(" ".join(texts)))


def prose_and_code(text: str) -> list[str]:
    """The inline code and the indented lines of a page."""
    fenced = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [*re.findall(r"`([^`]+)`", fenced), *SHELL_LINE.findall(fenced)]


def commands(text: str) -> list[tuple[str, str]]:
    """(program, its own arguments) of every command of ours on a page."""
    found = []
    for code in prose_and_code(text):
        for piece in code.split(" -- "):  # after it comes what fastsample-launch starts
            for match in re.finditer(r"(fastsample-[a-z]+|examples/train_sage\.py)([^\n]*(?:\\\n[^\n]*)*)", piece):
                program = "fastsample-train" if match[1].startswith("examples") else match[1]
                found.append((program, match[2].split("#")[0]))
    return found


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_local_links_lead_somewhere(page):
    links = [link for link in LINK.findall(page.read_text()) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_readme_is_short_and_leads_to_every_page():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= README_LINES
    linked = {(ROOT / link).resolve() for link in LINK.findall(text) if not re.match(r"[a-z]+:", link)}
    assert set(PAGES[1:]) <= linked


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_options_exist(page):
    text = page.read_text()
    for program, own in commands(text):
        assert program in MODULES
        assert set(OPTION.findall(own)) <= options_of(program), f"{program}{own}"
    every = set().union(FOREIGN, *(options_of(program) for program in MODULES))
    every |= set(OPTION.findall(help_of(GENERATORS, "planted")))
    assert {option for code in prose_and_code(text) for option in OPTION.findall(code)} <= every


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_names_exist(page):
    for name in set(re.findall(r"\bfsd((?:\.[A-Za-z_]\w*)+)", page.read_text())):
        functools.reduce(getattr, name.strip(".").split("."), fsd)
    for name in set(re.findall(r"`(fastsample_dist(?:\.[a-z_]\w*)+)", page.read_text())):
        parts = name.split(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            getattr(importlib.import_module(".".join(parts[:-1])), parts[-1])


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_keywords_of_shown_calls_exist(page):
    shown = [textwrap.dedent(block) for block in PYTHON_BLOCK.findall(page.read_text())]
    shown += [code for code in prose_and_code(page.read_text()) if re.fullmatch(r"fsd\.[\w.]+\(.*\)", code)]
    for code in shown:
        for call in ast.walk(ast.parse(code)):
            if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("fsd."):
                function = functools.reduce(getattr, ast.unparse(call.func).split(".")[1:], fsd)
                known = inspect.signature(function).parameters
                if not any(each.kind is each.VAR_KEYWORD for each in known.values()):
                    assert {keyword.arg for keyword in call.keywords} <= set(known), ast.unparse(call)


def test_the_loop_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    (block,) = PYTHON_BLOCK.findall((ROOT / "README.md").read_text())
    assert len([line for line in block.splitlines() if line]) <= 15
    monkeypatch.chdir(tmp_path)
    graph, task = planted_communities(num_nodes=600, num_classes=4, seed=0)
    names = {"graph": graph, "features": task.features, "labels": task.labels, "splits": task.splits}
    exec(block.replace("range(10)", "range(2)").replace("256", "16"), names)
    losses = capsys.readouterr().out.splitlines()
    assert np.isfinite([float(loss) for loss in losses[:2]]).all() and "calls" in losses[-1]


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> str:
    """The page of the public names, as text."""
    return build_reference(tmp_path_factory.mktemp("docs"), "--public-names")


def build_reference(directory: Path, *options: str) -> str:
    """The page of the public names in a new API reference; skips without pdoc."""
    if importlib.util.find_spec("pdoc") is None:
        pytest.skip("pdoc is not installed (pip install 'fastsample_dist[docs]'): no API reference")
    command = [sys.executable, ROOT / "docs/reference.py", *options, directory]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return (directory / "fastsample_dist.html").read_text()


def documented_arguments(text: str | None) -> list[str]:
    """Names under Args and Attributes of a docstring; of lines such as "options, output: ..." each."""
    names, inside = [], False
    for line in inspect.cleandoc(text or "").splitlines():
        if re.match(r"\w+:$", line):
            inside = line in ("Args:", "Attributes:")
        elif inside and (match := re.match(r" {2}(\*{0,2}\w+(?:, \w+)*):", line)):
            names += re.findall(r"\w+", match[1])
    return names


PUBLIC = [name for name in fsd.__all__ if not name.startswith("_") and not inspect.ismodule(getattr(fsd, name))]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_reference_has_every_public_name_and_argument(reference, name):
    found = re.search(
        rf'<section id="{name}">(.*?)</section>\s*(?=<section id="[^".]*">|</main>)', reference, re.DOTALL
    )
    assert found, f"{name} is not on the page"
    text = html.unescape(re.sub(r"<[^>]+>", "", found[1]))
    public = getattr(fsd, name)
    objects = (
        [public, *(value for key, value in vars(public).items() if key[0] != "_")]
        if inspect.isclass(public)
        else [public]
    )
    for each in objects:
        for argument in documented_arguments(getattr(getattr(each, "__func__", each), "__doc__", None)):
            assert re.search(rf"\b{argument}\b", text), f"{argument} of {name} is not on the page"


@pytest.mark.grid
def test_the_whole_reference_links_the_rooms(tmp_path):
    page = build_reference(tmp_path)
    for room in ("comm", "graph", "interop", "pipeline", "sampling", "testing", "train"):
        assert f'href="fastsample_dist/{room}.html"' in page
    assert '<section id="check_app">' in (tmp_path / "fastsample_dist/testing.html").read_text()
