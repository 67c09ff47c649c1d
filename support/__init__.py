"""What the tests, the benchmarks and the demo share; no part of the wheel."""
