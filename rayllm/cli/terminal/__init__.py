"""Input and output of commands: tables, prompts, progress bars, files, signals."""
