"""Epochs over networks of a given rate: what caches, smaller rows, rails and fewer meetings save."""
