"""Subscriptions by id on top of a matcher: what users hold, load, save and explain."""
