"""The page of ``sglang-lp try``: its form, its server on loopback, and the server that it asks."""
