"""Columns that mark malformed records, beside those of a source's schema."""

from __future__ import annotations

CORRUPT = "__corrupt"
"""The text of a malformed record; NULL for others."""
ORIGIN = "__origin"
"""The file or topic of a record."""
REASON = "__reason"
"""Why a record is malformed, where only its source knows."""
