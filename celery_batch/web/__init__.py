"""Helpers for web servers that call batch tasks, whatever the framework."""
