"""Configuration files written for people: what is known of a model, what is advised, and the files that serve it."""
