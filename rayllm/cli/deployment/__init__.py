"""Applications, clusters and addresses, for `rayllm run`, `apply`, `build` and `status`."""
