"""The replica actor and its children, between Ray and an engine's core."""
