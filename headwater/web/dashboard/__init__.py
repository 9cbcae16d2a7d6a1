"""The dashboard: browser pages over the use cases, updated while they are open.

``feed`` reads the store once for all pages; each page takes its missing changes. ``frame`` is the common part of pages,
``rich`` shows text and figures, ``zonemap`` the map. Nothing is loaded from other sites.
"""

from headwater.web.dashboard.pages import attach

__all__ = ["attach"]
