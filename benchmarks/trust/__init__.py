"""Costs of the trust boundary, and attempts to break it."""
