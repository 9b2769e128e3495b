"""Who may do what: principals, their tokens and rights, and the one place that asks for them."""
