"""Small models and tokenizers, made on the spot."""
