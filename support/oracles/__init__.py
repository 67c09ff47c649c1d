"""Independent definitions of what processors do."""
