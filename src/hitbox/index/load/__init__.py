"""Texts and tables to subscriptions, many at once."""
