"""In the agent: policy packages and the live monitor."""
