"""HTTP faces without logic: access control (``access``), the REST API, the dashboard.

Nothing here imports Spark. All but ``access`` needs the extra ``web``.
"""
