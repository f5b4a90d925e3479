"""What the service runs on: the machine, Ray's nodes and processes."""
