"""What happened: trajectories, their stores, importers, corpora and the generated world."""
