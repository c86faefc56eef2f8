"""Learning: targets and the fitting of controllers."""
