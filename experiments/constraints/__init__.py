"""All constraints at once: accuracy, the worst-served tenth, malicious clients and privacy, in one table."""
