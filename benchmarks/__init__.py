"""What the toolkit costs, measured beside SGLang's own classes in one process."""
