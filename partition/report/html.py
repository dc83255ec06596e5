"""The report as one HTML page that needs nothing else: plots are SVG pictures inside the page, no script, no link.

The page is made from the dict that --json writes. The plots' points are per part, so that a page is readable for
2 parts and for 200.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fastsample_dist.page import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    document,
    heading,
    new_figure,
    number_axis,
    paragraph,
    picture,
    require_matplotlib,
    table,
)
from fastsample_dist.partition.report.cache_advice import advice_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def render_html(report: Mapping[str, Any]) -> str:
    """The page of a report.

    Args:
      report: of `PartitionQuality.to_json`, with "path"; and "traffic" of `Traffic.to_json`, or without it.
    Returns:
      The text of the page. The same report gives the same page.
    Raises:
      ImportError: matplotlib is not installed.
    """
    require_matplotlib("--html", "--json")
    return document(f"{report['name']} in {report['num_parts']} parts", _sections(report))


def _sections(report: Mapping[str, Any]) -> Iterator[str]:
    yield _facts(report)
    yield heading("Balance")
    yield paragraph(
        "Each part's share of what training needs, as a multiple of the mean; every dot is a part. The largest "
        "part is given beside it. A step is as slow as the rank with the most work."
    )
    yield picture(_balance_figure(report), "balance of the parts")
    yield heading("Edge cut and halo")
    yield paragraph(
        "Cut: in-edges whose source another part owns. Halo: distinct sources of those edges, which a layer over the "
        "whole part would fetch."
    )
    yield picture(_cut_figure(report), "edge cut and halo nodes per part")
    if "traffic" in report:
        yield from _traffic_sections(report["traffic"])
    yield heading("Parts")
    yield _parts_table(report)


def _facts(report: Mapping[str, Any]) -> str:
    from fastsample_dist.partition.report.display import format_bytes, origin_words

    cut = report["edge_cut"]
    features = "none" if report["feature_dim"] is None else f"{report['feature_dim']} x {report['feature_dtype']}"
    features += " with a scale per row" if report["feature_scales"] else ""
    facts = {
        "partition": report["path"],
        "nodes": f"{report['num_nodes']:,}",
        "edges": f"{report['num_edges']:,} ({'undirected' if report['undirected'] else 'directed'})",
        "parts": origin_words(report),
        "features": features,
        "edge cut": f"{cut['edges']:,} ({cut['fraction']:.2%})",
        "largest in-degree": f"{report['max_in_degree']:,}",
        "topology on every machine": format_bytes(report["bytes"]["topology"]),
        "all parts' own files": format_bytes(report["bytes"]["parts"]),
    }
    return table([], [[name, value] for name, value in facts.items()])


def _traffic_sections(traffic: Mapping[str, Any]) -> Iterator[str]:
    from fastsample_dist.partition.report.display import format_bytes

    options, rows, epoch = traffic["options"], traffic["remote_rows_per_step"], traffic["epoch_bytes"]
    fanouts = ",".join(map(str, options["fanouts"]))
    batches = sum(part["batches"] for part in traffic["parts"])
    yield heading("Remote rows per step")
    yield paragraph(
        f"Measured on {batches:,} sampled batches: fanouts {fanouts}, {options['batch_size']:,} seeds per step, one "
        f"machine per part, {traffic['steps_per_epoch']:,} steps per epoch. A machine fetches {rows['mean']:,.0f} "
        f"remote feature rows per step (standard error {rows['standard_error']:,.0f}). Over an epoch all machines "
        f"together receive and ask for {format_bytes(round(epoch['hybrid']))} (standard error "
        f"{format_bytes(round(epoch['standard_error_of_hybrid']))}) when every machine has the topology, "
        f"{format_bytes(round(epoch['vanilla']))} when that is divided too."
    )
    yield picture(_rows_figure(traffic), "remote rows per step of each part")
    yield heading("Remote bytes and cache size")
    yield paragraph(
        "A cache holds the rows of so many remote nodes, in percent of all nodes, on every machine. Degree: nodes with "
        f"the most out-edges. Hotness: nodes that were inputs most often in up to {options['presample_batches']:,} "
        "pre-sampled batches per part; the curves are measured on other batches. Vip: nodes that are inputs most "
        "probably. Oracle: nodes that were inputs of the measured batches most often, which no policy can know."
    )
    if traffic["cache_advice"] is not None:
        yield paragraph(f"Advice: {advice_text(traffic['cache_advice'])}.")
    yield picture(_cache_figure(traffic), "bytes per epoch against cache size")
    yield _cache_table(traffic)


# ---- plots


def _balance_figure(report: Mapping[str, Any]) -> Figure:
    columns = {
        name: [part[key] for part in report["parts"]] for name, key in (("nodes", "nodes"), ("in-edges", "in_edges"))
    }
    for split in report["parts"][0]["splits"]:
        columns[split] = [part["splits"][split] for part in report["parts"]]
    figure, (ax,) = new_figure()
    names = [name for name, values in columns.items() if sum(values)]
    for place, name in enumerate(names):
        values, count = columns[name], len(columns[name])
        shares = [value * count / sum(values) for value in values]
        offsets = [place + 0.5 * ((part + 0.5) / count - 0.5) for part in range(count)]
        ax.plot(offsets, shares, "o", color=BLUE, markersize=5 if count <= 32 else 2.5)
        ax.annotate(f"{max(shares):.3f}", (place + 0.28, max(shares)), va="center", color=GREY, fontsize=9)
    ax.axhline(1, color=GREY, linewidth=0.8)
    ax.set_xticks(range(len(names)), names)
    ax.set_xlim(-0.6, len(names) - 0.2)
    ax.set_ylabel("part / mean part")
    return figure


def _cut_figure(report: Mapping[str, Any]) -> Figure:
    figure, axes = new_figure(2)
    parts = report["parts"]
    cuts = [100 * part["cut_in_edges"] / max(1, part["in_edges"]) for part in parts]
    for ax, values, label in (
        (axes[0], cuts, "in-edges cut, %"),
        (axes[1], [part["halo_nodes"] for part in parts], "halo nodes"),
    ):
        ax.bar(range(len(parts)), values, color=BLUE)
        ax.set_ylabel(label)
        number_axis(ax, "part", 0, len(parts))
    return figure


def _rows_figure(traffic: Mapping[str, Any]) -> Figure:
    figure, (ax,) = new_figure()
    parts = traffic["parts"]
    places = range(len(parts))
    ax.bar(places, [part["input_rows"] for part in parts], color="#cfd8e6", label="all input rows")
    ax.bar(
        places,
        [part["remote_rows"] for part in parts],
        yerr=[2 * part["remote_rows_error"] for part in parts],
        color=BLUE,
        ecolor="black",
        capsize=3 if len(parts) <= 32 else 0,
        label="remote rows, with 2 standard errors",
    )
    ax.set_ylabel("rows per step")
    ax.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0, 1.18), ncols=2)
    number_axis(ax, "part", 0, len(parts))
    return figure


def _cache_figure(traffic: Mapping[str, Any]) -> Figure:
    figure, (ax,) = new_figure()
    for (policy, points), color in zip(traffic["cache"].items(), (ORANGE, BLUE, GREEN, GREY), strict=True):
        shares = [100 * point["share"] for point in points]
        ax.plot(shares, [point["epoch_bytes"] / 1e6 for point in points], "o-", color=color, markersize=3, label=policy)
    if traffic["cache_advice"] is not None:
        ax.axvline(100 * traffic["cache_advice"]["share"], color=GREY, linewidth=0.8, linestyle="--", label="advice")
    ax.set_xlabel("remote nodes cached per machine, % of all nodes")
    ax.set_ylabel("MB per epoch")
    ax.set_xlim(0, 100)
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False)
    return figure


# ---- tables


def _parts_table(report: Mapping[str, Any]) -> str:
    from fastsample_dist.partition.report.display import format_bytes

    splits = list(report["parts"][0]["splits"])
    rows = []
    for part in report["parts"]:
        cut = part["cut_in_edges"] / max(1, part["in_edges"])
        counts = [part["nodes"], part["in_edges"]]
        rows.append(
            [
                str(part["part"]),
                *(f"{count:,}" for count in counts),
                f"{cut:.1%}",
                f"{part['halo_nodes']:,}",
                *(f"{part['splits'][split]:,}" for split in splits),
                format_bytes(part["bytes"]),
            ]
        )
    return table(["part", "nodes", "in-edges", "cut", "halo nodes", *splits, "own files"], rows)


def _cache_table(traffic: Mapping[str, Any]) -> str:
    from fastsample_dist.partition.report.display import format_bytes

    curves = traffic["cache"]
    rows = []
    for points in zip(*curves.values(), strict=True):
        sizes = [format_bytes(round(point["epoch_bytes"])) for point in points]
        rows.append([f"{100 * points[0]['share']:g} %", *sizes])
    return table(["cached", *curves], rows)
