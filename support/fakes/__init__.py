"""Fakes of SGLang's objects and of a GPU, for unit tests."""
