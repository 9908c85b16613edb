"""The event loop thread and what runs on it: index clients, uploads, downloads."""
