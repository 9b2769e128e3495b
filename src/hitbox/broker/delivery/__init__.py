"""From a stored event to an acknowledged delivery."""
