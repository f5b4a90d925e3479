"""A canary beside production: what is counted of both, and when it is worse. Pure."""
