"""The page of a run: its text holds the records' figures, and it stands alone."""

import html
import re
import shutil
import subprocess

import pytest

from fastsample_dist.train.report_page import render_page
from fastsample_dist.train.report_sums import by_purpose, rank_means, slowest_rank
from tests.html_pages import check_self_contained, elements, pictures, rows
from tests.train.records import STAGES, make_records

pytest.importorskip("matplotlib", reason="the page is drawn with matplotlib, which is not installed")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def records():
    return make_records(cache=True)


@pytest.fixture(scope="module")
def page(records):
    return render_page(records)


def headings(page):
    return re.findall(r"<h2>(.*?)</h2>", page)


def epoch_row(record):
    """The epoch's row in the table of all epochs."""
    times = [record["seconds"], *(record[name] for name in STAGES)]
    other = record["seconds"] - sum(record[name] for name in STAGES)
    test = f"{record['test_acc']:.4f}" if "test_acc" in record else ""
    start = [str(record["epoch"] + 1), str(record["steps"]), f"{record['loss']:.4f}", f"{record['val_acc']:.4f}", test]
    return [*start, f"{record['lr']:g}", *(f"{value:.2f}" for value in (*times, other))]


def test_every_epoch_has_its_figures(page, records):
    found = rows(page)
    assert ["epoch", "steps", "loss", "validation accuracy", "test accuracy", "lr", "seconds", "sample", "fetch",
            "compute", "gradients", "other"] in found  # fmt: skip
    assert all(epoch_row(record) in found for record in records)


def test_every_rank_has_its_means_and_the_slowest_is_named(page, records):
    means = [
        {name: sum(record["ranks"][rank][name] for record in records) / len(records) for name in ("seconds", *STAGES)}
        for rank in (0, 1)
    ]
    work = [rank["sample_s"] + rank["compute_s"] for rank in means]
    for number, rank in enumerate(means):
        cells = [rank["seconds"], *(rank[name] for name in STAGES), 0.25, work[number], 2 * work[number] / sum(work)]
        assert [str(number), *(f"{cell:.2f}" for cell in cells)] in rows(page)
    slowest = work.index(max(work))
    assert f"Rank {slowest} has the most: {max(work):.2f} s an epoch, {2 * max(work) / sum(work):.2f} times" in page


def test_bytes_by_purpose_are_per_rank_and_step(page, records):
    per_rank = [
        sum(record["ranks"][rank]["comm"]["feature_rows"]["bytes_received"] for record in records) / (7 * len(records))
        for rank in (0, 1)
    ]
    sent = sum(rank["comm"]["feature_rows"]["bytes_sent"] for record in records for rank in record["ranks"]) / (
        14 * len(records)
    )
    most = max(per_rank)
    assert [
        "feature_rows", "1.00", f"{sent / 1e3:,.1f}", f"{sum(per_rank) / 2e3:,.1f}",
        f"{most / 1e3:,.1f} (rank {per_rank.index(most)})",
    ] in rows(page)  # fmt: skip


def test_hit_rates_stand_beside_the_oracles(page, records):
    for record in records:
        cache = record["cache"]
        counts = [f"{cache[name]:,}" for name in ("own", "neighbour", "cached", "kept", "exchanged")]
        rates = [f"{100 * cache[name]:.1f} %" for name in ("hit_rate", "oracle_hit_rate")]
        assert [str(record["epoch"] + 1), *counts, *rates] in rows(page)


def test_the_cache_is_described(page):
    assert "Policy vip: 1,234 rows, 2.5 MB in a cache." in page


@pytest.mark.grid
def test_a_cache_whose_oracle_is_not_known_is_drawn(records):
    rate = {"hit_rate": 0.5, "oracle_hit_rate": None, "cached": 10}
    page = render_page([{**record, "cache": rate} for record in records])
    assert ["1", "0", "0", "10", "0", "0", "50.0 %", ""] in rows(page)


def test_memory_is_given_per_rank(page):
    assert ["1", "400.0 MB", "100.0 MB", "450.0 MB", "601.0 MB"] in rows(page)
    assert ["largest peak memory", "601.0 MB"] in rows(page)


def test_the_page_stands_alone_and_is_the_same_for_the_same_records(page, records):
    check_self_contained(page)
    assert len(pictures(page)) == len(headings(page)) - 1 == 6
    assert render_page(records) == page


@pytest.mark.grid
def test_what_runs_in_the_background_is_not_added_to_the_epoch():
    records = make_records(prefetch=2)
    page = render_page(records)
    assert "in the background" in page
    one = records[0]
    other = one["seconds"] - one["wait_s"] - one["compute_s"] - one["gradients_s"]
    times = ("seconds", "sample_s", "fetch_s", "wait_s", "compute_s", "gradients_s")
    (row,) = [row for row in rows(page) if row[:3] == ["1", "7", f"{one['loss']:.4f}"]]
    assert row[-7:] == [*(f"{one[name]:.2f}" for name in times), f"{other:.2f}"]


