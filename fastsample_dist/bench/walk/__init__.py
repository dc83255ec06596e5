"""`fastsample-bench walk`: random walks beside ThunderRW, DGL and PyG, and beside the memory's own limit."""
