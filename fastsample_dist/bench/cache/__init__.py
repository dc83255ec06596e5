"""`fastsample-bench cache`: which share of remote rows a cache of each policy and size has."""
