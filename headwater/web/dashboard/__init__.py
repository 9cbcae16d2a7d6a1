"""The dashboard: pages for a browser over the use cases, kept up to date while they are open.

``feed`` looks at the store once for all pages; a page takes what it has not had yet. ``frame`` is what all
pages have, ``rich`` how they show text and figures, ``zonemap`` the map. Nothing is loaded from elsewhere.
"""

from headwater.web.dashboard.pages import attach

__all__ = ["attach"]
