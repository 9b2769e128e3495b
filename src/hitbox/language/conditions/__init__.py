"""What conditions compare with: patterns, networks, places, lengths of time."""
