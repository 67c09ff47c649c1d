"""The served model's tokens as bytes, and what a text means in them."""
