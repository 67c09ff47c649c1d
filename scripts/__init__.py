"""The steps of the Makefile's targets, and the tools that they run."""
