"""The scheduler process: requests at their steps."""
