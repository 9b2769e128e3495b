"""What operators do with a broker's data: backup, repair, import and export."""
