"""People judge what controllers suggest, without knowing which controller it was ([DS-MCM] 4.8)."""
