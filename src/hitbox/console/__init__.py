"""What the commands share: error messages and files of tables."""
