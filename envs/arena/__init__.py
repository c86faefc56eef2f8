"""The closed loop: agents and retrievers that run for real."""
