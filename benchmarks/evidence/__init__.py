"""What processors do to the answers of a model that speaks."""
