"""`loraplex doctor`: what would stop a start or a publish, and the remedy."""
