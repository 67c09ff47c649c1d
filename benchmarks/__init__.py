"""Costs of the toolkit, measured next to SGLang's own classes in one process."""
