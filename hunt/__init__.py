"""A search over what a client may send to a real server, with invariants instead of cases."""
