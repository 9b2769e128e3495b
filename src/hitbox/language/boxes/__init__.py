"""A tree to boxes of keys: normal form, sets of keys, derived attributes, anchors."""
