"""What would happen: replay environments, intervention models, rewards and the arena."""
