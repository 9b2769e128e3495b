"""Values to keys: schemas, codecs, events, and the arrays that the other rooms exchange."""
