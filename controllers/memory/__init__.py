"""Experience memory of DS-MCM ([DS-MCM] 3.3): what happened in earlier runs, found again by similarity."""
