"""What the broker keeps on disk, and how it is checked."""
