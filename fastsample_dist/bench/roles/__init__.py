"""Roles of ranks: predicted against measured epochs, and against an event by event simulation."""
