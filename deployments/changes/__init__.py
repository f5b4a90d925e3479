"""What is changed in the registry, one compare-and-set a change: adapters, tenants, pins."""
