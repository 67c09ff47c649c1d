"""Processors that read the prompt."""
