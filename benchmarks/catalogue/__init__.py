"""Costs of catalogues: the index, and the steps of rows that write items."""
