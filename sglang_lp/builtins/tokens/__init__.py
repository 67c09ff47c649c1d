"""Processors of token ids."""
