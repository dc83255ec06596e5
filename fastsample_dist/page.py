"""Pages that need nothing else: tables as text and plots as SVG pictures inside one HTML file; no script, no link.

The standard library only; matplotlib is loaded when something is drawn. The same content gives the same bytes.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY = "#3366aa", "#d9730d", "#2e8b57", "#777777"
_WIDTH, _HEIGHT = 8.0, 3.2  # inches
_STYLE = """
body { font: 15px/1.5 sans-serif; color: #222; background: #fff; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
img { width: 100%; height: auto } .wide { overflow-x: auto }
.beside { display: flex; flex-wrap: wrap; gap: 0 1.5rem; align-items: flex-start }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: right }
th:first-child, td:first-child { text-align: left }
@media print {
  body { font-size: 11px; max-width: none; margin: 0; padding: 0 } h1, h2 { break-after: avoid }
  img, tr { break-inside: avoid } .wide { overflow: visible }
}
"""


def require_matplotlib(option: str, instead: str) -> None:
    """Refuse a page that could not be drawn, before any work is done.

    Args:
      option: of the command line that asks for the page.
      instead: the option that needs no plots.
    Raises:
      ImportError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{option} draws with matplotlib, which is not there ({error}); pip install fastsample_dist[report], or "
            f"take {instead}."
        ) from error


def document(title: str, sections: Iterable[str]) -> str:
    """A whole page.

    Args:
      title: plain text.
      sections: markup, such as `heading`, `paragraph`, `table` and `picture` return.
    """
    escaped, body = html.escape(title), "\n".join(sections)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escaped}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escaped}</h1>\n{body}\n</body>\n</html>\n"
    )


def heading(text: str) -> str:
    """The heading of a section, of plain text."""
    return f"<h2>{html.escape(text)}</h2>"


def paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{html.escape(text)}</p>"


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain text; the first column is aligned to the left.

    Args:
      heading: of the columns; [] for none.
      rows: cells, as many as columns.
    """

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    lines = ([line(heading, "th")] if heading else []) + [line(row, "td") for row in rows]
    return '<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>"


def beside(*sections: str) -> str:
    """Markup side by side, where the page is wide enough."""
    return '<div class="beside">\n' + "\n".join(sections) + "\n</div>"


def new_figure(columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure as wide as the page, and its axes side by side."""
    from matplotlib.figure import Figure  # not pyplot: no window system, no state that others share

    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    axes = [figure.add_subplot(1, columns, column + 1) for column in range(columns)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", color="#e5e5e5", linewidth=0.8)
        ax.set_axisbelow(True)
    return figure, axes


def legend_above(ax: Axes, columns: int) -> None:
    """The legend above the axes, where it covers nothing."""
    ax.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderaxespad=0.2)


def number_axis(ax: Axes, label: str, first: int, count: int) -> None:
    """Name an x axis whose places are the integers `first` .. `first` + count - 1, such as parts."""
    from matplotlib.ticker import MaxNLocator

    ax.set_xlabel(label)
    ax.set_xlim(first - 0.7, first + count - 0.3)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=16, integer=True))


def svg(figure: Figure, text: str) -> str:
    """A figure as a document of SVG.

    Args:
      figure: to draw.
      text: what it shows; the same figure and text give the same bytes.
    """
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": text, "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def picture(figure: Figure, text: str) -> str:
    """A figure as an image inside the page; a document of its own, so that names inside it clash with no other's.

    Args:
      figure: to draw.
      text: what it shows, for who does not see it.
    """
    data = base64.b64encode(svg(figure, text).encode()).decode("ascii")
    return f'<img alt="{html.escape(text)}" src="data:image/svg+xml;base64,{data}">'
