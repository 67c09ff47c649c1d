"""How a process of SGLang starts guarded, or does not start."""
