"""The aiohttp doors: HTTP API, metrics, server-sent events."""
