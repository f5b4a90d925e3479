"""The control deployment: publishing, sweeping, and what is kept once for the service."""
