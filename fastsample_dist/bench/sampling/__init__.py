"""Sampling on the CPU beside DGL, and its limits."""
