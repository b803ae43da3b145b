"""Servers like those that weights are downloaded from."""
