"""From a partition on disk to a stream of mini-batches: DistData, DistLoader, prefetching."""
