"""The cost of a verify step of speculative decoding."""
