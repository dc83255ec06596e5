"""From a graph and an assignment to the files of a partition."""
