"""What a step does on a GPU: counted without one, and measured on one."""
