"""Command lines that try the library on the user's own machines: fastsample-doctor, -verify and -bench."""
