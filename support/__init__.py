"""Shared by the tests, the benchmarks and the demo; no part of the wheel."""
