"""The aiohttp doors."""
