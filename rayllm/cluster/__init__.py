"""The Ray cluster that models run on: what it is made of, what a model takes of it, and whether that fits."""
