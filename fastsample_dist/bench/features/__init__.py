"""`fastsample-bench features`: fetching feature rows by every transport, beside the floor that all rows are own."""
