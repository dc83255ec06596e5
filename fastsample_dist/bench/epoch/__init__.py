"""Epochs on one machine, over slow networks and beside DistDGL."""
