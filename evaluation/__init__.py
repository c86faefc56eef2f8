"""Is it better: AUROC of signals, benchmark tables, statistics."""
