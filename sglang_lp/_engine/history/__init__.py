"""The history of each request, and the row that follows it."""
