"""Processors of single models."""
