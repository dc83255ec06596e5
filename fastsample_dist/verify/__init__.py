"""fastsample-verify: a partition trained by ranks, compared with one process."""
