"""Everything at once on a real server, every answer checked."""
