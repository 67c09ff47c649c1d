"""What the trust boundary costs, and attempts to break it."""
