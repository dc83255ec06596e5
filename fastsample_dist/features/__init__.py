"""Node features: the rows a rank owns and the all_to_all fetch of the rows it does not."""
