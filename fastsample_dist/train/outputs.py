"""Result files of commands: refused before the work when they cannot be written, complete when they appear."""

from fastsample_dist.files import check_writable, complete_file, write_json

__all__ = ["check_writable", "complete_file", "write_json"]
