"""Effects of processors on the answers of a model that speaks."""
