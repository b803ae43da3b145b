"""The verbs of `rayllm`: one module each, with the verb's click command as `command`."""
