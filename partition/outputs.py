"""Files that the command writes beside a partition: reports and pages."""

from fastsample_dist.files import check_writable, write_json, write_text

__all__ = ["check_writable", "write_json", "write_text"]
