"""What a broker and its clients agree on: the errors of an answer, and how a payload travels."""
