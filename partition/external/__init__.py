"""Partitioning within a limit of memory: the topology is sorted on disk, and what was done survives a kill."""
