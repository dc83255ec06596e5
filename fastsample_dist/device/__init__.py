"""Where work runs and where its tables are: devices, clocks, streams, pinned memory, placement."""
