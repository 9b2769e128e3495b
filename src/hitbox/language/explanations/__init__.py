"""Why an event matched or did not, and the nearest change after which it would."""
