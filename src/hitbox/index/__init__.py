"""Subscriptions by id on top of a matcher: the objects that users create, load, save and ask."""
