"""The REST endpoints: HTTP on one side, values on the other."""
