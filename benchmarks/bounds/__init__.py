"""What one accepted request costs the others at most."""
