"""Long work that can be interrupted, and work in pieces over all cores."""
