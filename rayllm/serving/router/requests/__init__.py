"""Reading clients' requests, within bounds."""
