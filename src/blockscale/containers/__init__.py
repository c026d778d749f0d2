"""Containers: files that hold named arrays."""
