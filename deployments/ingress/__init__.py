"""What an ingress knows and does, behind its endpoints."""
