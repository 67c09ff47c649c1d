"""Watermarks of sampled text: keys, schemes, and the tests that find a watermark again."""
