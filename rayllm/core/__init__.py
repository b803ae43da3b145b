"""What all packages share: errors, shapes of replies, endpoints, headers, settings, logs and statistics."""
