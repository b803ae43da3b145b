"""What all packages share: errors, endpoints, headers, settings, logs, statistics and more. Process: any."""
