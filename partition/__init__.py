"""Cutting a graph into parts: `fastsample-partition`, and `partition.build.partition_graph` for programs."""
