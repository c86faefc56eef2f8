"""Networks that stopwise calls: encoders, chat clients and local language models, with their caches and prompts."""
