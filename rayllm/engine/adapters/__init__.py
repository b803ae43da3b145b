"""The adapters of one engine: loading, refreshing and dropping them."""
