"""What the commands share: error messages, files of tables, progress."""
