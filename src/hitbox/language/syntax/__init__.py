"""Text to tokens to a tree."""
