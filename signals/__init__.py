"""What a step looks like: the per-step signals, their tracker, features and calibration."""
