"""Real servers and engines, and the ways in which tests ask them."""
