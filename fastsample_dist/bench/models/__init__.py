"""`fastsample-bench models`: the workloads of GNNLab's evaluation, beside DGL on the CPU."""
