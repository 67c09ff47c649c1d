"""What adapting a class of another engine costs."""
