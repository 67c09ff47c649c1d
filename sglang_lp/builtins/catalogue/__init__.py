"""Answers out of a catalogue of items."""
