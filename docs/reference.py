"""Build the API reference from the docstrings: python docs/reference.py [--public-names] DIRECTORY (`make docs`).

One page for the public names (fastsample_dist.html) and, without --public-names, one for every module of the rooms that
users import. Needs pdoc: pip install "fastsample_dist[docs]".
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from fastsample_dist import testing

# What commands, kernels and benchmarks are made of is left out: read the source.
MODULES = (
    "fastsample_dist",
    "!fastsample_dist\\.(bench|device|doctor|launch|ops|verify)",
    "!fastsample_dist\\.partition\\.(cli|external|methods|plan|progress|report|write)",
    "!fastsample_dist\\.(command|entry|files|interrupts|memory_sizes)",
    "!fastsample_dist\\.comm\\.mpi$",  # its annotations are those of mpi4py
)
PUBLIC_NAMES = ("fastsample_dist", "!fastsample_dist\\.")


def build(directory: Path, modules: Sequence[str] = MODULES) -> None:
    """Write the reference as HTML.

    Args:
      directory: where to.
      modules: in pdoc's words, a leading "!" before a pattern of what is left out.
    Raises:
      ImportError: pdoc is not installed.
    """
    try:
        import pdoc
    except ImportError as error:
        raise ImportError(f"the reference is built by pdoc, which is not there ({error}); pip install pdoc.") from error
    # pdoc sees what a module holds, not what it makes on first use.
    vars(testing).update({name: getattr(testing, name) for name in testing.__all__})
    pdoc.render.configure(docformat="google", show_source=False, search=False, footer_text="fastsample_dist")
    pdoc.pdoc(*modules, output_directory=directory)


if __name__ == "__main__":
    *options, directory = sys.argv[1:] or [""]
    if options not in ([], ["--public-names"]) or directory.startswith("-") or not directory:
        sys.exit(__doc__.splitlines()[0])
    build(Path(directory), PUBLIC_NAMES if options else MODULES)
    print(f"the reference: {directory}/fastsample_dist.html")
