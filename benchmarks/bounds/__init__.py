"""The most that one accepted request costs the others."""
