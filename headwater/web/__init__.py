"""What is reached by HTTP: who asks (``access``), the API, the dashboard. Faces of use cases, without logic.

Nothing here imports Spark. All but ``access`` needs the extra ``web``.
"""
