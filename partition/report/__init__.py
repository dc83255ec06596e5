"""What a finished partition is: checks, quality, traffic, pages."""
