"""Plain forms of SGLang's GPU kernels for tests on a CPU, as plugins."""
