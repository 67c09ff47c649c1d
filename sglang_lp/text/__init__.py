"""The served model's tokens as bytes, and texts found, banned, forced or chosen in them."""
