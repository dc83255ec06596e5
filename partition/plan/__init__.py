"""What a partitioning will cost, before any work: memory, disk, training."""
