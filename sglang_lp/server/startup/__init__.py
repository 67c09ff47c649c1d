"""Start-up of SGLang's processes: each starts with the whole guard, or ends."""
