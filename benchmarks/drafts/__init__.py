"""What a verify step of speculative decoding costs."""
