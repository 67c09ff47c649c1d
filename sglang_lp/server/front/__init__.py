"""The HTTP process: what clients say, and what they are told."""
