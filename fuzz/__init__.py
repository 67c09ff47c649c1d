"""Fuzzing of the trust boundary."""
