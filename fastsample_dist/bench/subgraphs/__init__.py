"""`fastsample-bench subgraphs`: subgraphs beside the paper's own code, PyG and DGL, and what deep models cost."""
