"""Processors of texts."""
