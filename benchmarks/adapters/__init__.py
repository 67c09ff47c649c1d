"""The cost of adapting a class of another engine."""
