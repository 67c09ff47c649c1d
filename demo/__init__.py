"""The demonstration: a tiny language model that is made on the spot, and what it is used for."""
