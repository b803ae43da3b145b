"""What a client sends, read within bounds."""
