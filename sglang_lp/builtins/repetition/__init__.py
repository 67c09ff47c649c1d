"""Processors against repetition."""
