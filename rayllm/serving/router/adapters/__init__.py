"""Which adapters there are: listed, looked up, loaded by administrators."""
