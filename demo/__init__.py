"""The demonstration: a tiny language model, made on the spot, and the scenes that use it."""
