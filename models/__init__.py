"""Networks that stopwise calls: encoders and their caches."""
