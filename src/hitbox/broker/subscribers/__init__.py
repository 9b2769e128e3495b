"""Who wants what: subscribers, their subscriptions, and where a webhook leads."""
