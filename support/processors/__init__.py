"""Processors that tests serve, adapt and compare with."""
