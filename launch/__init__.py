"""Starts training scripts on one machine or many; standard library only, so that a head node needs no torch."""
