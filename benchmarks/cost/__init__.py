"""The cost of a step, next to SGLang's own classes."""
