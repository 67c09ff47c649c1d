"""Edits of a batch, applied to its logits."""
