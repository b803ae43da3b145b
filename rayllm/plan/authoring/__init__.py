"""Writes model files: a profile of the model, advice on hardware, and the YAML. Process: command line."""
