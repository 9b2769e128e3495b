"""Filters of other systems -> predicates of hitbox.

    eventbridge.parse(pattern)     Amazon EventBridge and Event Ruler: a JSON object, as text or as a mapping
    jms.parse(selector)            JMS 2.0 and Jakarta Messaging 3.1: a message selector
    cesql.parse(expression)        CloudEvents SQL 1.0: a filter expression

Each returns the text of a predicate, to be subscribed. What has no equivalent is a DialectError, which says what and
where.

    >>> from hitbox.dialects import jms
    >>> jms.parse("JMSPriority > 5 and colour in ('red', 'blue')")
    "JMSPriority > 5 AND colour IN ('red', 'blue')"
"""

from __future__ import annotations

from hitbox.dialects import cesql, eventbridge, jms

__all__ = ["cesql", "eventbridge", "jms"]
