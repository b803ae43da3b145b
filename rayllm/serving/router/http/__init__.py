"""The router's HTTP server: connections, limits, timeouts and error replies."""
