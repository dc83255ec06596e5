"""The cache of compiled applications: what a key depends on; files."""

import numpy as np
import pytest

from fastsample_dist.sampling import transit
from fastsample_dist.sampling.transit import app_cache

LIMIT, TABLE, LISTED = 3, np.array([1, 2]), [1, 2]


def helper(x):
    return x + LIMIT


def closing_over(value):
    def next(s, transits, edges, step, draw, par):
        return edges[value] if step in {1, 2} else transit.NULL

    return next


def calls(s, transits, edges, step, draw, par):
    return helper(step) + abs(int(np.float64(step)))


def reads_array(s, transits, edges, step, draw, par):
    return TABLE[step]


def reads_list(s, transits, edges, step, draw, par):
    return LISTED[step]


def counts_down(n):
    return 0 if n == 0 else counts_down(n - 1)


def key(function, besides=()):
    return app_cache.key_of((function, None, None), besides)


def test_equal_functions_have_equal_keys():
    assert key(closing_over(2)) == key(closing_over(2)) is not None
    assert key(calls) == key(calls) and key(counts_down) == key(counts_down) is not None


def test_what_a_function_reads_is_part_of_its_key(monkeypatch):
    keys = [key(closing_over(value)) for value in (2, 3, 2.0, True, np.int64(2), (2,), helper)]
    keys += [key(calls), key(reads_array), key(calls, "another type")]
    monkeypatch.setitem(globals(), "LIMIT", 4)  # of a function that is called
    keys.append(key(calls))
    monkeypatch.setitem(globals(), "TABLE", np.array([1, 3]))
    keys.append(key(reads_array))
    monkeypatch.setattr(transit, "NULL", -2)
    keys.append(key(closing_over(2)))
    assert None not in keys and len(set(keys)) == len(keys)


@pytest.mark.parametrize("function", [reads_list, closing_over(object()), closing_over([1])])
def test_what_cannot_be_told_by_content_has_no_key(function):
    assert key(function) is None


def test_content_is_made_once_and_read_then(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []
    for _ in range(2):
        assert app_cache.kept("abc", "cubin", lambda: made.append(1) or b"content") == b"content"
    assert made == [1] and [file.name for file in app_cache.directory().iterdir()] == ["abc.cubin"]
    assert app_cache.kept(None, "cubin", lambda: b"other") == b"other"


@pytest.mark.parametrize("damage", [lambda old: b"", lambda old: old[:-1], lambda old: old[:-1] + b"d"])
def test_a_damaged_file_is_made_anew(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    app_cache.kept("abc", "cubin", lambda: b"content")
    [file] = app_cache.directory().iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert app_cache.kept("abc", "cubin", lambda: b"anew") == b"anew"
    assert app_cache.kept("abc", "cubin", lambda: b"made again") == b"anew"


def test_without_a_directory_to_write_to_content_is_made_every_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert app_cache.kept("abc", "cubin", lambda: b"content") == b"content"
