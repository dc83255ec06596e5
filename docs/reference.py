"""Build the API reference from the docstrings: python docs/reference.py DIRECTORY (what `make docs` does).

One page for the public names (fastsample_dist.html) and one for every module of the rooms that users import. Needs
pdoc: pip install "fastsample_dist[docs]".
"""

import sys
from pathlib import Path

# What commands, kernels and benchmarks are made of is left out: read the source.
MODULES = (
    "fastsample_dist",
    "!fastsample_dist\\.(bench|device|doctor|launch|ops|verify)",
    "!fastsample_dist\\.partition\\.(cli|external|methods|plan|progress|report|write)",
    "!fastsample_dist\\.(command|entry|files|memory_sizes)",
    "!fastsample_dist\\.comm\\.mpi$",  # its annotations are those of mpi4py
)


def build(directory: Path) -> None:
    """Write the reference as HTML.

    Raises:
      ImportError: pdoc is not installed.
    """
    try:
        import pdoc
    except ImportError as error:
        raise ImportError(f"the reference is built by pdoc, which is not there ({error}); pip install pdoc.") from error
    pdoc.render.configure(docformat="google", show_source=False, search=False, footer_text="fastsample_dist")
    pdoc.pdoc(*MODULES, output_directory=directory)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.splitlines()[0])
    build(Path(sys.argv[1]))
    print(f"the reference: {sys.argv[1]}/fastsample_dist.html")
