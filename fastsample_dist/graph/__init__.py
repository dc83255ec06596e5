"""Graphs in memory and on disk: CSC topology, the partition book, the on-disk format, generators."""
