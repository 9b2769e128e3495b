"""What publishers send: its forms, its ids, and what JSON may hold."""
