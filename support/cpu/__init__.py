"""Plain forms of what SGLang computes on GPUs only, as plugins."""
