"""Guards: models that are asked whether requests and replies are safe, and `/v1/moderations`."""
