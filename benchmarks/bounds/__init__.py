"""The greatest cost of one accepted request for the other requests."""
