"""The REST API below /api/v1: a router for each concern, pydantic at the edge, use cases behind."""
