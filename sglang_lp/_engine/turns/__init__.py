"""Turns: the processors of a row, each with its own view of the request and its own sleep."""
