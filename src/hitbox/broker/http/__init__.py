"""The broker's HTTP and WebSocket interface."""