def test_roles_say_who_sampled_trained_and_switched():
    """The first epoch had other roles, as before a run was resumed: it is not in the tables of the last ones."""
    records = make_records(3)
    before, alone, switched = [8, 6, 0], [7, 7, 0], [6, 5, 3]
    for record, trained, samplers in zip(records, (before, alone, switched), (2, 1, 1), strict=True):
        sampled = [0, 0, 14] if samplers == 1 else [0, 9, 5]
        record["roles"] = {
            "samplers": samplers, "trainers": 3 - samplers, "sampled": sampled, "trained": trained,
            "standby": sum(trained[3 - samplers :]),
        }  # fmt: skip
    page = render_page(records)
    assert "Roles: who sampled and who trained" in headings(page) and "Roles 1+2: " in page
    for row in (
        ["0", "trains", "0", "13", ""], ["1", "trains", "0", "12", ""], ["2", "samples", "28", "3", "1"],
        ["2", "7 7 | 0", "0"], ["3", "6 5 | 3", "3"],
    ):  # fmt: skip
        assert row in rows(page)
    assert ["1", "8 6 | 0", "0"] not in rows(page)


@pytest.mark.parametrize(
    "left_out, missing",
    [
        ((), {"Feature rows and the cache"}),
        (("ranks", "run"), {"Feature rows and the cache", "Ranks: who is slow", "Bytes by purpose", "Memory"}),
    ],
    ids=["no cache", "an older release"],
)
def test_sections_without_figures_are_left_out(page, left_out, missing):
    records = [{name: value for name, value in one.items() if name not in left_out} for one in make_records()]
    assert set(headings(page)) - set(headings(render_page(records))) == missing


@pytest.mark.grid
def test_one_rank_has_no_comparison_but_its_memory():
    found = headings(render_page(make_records(num_ranks=1)))
    assert "Memory" in found and "Ranks: who is slow" not in found and "Bytes by purpose" not in found


@pytest.mark.grid
def test_a_run_that_was_resumed_on_more_ranks_compares_those_of_the_end():
    records = make_records(2, 2) + [{**one, "epoch": one["epoch"] + 2} for one in make_records(2, 3)]
    page = render_page(records)
    assert "Means over 2 epochs, 3 to 4." in page and len([row for row in rows(page) if row[-1].endswith(" MB")]) == 4
    assert {"1", "2", "3", "4"} <= {row[0] for row in rows(page)}


def test_the_part_of_an_epoch_that_was_resumed_enters_no_mean():
    records = make_records(2)
    records[0]["ranks"][0] |= {"steps": 2, "seconds": 0.1}
    assert rank_means(records)[0]["seconds"] == records[1]["ranks"][0]["seconds"]
    assert rank_means(records[:1])[0]["seconds"] == 0.1


def test_ranks_without_work_are_compared_too():
    assert slowest_rank([{"sample_s": 0.0, "compute_s": 0.0}] * 2) == (0, 1.0)


@pytest.mark.grid
def test_purposes_without_bytes_and_many_purposes_are_drawn():
    records = make_records(1)
    for rank in records[0]["ranks"]:
        rank["comm"] = {f"purpose {i}": {"calls": 1, "bytes_sent": i, "bytes_received": i} for i in range(20)}
    assert list(by_purpose(records))[:2] == ["purpose 19", "purpose 18"]
    page = render_page(records)
    assert all(f"<td>purpose {i}</td>" in page for i in range(20))
    for rank in records[0]["ranks"]:
        rank["comm"] = {}
    assert "Bytes by purpose" in render_page(records)


def test_losses_that_are_no_numbers_and_other_metrics_are_drawn():
    records = [{**one, "loss": float("nan"), "val_rmse": 1.5} for one in make_records()]
    page = render_page(records)
    assert "<td>nan</td>" in page and "<th>validation rmse</th>" in page


def test_names_are_text_not_markup():
    records = make_records()
    for record in records:
        record["run"]["graph"] = "<script>alert(1)</script>"
        record["ranks"][0]["host"] = "a&b"
    page = render_page(records)
    assert "<script>" not in page and "<td>a&amp;b</td>" in page
    elements(page)


def test_a_run_without_epochs_says_so():
    assert "No epoch was trained." in render_page([])


def test_a_browser_shows_the_figures(page, records, tmp_path):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    (tmp_path / "page.html").write_text(page)
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom")
    url = (tmp_path / "page.html").as_uri()
    shown = subprocess.run([browser, *options, url], capture_output=True, text=True, timeout=120, check=True).stdout
    assert all(epoch_row(record) in rows(shown) for record in records)
    assert headings(shown) == headings(page) and f"<title>{html.escape('sage on drawn, 2 ranks')}</title>" in shown
    assert shown.count("<img") == len(pictures(page))
