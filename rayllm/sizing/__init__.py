"""What a model needs of a GPU, told from its configuration and the headers of its weights alone."""
