"""What to do: controllers that choose continue, intervene or stop, and their guards."""
