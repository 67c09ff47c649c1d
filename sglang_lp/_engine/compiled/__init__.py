"""Edits of a request, compiled: checked against each other and summed."""
