"""Hooks of the scheduler process: admission, steps, drafts, ends and reports of requests."""
