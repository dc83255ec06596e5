"""fastsample-doctor: what this machine has, one line per check."""
