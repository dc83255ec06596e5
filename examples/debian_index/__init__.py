"""Debian's package index read as a graph: control files, nodes and edges, word features, the compact file."""
