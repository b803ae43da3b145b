"""The stages: one file each. A stage takes rows and gives as many, each with what it adds."""
