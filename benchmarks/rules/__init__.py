"""The cost of the operator's decisions, and a comparison with strict thinking."""
